"""A model's size from its Hugging Face `config.json`: parameters, and what of them matters for memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuneline.core.errors import StagingError


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder.

    Attributes:
        parameters: All weights, experts and vision tower included.
        linear_width: Sum over all linear layers of input and output width: LoRA of rank r has r times as many parameters.
        kv_bytes: Bytes of one token's keys and values in bfloat16, all layers.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    kv_heads: int
    largest_layer: int
    linear_width: int
    kv_bytes: int


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The sizes in a `config.json`; those of a model with pictures stand in its `text_config`.

    Raises:
        StagingError: If it names no sizes that a decoder has.
    """
    text = {**config, **config.get("text_config", {})}
    try:
        hidden, layers, heads, vocab = (
            int(text[name]) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        )
        dense = int(text["intermediate_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise StagingError(
            "the model's config.json does not say how large it is",
            asked="hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size",
            found=f"{type(error).__name__}: {error} in {config.get('model_type', 'a model')}",
            next_move="choose a decoder model in Hugging Face format",
        ) from error
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    attention = [(hidden, heads * head), (hidden, kv_heads * head), (hidden, kv_heads * head), (heads * head, hidden)]
    experts = int(text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 0)
    width = int(text.get("moe_intermediate_size") or dense) if experts else dense
    shared = int(text.get("shared_expert_intermediate_size") or 0)
    copies = experts or 1
    mlp = [(hidden, width), (hidden, width), (width, hidden)]
    weights = sum(rows * columns for rows, columns in attention)
    layer = weights + copies * sum(rows * columns for rows, columns in mlp) + 3 * hidden * shared + hidden * experts + 2 * hidden
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", config.get("model_type", "").startswith("gemma"))))
    widths = sum(rows + columns for rows, columns in attention) + copies * sum(rows + columns for rows, columns in mlp)
    return Shape(
        parameters=layers * layer + vocab * hidden * (1 if tied else 2) + hidden + _vision(config.get("vision_config") or {}),
        layers=layers,
        hidden=hidden,
        intermediate=width * int(text.get("num_experts_per_tok") or 1) + shared,
        vocab=vocab,
        kv_heads=kv_heads,
        largest_layer=max(layer, vocab * hidden),
        linear_width=layers * widths,
        kv_bytes=2 * 2 * layers * kv_heads * head,
    )


def _vision(config: Mapping[str, Any]) -> int:
    """A vision transformer's blocks; its patches and positions are less than a percent of them."""
    hidden, layers = int(config.get("hidden_size") or 0), int(config.get("num_hidden_layers") or config.get("depth") or 0)
    return layers * (4 * hidden * hidden + 2 * hidden * int(config.get("intermediate_size") or 4 * hidden))
