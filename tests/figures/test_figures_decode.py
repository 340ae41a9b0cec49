"""Figures and the table of whole answers, and of what audits cost: they show what they were given, and escape names."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from toys import Letters, toy_pair

import quasar_lab as ql
from quasar_lab import figures
from quasar_lab.evaluation.audit_cost import AuditCost, MeasuredLength, predict
from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.speedup_table import SpeedupRow
from quasar_lab.evaluation.timed_answer import Arm
from quasar_lab.support.errors import InputError

HOSTILE = "<img src=x onerror=alert(1)>"
RESULTS = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results"
SETTINGS = {"gamma": 4, "max_new_tokens": 32, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}


def row_of(verifier, drafter, category, speedup):
    row = SpeedupRow(
        verifier,
        drafter,
        category,
        prompts=3,
        new_tokens=90,
        rounds=70,
        drafted=40,
        mean_acceptance_length=1.3,
        tokens_per_second=90.0,
        ms_per_round=14.0,
    )
    if speedup is None:
        return replace(row, mean_acceptance_length=None, tokens_per_second=None, ms_per_round=None)
    return replace(
        row,
        speedup=speedup,
        speedup_low=speedup - 0.1,
        speedup_high=speedup + 0.2,
        predicted_speedup=speedup + 0.05,
        step_factor=1.5,
        acceptance_factor=1.25,
        other_factor=0.8,
    )


def result_of(rows, baseline, backend="cpu"):
    origin = Origin(model="<m>", device="cpu", backend=backend, threads=2)
    return DecodeResult(rows, Arm(*baseline), True, SETTINGS, {}, origin)


@pytest.fixture
def table():
    """A 2×2 over two categories; one category has no speedup."""
    arms = [("bf16", "none", 1.0), ("bf16", "ngram", 1.2), ("w8a8", "none", 1.6), ("w8a8", "ngram", 1.5)]
    rows = [row_of(v, d, c, s) for v, d, s in arms for c in ("maths", "mean")]
    return result_of([*rows, row_of("w8a8", "ngram", "silent", None)], ("bf16", "none"))


def subtitle_of(figure):
    return figure.layout.title.subtitle.text.replace("<br>", " ")


def stamp_of(figure):
    return next(a.text for a in figure.layout.annotations if a.name == "stamp")


def named(figure, name):
    return next(data for data in figure.data if data.name == name)


def test_speedup_shows_every_arm_but_the_baseline_with_its_interval_and_prediction(table):
    figure = figures.speedup(table)
    measured, predicted = figure.data[::2], figure.data[1::2]
    assert [trace.name for trace in measured] == ["bf16 + ngram", "w8a8", "w8a8 + ngram"]
    assert list(measured[2].x) == ["maths", "geometric mean"]
    assert list(measured[2].y) == [1.5, 1.5]
    assert list(measured[2].error_y.array) == pytest.approx([0.2, 0.2])
    assert list(measured[2].error_y.arrayminus) == pytest.approx([0.1, 0.1])
    assert list(predicted[2].y) == pytest.approx([1.55, 1.55])
    assert "&lt;m&gt;" in figure.to_json()


def test_speedup_factors_add_up_on_their_axis(table):
    figure = figures.speedup_factors(table, "w8a8", "ngram")
    assert sum(bar.x[0] for bar in figure.data) == pytest.approx(math.log2(1.5))
    assert [bar.text[0] for bar in figure.data] == ["1.50", "1.25", "0.80"]
    assert "geometric mean 1.50 ×" in subtitle_of(figure)


def test_predicted_against_measured_has_a_point_per_arm_and_category_beside_the_diagonal(table):
    figure = figures.predicted_speedup(table)
    assert [data.name for data in figure.data] == ["measured = predicted", "bf16 + ngram", "w8a8", "w8a8 + ngram"]
    diagonal, *_, points = figure.data
    assert list(diagonal.x) == list(diagonal.y)
    assert list(points.x) == pytest.approx([1.55, 1.55])
    assert list(points.y) == [1.5, 1.5]
    assert list(points.marker.symbol) == ["circle", "diamond"]
    assert [row[0] for row in points.customdata] == ["maths", "geometric mean"]
    assert "furthest from the diagonal: bf16 + ngram, maths, -4%" in subtitle_of(figure)
    unpredicted = replace(table, runs=[replace(row, predicted_speedup=None) for row in table.runs])
    with pytest.raises(InputError, match="nothing is predicted"):
        figures.predicted_speedup(unpredicted)


def test_a_saved_document_is_drawn_as_the_result_that_it_is_of(table):
    document = json.loads(json.dumps(table.to_json()))
    for draw in (figures.speedup, figures.predicted_speedup):
        assert draw(document).to_json() == draw(table).to_json()
    factors = [figures.speedup_factors(each, "w8a8", "ngram").to_json() for each in (document, table)]
    assert factors[0] == factors[1]
    assert str(figures.paper_table([document])) == str(figures.paper_table([table]))
    assert "saved results of" in stamp_of(figures.speedup({**document, "saved": True}))


def test_names_that_others_chose_are_no_markup(table):
    def hostile(name):
        return HOSTILE if name in ("w8a8", "ngram", "maths") else name

    rows = [
        replace(row, verifier=hostile(row.verifier), drafter=hostile(row.drafter), category=hostile(row.category))
        for row in table.runs
    ]
    result = replace(table, runs=rows)
    drawn = [
        figures.speedup(result),
        figures.speedup_factors(result, HOSTILE, HOSTILE),
        figures.predicted_speedup(result),
    ]
    for figure in drawn:
        text = json.dumps(figure.to_plotly_json(), default=str)
        assert "&lt;img" in text
        assert "<img" not in text
    assert "<img" not in str(figures.paper_table([result]))


def test_the_papers_table_has_the_whole_two_by_two_with_intervals():
    results = [json.loads((RESULTS / f"decode-cpu-t{t}.json").read_text()) for t in ("0", "1")]
    table = str(figures.paper_table(results))
    assert table.count("<tbody>") == 2
    for arm in ("bf16", "w8a8"):
        assert table.count(f">{arm}</th>") == 4
    mean = DecodeResult.from_json(results[0]).row("w8a8", "ngram", "mean")
    assert f"<b>{mean.speedup:.2f} ×</b>" in table
    assert f"{mean.speedup_low:.2f}–{mean.speedup_high:.2f}" in table
    assert f"τ {mean.tau:.2f}" in table
    assert table.count("baseline") == 2 * 7  # of itself it has no interval
    assert table.count('"><b>') == 2 * 7, "one speedup a column and temperature is the best"


def test_one_question_has_no_interval_and_names_are_escaped():
    alone = replace(row_of("<b>", "none", "<i>", 1.0), speedup_low=1.0, speedup_high=1.0)
    other = replace(row_of("<b>", "ngram", "<i>", 2.0), speedup_low=2.0, speedup_high=2.0)
    missing = row_of("<b>", "none", "mean", None)
    table = str(figures.paper_table([result_of([alone, other, missing], ("<b>", "none"), "reference")]))
    assert "no interval" in table
    assert "not a speed measurement" in table
    assert "&lt;b&gt;" in table
    assert "<i>" not in table
    assert ">–</td>" in table


# What audits cost


def test_audit_cost_shows_both_curves_the_points_and_the_choice():
    pair = toy_pair(0.5)
    pair.exact.tokenizer = pair.fast.tokenizer = Letters()
    prompts = [[a, 2] for a in range(8)]
    runs = [ql.generate(pair, prompt, max_new_tokens=30) for prompt in prompts]
    found = AuditCost(
        measured=[MeasuredLength(length, 1.2, 1.1, 1.5, 5.5, 8) for length in (4, None)],
        prompts=8,
        drafter="ngram",
        gamma=4,
        max_new_tokens=30,
        step_ms={},
        verifier="fast+toy",
        base="toy",
        forecast=predict(pair, [ql.generate(pair.exact, prompt, max_new_tokens=30) for prompt in prompts], runs),
        origin=Origin(model=HOSTILE, device="cpu", backend="reference"),
    )
    figure = figures.audit_cost(found)
    curve = named(figure, f"predicted, {found.forecast.flip_rate:.1%} refused")
    assert curve.x[curve.y.index(max(curve.y))] == found.forecast.chosen
    assert (list(named(figure, "measured").x), list(named(figure, "measured, L adapts").x)) == ([4], [5.5])
    assert list(named(figure, "measured").error_y.array) == pytest.approx([0.3])
    assert [shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1] == [found.forecast.chosen]
    assert "not a speed measurement" in stamp_of(figure)
    assert "16 of 16 answers equal those of toy" in figure.layout.title.subtitle.text
    assert not re.findall(r"<(?:img|script)", json.dumps(figure.to_plotly_json(), default=list))
