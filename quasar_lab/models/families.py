"""The model families that the decoder computes, one entry each.

## Idea

The families share one decoder shape: RMS norms, rotary positions, grouped-query attention and a SiLU-gated MLP. An
entry says where a family differs from that shape. Everything else derives from the entries: what `config.json` may say
as `model_type`, which tokenizer is read, the error texts and the lists that people see.

## Choice

A new family is one new entry here, and a tiny model of it in the tests. Biases need no entry. A projection has a bias
where the files hold one, whatever key of `config.json` announces it (`attention_bias`, or openPangu's `bias`).

## What is lost

Architectures with another shape: other norms or activations, experts, and tensors under other names. `config.json` of
such a model is refused with an error that names the families.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WindowRule = Callable[[Mapping[str, Any]], tuple[int, int]]
"""config.json → (context, window): the number of positions that the decoder accepts, and how many of the latest
positions a token attends to (0: all of them)."""


def window_in_every_layer(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Mistral applies `sliding_window` in all layers, and so does the decoder."""
    return raw["max_position_embeddings"], raw.get("sliding_window") or 0


def context_within_window(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Qwen applies `sliding_window` in some layers only, where `use_sliding_window` is true. All layers are plain as
    long as the context is no longer than the window, so the context is cut there."""
    context = raw["max_position_embeddings"]
    if raw.get("use_sliding_window"):
        context = min(context, raw.get("sliding_window") or context)
    return context, 0


@dataclass(frozen=True)
class Family:
    """Where one family differs from the decoder shape that all families share."""

    model_type: str
    """What its config.json says under `model_type`."""
    title: str = ""
    """The name that people know it by, where `model_type` is another one."""
    head_norms: bool = False
    """Whether the queries and keys of every head pass through an RMS norm of their own."""
    window_rule: WindowRule = context_within_window
    """How its sliding window is read."""
    bare_sentencepiece: bool = False
    """Whether `transformers` has no tokenizer class for it, so that `tokenizer.model` is read by sentencepiece."""

    @property
    def name(self) -> str:
        """The name in lists that people read."""
        return self.title or self.model_type


FAMILIES = {
    family.model_type: family
    for family in (
        Family("llama"),
        Family("mistral", window_rule=window_in_every_layer),
        Family("qwen2"),
        Family("qwen3", head_norms=True),
        Family("PanguEmbedded", title="openPangu", bare_sentencepiece=True),
    )
}
"""Every supported family, by its `model_type`."""


def family_names() -> str:
    """The families as people read them: "llama, mistral, …"."""
    return ", ".join(family.name for family in FAMILIES.values())
