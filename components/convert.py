"""The trained checkpoint as a Hugging Face model."""

from typing import NamedTuple

from kfp import dsl

from components.images import SENTINEL


@dsl.component(base_image=SENTINEL, install_kfp_package=False)
def convert(
    output_root: str,
    output_shard_mb: int,
    ops_rerun_token: str,
    model: dsl.Input[dsl.Model],
    checkpoint: dsl.Input[dsl.Model],
    hf_model: dsl.Output[dsl.Model],
) -> NamedTuple("Converted", digest=str):
    """Writes safetensors while streaming; executes nothing from the checkpoint. Cached by the checkpoint and its parameters."""
    from tuneline.tasks import convert as task

    return task.run(output_root, int(output_shard_mb), model, checkpoint, hf_model)
