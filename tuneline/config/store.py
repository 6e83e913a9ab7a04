"""The layout of a store: the same in a folder and in a bucket. Nobody else joins these paths.

models/<name@revision>                 staged base models
datasets/<digest>                      staged data sets
code/<digest>                          staged user code
checkpoints/<training_key>/<attempt>   what a training attempt writes
hf/<content digest>                    converted Hugging Face models
runs/<run_id>/{errors,tasks,metrics,logs}  what a run tells of itself
leases/                                who holds what
lineage/lineage.sqlite                 the local lineage store
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuneline.core.errors import StoreError

#: Top-level folders that cleanup never deletes.
KEPT = ("models", "datasets", "code", "checkpoints", "hf")


def safe_name(text: str) -> str:
    """`text` as one path segment: `/` and everything unusual become `--` and `_`."""
    return re.sub(r"[^A-Za-z0-9._@=-]", "_", text.replace("/", "--")).strip(".") or "_"


@dataclass(frozen=True)
class Store:
    """Paths below one root, an absolute folder or `gs://bucket[/prefix]`, without a trailing slash.

    Raises:
        StoreError: If the root is '': its paths would start at the root of the file system.
    """

    root: str

    def __post_init__(self) -> None:
        if not self.root:
            raise StoreError("a store has no root", asked="output_root", found="''", next_move="give --store, or output_root")
        object.__setattr__(self, "root", self.root.rstrip("/"))

    def _join(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def model(self, name: str, revision: str) -> str:
        return self._join("models", f"{safe_name(name)[:150]}@{safe_name(revision)}")

    def dataset(self, digest: str) -> str:
        return self._join("datasets", digest)

    def code(self, digest: str) -> str:
        return self._join("code", digest)

    def checkpoints(self, training_key: str) -> str:
        return self._join("checkpoints", training_key)

    def attempt(self, training_key: str, attempt: str) -> str:
        return self._join("checkpoints", training_key, attempt)

    def writer(self, training_key: str) -> str:
        """The lock that allows one run at a time to train this key."""
        return self._join("checkpoints", training_key, "writer.json")

    def hf(self, digest: str) -> str:
        return self._join("hf", digest)

    def run(self, run_id: str) -> str:
        return self._join("runs", run_id)

    def raycluster(self, run_id: str) -> str:
        """The record of the run's Ray cluster."""
        return self._join("runs", run_id, "raycluster.json")

    def inventory(self, run_id: str) -> str:
        """The record of what the run created and what it only uses."""
        return self._join("runs", run_id, "inventory.json")

    def spec(self, run_id: str) -> str:
        """The run's parameters, for the exit task: it can read no other task's output."""
        return self._join("runs", run_id, "spec.json")

    def gpus(self, run_id: str) -> str:
        """When the run's GPU nodes came and went."""
        return self._join("runs", run_id, "gpus.json")

    def task(self, run_id: str, task: str) -> str:
        """The latest attempt of a task, where the lineage store keeps none: on gke."""
        return self._join("runs", run_id, "tasks", f"{task}.json")

    def training_description(self, training_key: str) -> str:
        """What a training is: by its first run, unchanged by later ones."""
        return self._join("checkpoints", training_key, "training.json")

    def training_budget(self, run_id: str) -> str:
        """When the run's training began and with which attempt."""
        return self._join("runs", run_id, "training.json")

    def run_errors(self, run_id: str) -> str:
        return self._join("runs", run_id, "errors")

    def error(self, run_id: str, task: str) -> str:
        """Why a task's latest attempt failed."""
        return self._join("runs", run_id, "errors", f"{task}.json")

    def run_metrics(self, run_id: str) -> str:
        return self._join("runs", run_id, "metrics")

    def run_logs(self, run_id: str) -> str:
        return self._join("runs", run_id, "logs")

    def leases(self) -> str:
        return self._join("leases")

    def lineage_db(self) -> str:
        return self._join("lineage", "lineage.sqlite")
