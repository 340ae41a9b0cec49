"""Whether panels are live or static, decided in one place, and how a figure gets into an output area."""

import os

import ipywidgets

from quasar_lab.figures.plot import Plot

HEADLESS = "QUASAR_HEADLESS"
"""The environment variable that turns every panel off when it is 1."""


def enabled(interactive: bool) -> bool:
    """Whether panels are live: what the notebook's `interactive` says, but never with QUASAR_HEADLESS=1."""
    return interactive and os.environ.get(HEADLESS) != "1"


def put(area: ipywidgets.Output, figure: Plot) -> None:
    """Shows a figure in an output area, in place of what was there.

    The content of the area is set and not displayed, because a display from a callback may appear below another cell. A
    `FigureWidget` would store 5 MB of script in the notebook.
    """
    area.outputs = tuple({"output_type": "display_data", "data": data, "metadata": {}} for data in figure.outputs())
