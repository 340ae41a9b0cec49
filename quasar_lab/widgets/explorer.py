"""Any layer, any projection, your own text: `figures.outliers` and `figures.error_by_alpha` with pickers."""

import ipywidgets as w
import plotly.graph_objects as go

from quasar_lab.checkpoints import PARTS, projection_of
from quasar_lab.decoder import Decoder
from quasar_lab.errors import QuasarError
from quasar_lab.figures import Activations, capture, error_by_alpha, outliers
from quasar_lab.figures.activations import DEFAULT_TEXT
from quasar_lab.figures.outliers import ORDERS
from quasar_lab.speculative import Prompt
from quasar_lab.widgets.live import STYLE, WIDE, note
from quasar_lab.widgets.mode import enabled, put


class OutlierExplorer(w.VBox):
    """Pickers above two figures. The model runs once per text; moving between layers costs nothing more."""

    def __init__(
        self, model: Decoder, quantized: Decoder | None, layer: int, projection: str, text: Prompt | Activations
    ):
        self._model, self._quantized = model, quantized
        self._activations = capture(model, text)
        self.layer = w.IntSlider(
            layer, 0, model.config.layers - 1, description="layer", continuous_update=False, layout=WIDE, style=STYLE
        )
        self.projection = w.Dropdown(
            options=list(PARTS), value=projection_of(projection), description="projection", layout=WIDE, style=STYLE
        )
        self.order = w.Dropdown(options=ORDERS, description="order", layout=WIDE, style=STYLE)
        self.text = w.Textarea(
            text if isinstance(text, str) else DEFAULT_TEXT,
            description="text",
            layout=w.Layout(width="100%", height="64px"),
            style=STYLE,
        )
        self.start = w.Button(description="Use this text", icon="refresh")
        self.message = w.HTML()
        self.areas = w.Output(), w.Output()
        for control in (self.layer, self.projection, self.order):
            control.observe(lambda _: self.draw(), "value")
        self.start.on_click(lambda _: self.read())
        self.draw()
        row = w.HBox([self.start, self.message])
        super().__init__([w.HBox([self.layer, self.projection]), self.order, self.text, row, *self.areas])

    def draw(self) -> None:
        """Draws both figures for what is picked."""
        layer, projection, text = self.layer.value, self.projection.value, self._activations
        put(self.areas[0], outliers(self._model, layer, projection, self._quantized, text, self.order.value))
        put(self.areas[1], error_by_alpha(self._model, layer, projection, text=text))

    def read(self) -> None:
        """Runs the model over the text on the panel; what is wrong with it is said beside the button."""
        self.message.value = "reading …"
        try:
            self._activations = capture(self._model, self.text.value)
            self.draw()
            self.message.value = ""
        except QuasarError as error:
            self.message.value = note(error)


def outlier_explorer(
    model: Decoder,
    quantized: Decoder | None = None,
    *,
    layer: int = 11,
    projection: str = "down_proj",
    text: Prompt | Activations | None = None,
    interactive: bool = True,
) -> OutlierExplorer | go.Figure:
    """The explorer; static: `figures.outliers` of one layer and projection."""
    if enabled(interactive):
        return OutlierExplorer(model, quantized, layer, projection, DEFAULT_TEXT if text is None else text)
    return outliers(model, layer, projection, quantized, text)
