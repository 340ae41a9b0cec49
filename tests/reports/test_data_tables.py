"""The numbers behind figures: every kind gives a table, large ones are cut or told in short, text stays text."""

import json
import re

import nbformat
import numpy as np
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from quasar_lab.reports.data_tables import COLUMNS, ROWS, data_table, describe, numbers
from quasar_lab.reports.page import notebook_page


def as_json(figure):
    """As a notebook stores it, arrays packed."""
    return json.loads(figure.to_json())


def cells(table):
    return re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", table)


def test_traces_over_the_same_places_share_a_table():
    figure = go.Figure(
        [
            go.Bar(x=["a", "b"], y=np.array([1.25, 2.0]), name="<b>one</b>"),
            go.Scatter(x=["a", "b"], y=[3, None], name="two", error_y={"array": [0.1, 0.2], "arrayminus": [0.3, 0.4]}),
        ],
        {"xaxis": {"title": {"text": "kind"}}, "yaxis": {"title": {"text": "ms"}}},
    )
    table = data_table(as_json(figure))
    assert cells(table) == [
        *("kind", "one", "two", "two −", "two +"),
        *("a", "1.25", "3", "0.3", "0.1"),
        *("b", "2", "–", "0.4", "0.2"),
    ]
    assert "ms by kind" in table


def test_lying_bars_and_panels_apart():
    figure = go.Figure([go.Bar(y=["a"], x=[5], orientation="h"), go.Scatter(x=[1], y=[2], xaxis="x2", yaxis="y2")])
    table = data_table(as_json(figure))
    assert table.count("<table>") == 2
    assert cells(table)[2:4] == ["a", "5"]


def test_long_tables_are_cut_and_say_so():
    table = data_table(as_json(go.Figure(go.Scatter(y=np.arange(1000.0)))))
    assert table.count("<tr>") == ROWS + 1
    assert f"the first {ROWS} of 1000 places; over all of them y 0 to 999" in table
    wide = go.Figure([go.Scatter(x=[0], y=[place], name=f"t{place}") for place in range(COLUMNS + 3)])
    assert "3 more columns left out" in data_table(as_json(wide))


@pytest.mark.parametrize("kind", [go.Heatmap, go.Surface])
def test_maps_are_listed_when_small_and_told_when_large(kind):
    small = data_table(as_json(go.Figure(kind(z=[[1, 2], [3, None]], x=["p", "q"], y=["u", "v"]))))
    assert cells(small) == ["", "p", "q", "u", "1", "2", "v", "3", "–"]
    heights = np.zeros((50, 60))
    heights[7, 9] = 12.5
    large = data_table(as_json(go.Figure(kind(z=heights))))
    assert {"50 × 60", "12.5", "7, 9"} <= set(cells(large))
    assert large.count("<tr>") == 6


def test_hidden_traces_and_figures_without_numbers_have_no_table():
    assert data_table(as_json(go.Figure())) == ""
    assert data_table(as_json(go.Figure(go.Scatter(y=[1], visible=False)))) == ""
    assert data_table(as_json(go.Figure(go.Surface(z=[[None]])))) == ""


def test_packed_arrays_are_read():
    packed = as_json(go.Figure(go.Heatmap(z=np.array([[1, 2], [3, 4]], dtype=np.uint8))))["data"][0]["z"]
    assert "bdata" in packed
    assert numbers(packed).tolist() == [[1, 2], [3, 4]]


def test_text_of_a_model_stays_text():
    figure = as_json(go.Figure(go.Bar(x=["&lt;img src=x&gt;", "</table><script>"], y=[1, 2], name='"><script>')))
    table = data_table(figure)
    assert "<script" not in table
    assert "&lt;img src=x&gt;" in table
    assert describe(figure) == "figure"


def test_alternative_text_says_title_subtitle_and_what_is_drawn():
    figure = go.Figure([go.Scatter(y=[1], name=f"t{place}") for place in range(10)])
    figure.update_layout(title={"text": "<b>Time</b>", "subtitle": {"text": "of &lt;it&gt;"}})
    said = describe(as_json(figure))
    assert said.startswith("Time — of <it> — Shown: t0, t1")
    assert said.endswith("and 2 more.")


def test_frames_reach_the_page():
    figure = go.Figure(go.Scatter(y=[1]), frames=[go.Frame(name=str(place), data=[{"y": [place]}]) for place in (1, 2)])
    cell = new_code_cell("figure")
    bundle = {"application/vnd.plotly.v1+json": as_json(figure)}
    cell.outputs = [nbformat.from_dict({"output_type": "display_data", "metadata": {}, "data": bundle})]
    page = notebook_page(new_notebook(cells=[cell]), "t", "plotly.min.js")
    (drawn,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert [frame["name"] for frame in json.loads(drawn)["frames"]] == ["1", "2"]
    assert "2 more views of this figure" in page
