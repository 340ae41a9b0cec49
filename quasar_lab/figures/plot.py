"""How a figure meets its reader: with no control that sends it anywhere, and in the colours of the reader's theme.

## Idea

plotly's toolbar offers to upload a chart to a company's service and carries a link to that company. A `Plot` takes
both away wherever it is shown: in JupyterLab, in a widget's output, in a report and in a page that `write_html` makes.

plotly writes colours into its drawing, so a white figure would stay white in a dark notebook. `plot.css` gives what is
paper, ink and line in a drawing the colours of the page around it, and leaves the colours that mean something. It is
CSS, so a figure follows when the reader changes the theme, without being drawn again. A notebook gets the sheet beside
every figure, because JupyterLab drops cells that are out of sight, and their sheets with them.

## What is lost

The text of a landscape is drawn by WebGL, where CSS does not reach: it has a grey that is legible on white and black.
Where a notebook's HTML is not trusted, the sheet is dropped and figures stay white.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go

from quasar_lab.support.result import Json

MIME = "application/vnd.plotly.v1+json"
"""JupyterLab's plotly extension draws this."""

CONFIG: Json = {
    "displaylogo": False,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d"],
}
"""plotly's configuration, in notebooks and on pages. It is not `responsive`: in JupyterLab, which resizes figures by
itself, such a figure loses its height at the first step of a slider."""

NEVER = ["sendChartToCloud"]
"""Buttons that a figure refuses by itself, also where somebody else's configuration shows it."""

LAB_DARK = '[data-jp-theme-light="false"]'
"""Inside this JupyterLab is dark."""


class Plot(go.Figure):
    """A plotly figure that sends nothing and follows the reader's theme."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.update_layout(modebar_remove=NEVER)

    def outputs(self) -> tuple[Json, Json]:
        """The two outputs of a notebook's cell, as MIME bundles: the figure, and the sheet that it follows."""
        drawn = {**json.loads(self.to_json()), "config": CONFIG}
        return {MIME: drawn, "text/plain": self.layout.title.text or "figure"}, theme_bundle()

    def show(self, *args: Any, **kwargs: Any) -> None:
        """As plotly's own, with our configuration."""
        super().show(*args, **{"config": CONFIG, **kwargs})

    def write_html(self, *args: Any, **kwargs: Any) -> None:
        """As plotly's own, with our configuration."""
        super().write_html(*args, **{"config": CONFIG, **kwargs})

    def to_html(self, *args: Any, **kwargs: Any) -> str:
        """As plotly's own, with our configuration."""
        return super().to_html(*args, **{"config": CONFIG, **kwargs})

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Json:
        return super()._repr_mimebundle_(*args, **{"config": CONFIG, **kwargs})

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self.show()  # plotly's own way here leaves the configuration out
        display(theme_bundle(), raw=True)


def theme_bundle() -> Json:
    """An output that shows nothing and brings `plot.css` to the figure above it."""
    return {"text/html": f"<style>{theme_sheet(LAB_DARK)}</style>", "text/plain": ""}


@cache
def theme_sheet(dark: str) -> str:
    """`plot.css` for figures inside what the CSS selector `dark` finds."""
    return (files("quasar_lab.figures") / "plot.css").read_text(encoding="utf-8").replace("DARK", dark)
