"""Whether panels are live or static, decided in one place; how a figure gets into an output area; and what is shown of
a panel where no widget can be."""

import os

import ipywidgets

from quasar_lab.figures.plot import Plot
from quasar_lab.support.result import Json

HEADLESS = "QUASAR_HEADLESS"
"""The environment variable that turns every panel off when it is 1."""


def enabled(interactive: bool) -> bool:
    """Whether panels are live: what the notebook's `interactive` says, but never with QUASAR_HEADLESS=1."""
    return interactive and os.environ.get(HEADLESS) != "1"


HINT = (
    "No widgets are shown here, so this panel has no controls: install ipywidgets and anywidget in the Python that "
    "runs Jupyter, then reload the page."
)


def with_static_view(live: Json, title: str, html: str = "", figure: ipywidgets.Output | None = None) -> Json:
    """The forms of a panel for every front end: `live`, the widget's own, and for those that show no widgets the static
    view with a hint. html: the static view. figure: an area that holds it."""
    shown = dict(figure.outputs[0]["data"]) if figure is not None and figure.outputs else {}
    said = f"<p>{HINT}</p>"
    return {**shown, **live, "text/html": f"{said}{html}", "text/plain": f"{title}. {HINT}"}


def put(area: ipywidgets.Output, figure: Plot) -> None:
    """Shows a figure in an output area, in place of what was there.

    The content of the area is set and not displayed, because a display from a callback may appear below another cell. A
    `FigureWidget` would store 5 MB of script in the notebook.
    """
    area.outputs = tuple({"output_type": "display_data", "data": data, "metadata": {}} for data in figure.outputs())
