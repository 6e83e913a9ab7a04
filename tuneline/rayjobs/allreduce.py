"""Measures all-reduce over every GPU of a Ray cluster; ends with 1 where it is slower than a floor.

It travels to the cluster as text, for the image there need not hold Tuneline: it imports nothing of ours.

argv: nodes, GPUs of a node, floor [GB/s], size [bytes], backend (nccl, or gloo without GPUs).
"""

from __future__ import annotations

import json
import sys
from typing import Any

WARM_UP = 5
ROUNDS = 20
SECONDS = 300.0


class Rank:
    """One process of the measurement, with one GPU."""

    def where(self) -> tuple[str, int]:
        """Address of its node, and a port that is free there."""
        import socket

        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def measure(self, first: tuple[str, int], rank: int, world: int, size: int, backend: str) -> float:
        """Seconds of one all-reduce of `size` bytes of float32, as this rank sees it.

        Raises:
            RuntimeError: The sum is wrong.
        """
        import time
        from datetime import timedelta

        import torch
        import torch.distributed as group

        device = "cuda" if backend == "nccl" else "cpu"
        address = f"tcp://{first[0]}:{first[1]}"
        group.init_process_group(backend, init_method=address, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS))
        try:
            values = torch.ones(size // 4, device=device)
            group.all_reduce(values)
            if not bool((values == world).all()):
                raise RuntimeError(f"all-reduce of ones over {world} ranks gives {values.unique().tolist()[:5]}")
            wait = torch.cuda.synchronize if backend == "nccl" else group.barrier
            for _ in range(WARM_UP):
                group.all_reduce(values)
            wait()
            start = time.perf_counter()
            for _ in range(ROUNDS):
                group.all_reduce(values)
            wait()
            return (time.perf_counter() - start) / ROUNDS
        finally:
            group.destroy_process_group()


def bus_bandwidth(size: int, seconds: float, world: int) -> float:
    """GB/s as nccl-tests calls it: what each link carries, whatever the number of ranks."""
    return size / seconds * 2 * (world - 1) / world / 1e9


def measure(nodes: int, gpus: int, size: int, backend: str) -> float:
    """Bus bandwidth of the whole cluster, GB/s: of its slowest rank."""
    import ray

    if not ray.is_initialized():
        ray.init()
    options: dict[str, Any] = {"num_gpus": 1} if backend == "nccl" else {"num_cpus": 1}
    world = nodes * gpus
    ranks = [ray.remote(Rank).options(**options).remote() for _ in range(world)]
    places = ray.get([rank.where.remote() for rank in ranks], timeout=SECONDS)
    # Ranks of a node side by side, as NCCL wants its rings.
    order = sorted(range(world), key=lambda index: places[index])
    first = places[order[0]]
    running = [ranks[index].measure.remote(first, rank, world, size, backend) for rank, index in enumerate(order)]
    return bus_bandwidth(size, max(ray.get(running, timeout=2 * SECONDS)), world)


def main(argv: list[str]) -> int:
    nodes, gpus, floor, size, backend = int(argv[0]), int(argv[1]), float(argv[2]), int(argv[3]), argv[4]
    found = measure(nodes, gpus, size, backend)
    print(json.dumps({"all_reduce_gb_s": round(found, 1), "floor_gb_s": floor, "gpus": nodes * gpus, "bytes": size}), flush=True)
    return 0 if found >= floor else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
