"""Wherever a figure is shown, no button sends it anywhere, and the sheet that follows the theme comes with it."""

import json

import plotly.io
import pytest
from speed_results import steps_of

from quasar_lab import figures
from quasar_lab.figures import plot
from quasar_lab.widgets.mode import put


class Area:
    outputs = ()


def in_a_widget(figure, shown):
    area = Area()
    put(area, figure)
    return [output["data"] for output in area.outputs]


def in_a_cell(figure, shown):
    figure._ipython_display_()
    return shown


@pytest.mark.parametrize("display", [in_a_cell, in_a_widget])
def test_a_notebook_gets_a_figure_without_the_upload_and_its_sheet(monkeypatch, display):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    drawn, sheet = display(figures.step_time(steps_of()), shown)
    config = drawn[plot.MIME]["config"]
    assert (config["showSendToCloud"], config["displaylogo"]) == (False, False)
    assert drawn[plot.MIME]["layout"]["modebar"]["remove"] == ["sendChartToCloud"]
    assert plot.LAB_DARK in sheet["text/html"]


def test_a_page_of_its_own_has_no_upload():
    page = figures.step_time(steps_of()).to_html(include_plotlyjs=False)
    assert '"showSendToCloud": false' in page
    assert '"displaylogo": false' in page


def test_every_public_figure_is_a_plot():
    """What a function returns is what a reader sees: a plain go.Figure would have the upload."""
    drawing = [getattr(figures, name) for name in figures.__all__]
    returned = {
        call.__name__: call.__annotations__.get("return") for call in drawing if hasattr(call, "__annotations__")
    }
    assert [name for name, kind in returned.items() if kind is not None and "Figure" in str(kind)] == []
    assert sum(kind is plot.Plot for kind in returned.values()) >= 18
    json.dumps(plot.CONFIG)
