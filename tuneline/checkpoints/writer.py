"""Writes shards from blocks that several threads assemble: hashed in order, written in windows, in memory that does not grow.

A shard is cut into windows of equal size. Threads take blocks in the order of the file and put them where they belong; whoever fills a
window writes it, and hashes it if it is its turn. So no thread only hashes and none only waits: with one thread everything happens in
it, with many a shard moves at the speed of its SHA-256, and several shards are under way at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tuneline.checkpoints.disk import Room
from tuneline.checkpoints.safetensors import Shard
from tuneline.checkpoints.stream import Job, Sink, Stream, Window
from tuneline.checkpoints.tensors import Tensor
from tuneline.lineage.digests import FileDigest

#: Threads that the SHA-256 of one shard can keep busy.
_THREADS_A_SHARD = 3
WINDOW_BYTES = 2 << 20
#: Source bytes that are announced to their blobs before they are read.
AHEAD_BYTES = 16 << 20


class Differ(Exception):
    """A tensor is not equal to its twin."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Writer:
    """Writes shards with a number of threads."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        open_sink: Callable[[Shard], Sink],
        done: Callable[[FileDigest], None],
        *,
        threads: int,
        twins: Mapping[str, Tensor] | None = None,
        window_bytes: int = WINDOW_BYTES,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """
        Args:
            tensors: By name, cover proved.
            open_sink: Begins a file.
            done: Called when a file is closed, by one thread at a time.
            twins: Tensors of the same dtype and shape that must have the same bytes; Differ is raised where one has not.
            window_bytes: A multiple of 4096.
        """
        self._tensors = tensors
        self._twins = twins or {}
        self._open_sink = open_sink
        self._done = done
        self._threads = threads
        self._lanes = max(1, threads // _THREADS_A_SHARD)
        self._window_bytes = window_bytes
        self._windows = max(4, -(-threads // self._lanes) + 3)
        self._ahead_bytes = ahead_bytes
        #: Guards all streams and windows; what may take long (reading, hashing, writing) is done without it.
        self._condition = threading.Condition()
        self._waiting: list[Shard] = []
        self._active: list[Stream] = []
        self._unfinished: set[Stream] = set()
        self._error: BaseException | None = None

    def write(self, shards: Sequence[Shard]) -> None:
        """Write all of `shards`. The first error of any thread is raised after all have stopped; unfinished files are gone then."""
        self._waiting = list(shards)
        workers = [threading.Thread(target=self._work, name=f"convert-{number}") for number in range(self._threads)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException as error:  # an interrupt
            self._fail(error)
            for worker in workers:
                worker.join()
        if self._error is not None:
            for stream in self._unfinished:
                stream.sink.abort()
            raise self._error

    def _fail(self, error: BaseException) -> None:
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()

    def _work(self) -> None:
        room, scratch = Room(), Room()
        try:
            while job := self._take():
                self._do(job, room, scratch)
        except BaseException as error:
            self._fail(error)

    def _take(self) -> Job | None:
        """The next job of a shard whose turn it is; None when nothing is left to take."""
        with self._condition:
            while self._error is None:
                self._active = [stream for stream in self._active if not stream.exhausted]
                while self._waiting and len(self._active) < self._lanes:
                    shard = self._waiting.pop(0)
                    stream = self._begin(shard)
                    self._active.append(stream)
                    self._unfinished.add(stream)
                for stream in self._active:
                    job = stream.take()
                    if job is not None:
                        self._active.remove(stream)
                        self._active.append(stream)
                        return job
                if not self._active:
                    return None
                self._condition.wait()
            return None

    def _begin(self, shard: Shard) -> Stream:
        return Stream(
            shard,
            self._tensors,
            self._twins,
            self._open_sink(shard),
            window_bytes=self._window_bytes,
            windows=self._windows,
            ahead_bytes=self._ahead_bytes,
        )

    def _do(self, job: Job, room: Room, scratch: Room) -> None:
        """Assemble a job's bytes in its window, or beside it and in several."""
        window = job.windows[0]
        fits = len(job.windows) == 1
        at = job.start - window.start
        out = window.data[at : at + job.length] if fits else scratch.take(job.length)
        if job.part is None:
            out[:] = np.frombuffer(job.stream.shard.header, np.uint8)[job.start : job.start + job.length]
        else:
            part = job.part
            sums = part.blocks.read(part.block, part.item.dtype, out, room)
            job.stream.sums.add(part.blocks.tensor, part.block, sums)
            if part.twin is not None:
                theirs = np.empty(job.length, np.uint8)
                part.twin[0].read(part.twin[1], part.item.dtype, theirs, room)
                if not np.array_equal(out, theirs):
                    raise Differ(part.item.name)
        filled = []
        for window in job.windows:
            first, last = max(job.start, window.start), min(job.start + job.length, window.start + len(window.data))
            if not fits:
                np.copyto(window.data[first - window.start : last - window.start], out[first - job.start : last - job.start])
            with self._condition:
                window.missing -= last - first
                if not window.missing:
                    filled.append(window)
        stream = job.stream
        if stream.sink.sequential:
            self._pass_on(stream, write=True)
            return
        if filled:
            self._pass_on(stream, write=False)
        for window in filled:
            stream.sink.write(window.start, window.data)
            self._wrote(stream, window)

    def _pass_on(self, stream: Stream, *, write: bool) -> None:
        """Hash, and `write`, the windows whose turn it is, unless another thread is at it: that one will find them."""
        while True:
            with self._condition:
                window = stream.begin_hash()
            if window is None:
                return
            stream.sha256.update(window.data.data)
            if write:
                stream.sink.write(window.start, window.data)
            with self._condition:
                stream.end_hash(window)
                self._condition.notify_all()
            if write:
                self._wrote(stream, window)
            else:
                self._finish(stream)

    def _wrote(self, stream: Stream, window: Window) -> None:
        with self._condition:
            stream.end_write(window)
            self._condition.notify_all()
        self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        """Close a file that is hashed and written to its end; the thread that finds so first does it."""
        with self._condition:
            if not stream.complete or stream not in self._unfinished:
                return
            self._unfinished.remove(stream)
        try:
            stream.sink.close()
        except BaseException:
            stream.sink.abort()
            raise
        with self._condition:
            self._done(FileDigest(stream.shard.file, stream.sha256.hexdigest(), stream.size))
