"""Any layer, any projection, your own text: `figures.outliers` with pickers above it.

## Idea

Below the figure, when the reader asks for it, stand the same linear as landscapes, its error by α, and one channel. The
model runs once per text, so moving between layers costs no further pass.

## Choice

A channel is typed, not clicked. A click reaches Python only through `FigureWidget`, which stores 5 MB of script in the
notebook. Pointing at a dot shows the number of its channel.

A pick is computed in a thread of its own. So the panel can say at once that it is at work, and a pick that a newer one
has replaced is never shown.
"""

import threading
from dataclasses import dataclass
from typing import Any

import ipywidgets as w

from quasar_lab.evaluation.activations import DEFAULT_TEXT
from quasar_lab.evaluation.outliers import ORDERS
from quasar_lab.figures import Activations, capture, channel, error_by_alpha, outliers, surfaces
from quasar_lab.figures.plot import Plot
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.model_config import PARTS, projection_of
from quasar_lab.quantization.product_error import GRIDS
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError, QuasarError
from quasar_lab.support.result import Json
from quasar_lab.widgets.lifetime import close_all, one_run_of_a_cell, start_thread
from quasar_lab.widgets.live import FULL, STYLE, WIDE, note
from quasar_lab.widgets.mode import enabled, put, with_static_view
from quasar_lab.widgets.rows import row

SHOWN = "the figures below still show the text before"
KEPT = "the figures below are those of the pick before"


@dataclass(frozen=True)
class Pick:
    """What the controls say."""

    layer: int
    """The number of the layer."""

    projection: str
    """The name of the linear in its layer."""

    order: str
    """How channels are ordered, one of ORDERS."""

    grid: str
    """The scales of the activations, one of GRIDS."""

    landscapes: bool
    """Whether the landscapes are shown too."""

    errors: bool
    """Whether the error by α is shown too."""

    channel: str
    """The number of a channel to show alone, as it was typed; empty for none."""

    text: str | None
    """A new text to read first, or None."""


