"""A task's flow as a process of its own, as a pipeline runs it: `python -m tests.local.task_process '<json>'`.

The JSON: task (launch, train or release), root, run_id, training_key, spec (parameters), engine (module:Class), inputs (folders).
The last line of stdout is the result as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core import log
from tuneline.core.errors import TunelineError
from tuneline.engines.base import TrainingInputs
from tuneline.tasks import launch_raycluster, release_gpus, train


def run(call: dict[str, Any]) -> Any:
    module, name = call["engine"].split(":")
    engine = getattr(importlib.import_module(module), name)()
    spec, store, run_id, key = RunSpec.build(call["spec"]), Store(call["root"]), call["run_id"], call["training_key"]
    if call["task"] == "launch":
        return launch_raycluster.launch(spec, store, run_id, key, engine)
    if call["task"] == "train":
        inputs = TrainingInputs(job_name="", attempt_dir="", **call["inputs"])
        return asdict(train.train(spec, store, run_id, key, engine, inputs))
    return release_gpus.release(store, run_id)


if __name__ == "__main__":
    log.configure()
    try:
        print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
    except TunelineError as error:
        sys.exit(str(error))
