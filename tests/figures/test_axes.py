"""Bars begin at zero, and an axis under a slider stands still."""

import pytest
from gallery import answers, flat_figures, recipes

from quasar_lab import figures, widgets
from quasar_lab.figures.plot import MIME


def bars_of(figure):
    """(axis, trace) of every bar."""
    for trace in figure.data:
        if trace.type == "bar":
            along = trace.xaxis if trace.orientation == "h" else trace.yaxis
            name = along or ("x" if trace.orientation == "h" else "y")
            yield figure.layout[f"{name[0]}axis{name[1:]}"], trace


def test_bars_begin_at_zero(tiny):
    seen = 0
    for name, figure in flat_figures(tiny).items():
        for axis, _ in bars_of(figure):
            seen += 1
            low, high = axis.range or (0, 1)
            assert low <= 0 < high, name
    assert seen > 8


def test_shares_of_recipes_begin_at_zero_however_alike_they_are():
    figure = figures.frontier(recipes())
    assert figure.layout.xaxis2.range[0] == 0


@pytest.mark.parametrize("settings", [(1, 1), (4, 3), (16, 1), (16, 16)])
def test_the_axis_of_tau_stands_still_under_the_sliders(monkeypatch, settings):
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)
    panel = widgets.drafter_explorer(answers(), {"model": "m", "device": "cpu", "backend": "cpu"})

    def span():
        return panel.area.outputs[0]["data"][MIME]["layout"]["xaxis"]["range"]

    before = span()
    panel.gamma.value, panel.longest.value = settings
    assert span() == before
