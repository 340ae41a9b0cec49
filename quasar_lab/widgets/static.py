"""The panels where ipywidgets or anywidget is not installed: what they show, without controls, and a hint.

Nothing here imports either of them. The functions take what those of the live panels take; what only controls need is
accepted and not used.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from quasar_lab import load
from quasar_lab.figures import Activations, StripHTML, outliers, tau_by_text, token_strip
from quasar_lab.models.decoder import Decoder
from quasar_lab.quantization.saved_model import quantize
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.trace import Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.progress import say_once
from quasar_lab.widgets.size_table import size_table

HINT = "Panels have no controls here: pip install ipywidgets anywidget, then restart the kernel."


def packages_missing() -> bool:
    """Whether live panels cannot be made."""
    return any(importlib.util.find_spec(name) is None for name in ("ipywidgets", "anywidget"))


@dataclass(frozen=True)
class StaticModel:
    """model: the BF16 decoder. quantized: the same model by the recipe."""

    model: Decoder
    quantized: Decoder

    def _repr_html_(self) -> str:
        return size_table(self.model, self.quantized)


def pick_model(
    model: str = "embedded",
    recipe: str = "w8a8",
    *,
    device: str = "cpu",
    backend: str = "auto",
    interactive: bool = True,
) -> StaticModel:
    """Loads `model` and its quantized copy, and shows both sizes."""
    say_once(HINT)
    exact = load(model, device, backend)
    return StaticModel(exact, quantize(exact, recipe))


def generate_live(
    verifiers: Verifier | Sequence[Verifier],
    prompt: str,
    *,
    trace: Trace | None = None,
    interactive: bool = True,
    max_new_tokens: int = 48,
    **options: Any,
) -> StripHTML:
    """The strip of `trace`, or of one run with the first verifier."""
    say_once(HINT)
    first = verifiers[0] if isinstance(verifiers, Sequence) else verifiers
    return token_strip(trace or generate(first, prompt, max_new_tokens=max_new_tokens, **options))


def outlier_explorer(
    model: Decoder,
    quantized: Decoder | None = None,
    *,
    layer: int = 11,
    projection: str = "down_proj",
    text: Prompt | Activations | None = None,
    interactive: bool = True,
) -> go.Figure:
    """The outliers of one linear."""
    say_once(HINT)
    return outliers(model, layer, projection, quantized, text)


def drafter_explorer(
    answered: Sequence[Any], identity: Mapping[str, Any], *, interactive: bool = True, **options: int
) -> go.Figure:
    """Acceptance of n-gram drafts by kind of text."""
    say_once(HINT)
    return tau_by_text(answered, identity, **options)
