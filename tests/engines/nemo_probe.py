"""Runs with Hydra on the path: composes argument lists with the configuration loader of the NeMo RL copy that NEMO_RL_SRC names.

Standard input: a JSON list of [recipe, override...]. Standard output, last line: a JSON list of the resolved configurations, or a
message. Its loader is loaded from its file: the package itself needs GPUs' packages to be imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

SOURCE = Path(os.environ["NEMO_RL_SRC"])


def loader() -> Any:
    spec = importlib.util.spec_from_file_location("nemo_rl_config", SOURCE / "nemo_rl" / "utils" / "config.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compose(module: Any, recipe: str, overrides: list[str]) -> Any:
    try:
        config = module.parse_hydra_overrides(module.load_config(str(SOURCE / recipe)), overrides)
        return OmegaConf.to_container(config, resolve=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    loaded = loader()
    if hasattr(loaded, "register_omegaconf_resolvers"):
        loaded.register_omegaconf_resolvers()
    else:
        # v0.5.0 registers it in examples/run_grpo.py.
        OmegaConf.register_new_resolver("mul", lambda one, other: one * other)
    print(json.dumps([compose(loaded, recipe, overrides) for recipe, *overrides in json.load(sys.stdin)]))
