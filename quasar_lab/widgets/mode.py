"""Live or static, decided in one place; and putting a figure into an output area."""

import json
import os
from typing import Any

import ipywidgets
import plotly.graph_objects as go

HEADLESS = "QUASAR_HEADLESS"


def enabled(interactive: bool) -> bool:
    """Whether panels are live: the notebook's `interactive`, unless QUASAR_HEADLESS=1."""
    return interactive and os.environ.get(HEADLESS) != "1"


def put(area: ipywidgets.Output, figure: go.Figure) -> None:
    """Shows a figure in an output area, in place of what was there.

    The content is set, not displayed: `FigureWidget` would store 5 MB of script in the notebook, and a display from a
    callback may land in another cell.
    """
    data: dict[str, Any] = {
        "application/vnd.plotly.v1+json": json.loads(figure.to_json()),
        "text/plain": figure.layout.title.text or "figure",
    }
    area.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
