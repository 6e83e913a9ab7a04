"""Record the names of an engine's settings: `make record-engine VERSION=verl-0.9.1`.

Runs with the engine's packages on the path. verl's names come from its Hydra configuration, NeMo RL's (VERSION=nemo_rl-v0.5.0) from
the configuration files of the copy that NEMO_RL_SRC names. Only names are kept. `NAME.*` is an empty map, which takes any name.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEYS = Path(__file__).resolve().parents[2] / "tuneline" / "engines" / "keys"


def names(node: Any, at: str = "") -> Iterator[str]:
    """The names of all leaves below a configuration node."""
    from omegaconf import DictConfig

    for key in node:
        name = f"{at}.{key}" if at else str(key)
        value = node._get_node(key)
        plain = isinstance(value, DictConfig) and not (value._is_none() or value._is_missing() or value._is_interpolation())
        if plain and len(value):
            yield from names(value, name)
        elif str(key) != "_target_":
            yield f"{name}.*" if plain else name


def verl() -> Any:
    from hydra import compose, initialize_config_dir

    package = importlib.util.find_spec("verl")
    assert package is not None
    assert package.origin is not None
    with initialize_config_dir(config_dir=str(Path(package.origin).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer")


def nemo_rl(source: Path) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.load(source / "examples" / "configs" / "grpo_math_1B.yaml")


def main(version: str) -> list[str]:
    engine = version.partition("-")[0]
    return sorted(names(verl() if engine == "verl" else nemo_rl(Path(os.environ["NEMO_RL_SRC"]))))


if __name__ == "__main__":
    found = main(os.environ["VERSION"])
    if os.environ.get("PRINT"):
        print("\n".join(found))
    else:
        target = KEYS / f"{os.environ['VERSION']}.txt"
        target.write_text("\n".join(found) + "\n", encoding="utf-8")
        print(f"{target}: {len(found)} names")