class OutlierExplorer(w.VBox):
    """Pickers above the outliers and what else is asked for."""

    def __init__(
        self, model: Decoder, quantized: Decoder | None, layer: int, projection: str, text: Prompt | Activations
    ):
        self._model = model
        self._quantized = quantized
        self._activations = capture(model, text)
        self._lock = threading.Lock()
        self._wanted: Pick | None = None
        self._thread: threading.Thread | None = None
        self._make_controls(layer, projection_of(projection), text if isinstance(text, str) else DEFAULT_TEXT)
        self.message = w.HTML()
        self.areas = tuple(w.Output() for _ in range(4))
        self._draw(self._choice(None))
        pickers = [
            row(self.layer, self.projection),
            row(self.order, self.grid),
            row(self.channel, self.landscapes, self.errors),
        ]
        super().__init__([*pickers, self.text, row(self.start, self.message), *self.areas])
        one_run_of_a_cell(self)

    def _make_controls(self, layer: int, projection: str, text: str) -> None:
        """The pickers, each of which draws anew when it changes, and the text with its button."""
        look = {"layout": WIDE, "style": STYLE}
        last = self._model.config.layers - 1
        self.layer = w.IntSlider(layer, 0, last, description="layer", continuous_update=False, **look)
        self.projection = w.Dropdown(options=list(PARTS), value=projection, description="projection", **look)
        self.order = w.Dropdown(options=ORDERS, description="order", **look)
        self.grid = w.Dropdown(options=GRIDS, description="INT8 steps", **look)
        self.landscapes = w.Checkbox(False, description="landscapes (3-D) too", **look)
        self.errors = w.Checkbox(False, description="error by α too", **look)
        self.channel = w.Text(
            description="channel", placeholder="a number: this one alone", continuous_update=False, **look
        )
        self.text = w.Textarea(text, description="text", layout=FULL, style=STYLE)
        self.start = w.Button(description="Use this text", icon="refresh")
        controls = (self.layer, self.projection, self.order, self.grid, self.landscapes, self.errors, self.channel)
        for control in controls:
            control.observe(lambda _: self.pick(), "value")
        self.start.on_click(lambda _: self.pick(self.text.value))

    def _choice(self, text: str | None) -> Pick:
        return Pick(
            layer=self.layer.value,
            projection=self.projection.value,
            order=self.order.value,
            grid=self.grid.value,
            landscapes=self.landscapes.value,
            errors=self.errors.value,
            channel=self.channel.value.strip(),
            text=text,
        )

    def pick(self, text: str | None = None) -> None:
        """Draws what is picked as soon as the pick before is done. With `text`, the model reads that first.

        What is wrong with a text is said beside the button.
        """
        if text is not None and not text.strip():
            self.message.value = note(InputError(f"the text is empty; accepted: at least a word ({SHOWN})"))
            return
        with self._lock:
            if text is None and self._wanted is not None:
                text = self._wanted.text
            self._wanted = self._choice(text)
            self.message.value = "reading the text …" if text is not None else "computing …"
            if self._thread is None:
                self._thread = start_thread(self._work, stop=self._forget)

    def _forget(self) -> None:
        """No pick waits any more."""
        with self._lock:
            self._wanted = None

    def close(self) -> None:
        """Takes the panel off the page. What is being computed is let go of when it is done."""
        self._forget()
        close_all(*self.children)
        super().close()
        for held in ("_model", "_quantized", "_activations"):  # ipywidgets may close again
            self.__dict__.pop(held, None)

    def _repr_mimebundle_(self, **options: Any) -> Json:
        live = super()._repr_mimebundle_(**options) or {}
        return with_static_view(live, "Outliers of one linear", figure=self.areas[0])

    def wait(self) -> None:
        """Returns when every pick has been drawn."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None:
                    self._thread = None
                    return
            said = ""
            try:
                self._draw(wanted)
                if wanted.text is not None:
                    said = f"the figures show this text: {len(self._activations.pieces)} tokens"
            except QuasarError as error:
                said = note(InputError(f"{error} ({KEPT if wanted.text is None else SHOWN})"))
            with self._lock:
                if self._wanted is None:
                    self.message.value = said

    def _draw(self, pick: Pick) -> None:
        """Computes all figures first and shows them then, so that they change together. When a newer pick waits,
        nothing is shown."""
        captured = self._activations if pick.text is None else capture(self._model, pick.text)
        model, quantized = self._model, self._quantized
        at = (pick.layer, pick.projection)
        figures = [outliers(model, *at, quantized, captured, pick.order)]
        if pick.errors and self._wanted is None:
            figures.append(error_by_alpha(model, *at, text=captured, grid=pick.grid))
        if pick.landscapes and self._wanted is None:
            figures.append(surfaces(model, *at, quantized, captured, grid=pick.grid))
        if pick.channel and self._wanted is None:
            if not pick.channel.isdecimal():
                raise InputError(f"channel is {pick.channel!r}; accepted: its number, from 0")
            figures.append(channel(model, *at, int(pick.channel), quantized, captured))
        self._activations = captured
        if self._wanted is None:
            for area in self.areas[len(figures) :]:
                area.outputs = ()
            for area, figure in zip(self.areas, figures, strict=False):
                put(area, figure)


def outlier_explorer(
    model: Decoder,
    quantized: Decoder | None = None,
    *,
    layer: int = 11,
    projection: str = "down_proj",
    text: Prompt | Activations | None = None,
    interactive: bool = True,
) -> OutlierExplorer | Plot:
    """The explorer, or, where the notebook is not interactive, `figures.outliers` of one layer and projection."""
    if enabled(interactive):
        return OutlierExplorer(model, quantized, layer, projection, DEFAULT_TEXT if text is None else text)
    return outliers(model, layer, projection, quantized, text)
