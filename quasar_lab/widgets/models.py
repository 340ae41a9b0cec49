"""Pick a model: load it in BF16 and W8A8, and see what that costs in bytes.

The choice is loaded when the panel is made, so that "Run all" works at first try; another one is loaded on request, and
the cells below then run again with `panel.model` and `panel.quantized`. A choice that cannot be loaded is explained,
and the models loaded before stay.
"""

from html import escape
from typing import Any

import ipywidgets as w
from IPython.display import display

from quasar_lab import load
from quasar_lab.catalogue import ENTRIES
from quasar_lab.decoder import Decoder
from quasar_lab.errors import QuasarError
from quasar_lab.quantization import quantize
from quasar_lab.widgets.live import STYLE, WIDE, note
from quasar_lab.widgets.mode import enabled

NAME_CELL = 'style="padding: 5px 28px 5px 0; text-align: left"'
NUMBER_CELL = 'style="padding: 5px 0 5px 28px; text-align: right; white-space: nowrap"'
"""Cells bring their look with them: a widget's HTML gets no table style from the page."""

RECIPES = ("w8a8", "w8a8-plain", "w8a8-smoothquant:0.5", "w8a8-smoothquant:0.85")


class ModelPanel:
    """model: the BF16 decoder. quantized: the same model by the recipe."""

    def __init__(self, model: str, recipe: str, interactive: bool):
        self.model: Decoder
        self.quantized: Decoder
        self._live = enabled(interactive)
        self.choose(model, recipe)
        ids = [entry.id for entry in ENTRIES]
        self.choice = w.Combobox(
            value=model, options=["embedded", *ids], description="model", ensure_option=False, layout=WIDE, style=STYLE
        )
        self.recipe = w.Combobox(
            value=recipe, options=RECIPES, description="recipe", ensure_option=False, layout=WIDE, style=STYLE
        )
        self.start = w.Button(description="Load", button_style="primary")
        self.start.on_click(lambda _: self.reload())
        self.message, self.table = w.HTML(), w.HTML(self._repr_html_(), layout=w.Layout(width="calc(100% - 6px)"))

    def choose(self, model: str, recipe: str) -> None:
        """Loads and quantizes. Raises QuasarError, and keeps what was loaded, when that cannot be."""
        loaded = load(model)
        self.quantized = quantize(loaded, recipe)
        self.model = loaded

    def reload(self) -> None:
        """Loads what the panel says."""
        self.start.disabled, self.message.value = True, "loading …"
        try:
            self.choose(self.choice.value, self.recipe.value)
            self.table.value = self._repr_html_()
            self.message.value = "loaded: run the cells below again"
        except QuasarError as error:
            self.message.value = note(error)
        finally:
            self.start.disabled = False

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td {NAME_CELL}>{escape(decoder.name)}</td>"
            f"<td {NUMBER_CELL}>{decoder.weight_bytes / 1e6:.1f} MB</td>"
            f"<td {NUMBER_CELL}>{decoder.resident_bytes / 1e6:.1f} MB</td></tr>"
            for decoder in (self.model, self.quantized)
        )
        identity = self.model.identity
        caption = f"{identity['model']} · device {identity['device']}, backend {identity['backend']}"
        heads = "".join(
            f'<th scope="col" {look}>{words}</th>'
            for words, look in (
                ("verifier", NAME_CELL),
                ("read per step", NUMBER_CELL),
                ("held in memory", NUMBER_CELL),
            )
        )
        return (
            '<table class="quasar-table" style="border-collapse: collapse">'
            f'<caption style="text-align: left; white-space: nowrap">{escape(caption)}</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        )

    def _ipython_display_(self, **options: Any) -> None:
        if self._live:
            row = w.HBox([self.start, self.message])
            display(w.VBox([w.HBox([self.choice, self.recipe]), row, self.table]))
        else:
            display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)


def pick_model(model: str = "embedded", recipe: str = "w8a8", *, interactive: bool = True) -> ModelPanel:
    """Loads `model` and its W8A8 copy and shows both sizes; live: with fields to choose others."""
    return ModelPanel(model, recipe, interactive)
