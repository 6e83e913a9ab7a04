"""Engines by name."""

from __future__ import annotations

from tuneline.engines.base import Engine


def get_engine(name: str) -> Engine:
    """The engine that `train_engine` names; RunSpec has refused every other name."""
    from tuneline.engines.nemo_rl import NemoRlEngine
    from tuneline.engines.trl import TrlEngine
    from tuneline.engines.verl import VerlEngine

    engines: dict[str, type[Engine]] = {"trl": TrlEngine, "verl": VerlEngine, "nemo_rl": NemoRlEngine}
    return engines[name]()
