"""Figures of speed show the numbers they claim to show, say where these come from, and cannot be made markup."""

import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import plotly.graph_objects as go
import pytest
from speed_results import HOSTILE, changed_steps, profile_of, steps_of, trace_of

from quasar_lab import figures
from quasar_lab.evaluation import pass_time
from quasar_lab.evaluation.speedup_model import expected_tokens
from quasar_lab.figures.style import full_ticks, wrapped
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import cpu_name


@pytest.fixture
def trace():
    return trace_of()


@pytest.fixture
def parts():
    return profile_of()


def stamp_of(figure):
    return next(a.text for a in figure.layout.annotations if a.name == "stamp").replace("<br>", " · ")


def subtitle_of(figure):
    return figure.layout.title.subtitle.text.replace("<br>", " ")


def on_backend(result, backend):
    return replace(result, origin=replace(result.origin, backend=backend))


def named(figure, name):
    return [data for data in figure.data if data.name == name]


# Time of a pass


def test_step_time_has_bars_and_a_floor_for_each_verifier():
    figure = figures.step_time(steps_of())
    (curve,), (floor,) = named(figure, "w8a8"), named(figure, "floor of w8a8")
    assert list(curve.x) == [1, 4]
    assert list(curve.y) == [11.0, 14.0]
    assert list(curve.error_y.array) == [19.0, 16.0]
    assert list(curve.error_y.arrayminus) == [2.0, 5.0]
    assert list(floor.y) == [5.0, 5.0]
    assert "not a speed measurement" not in stamp_of(figure)
    assert stamp_of(figure) == "m · bf16, w8a8 · cpu / cpu backend · 2 threads · 7 samples"
    assert "not a speed measurement" in stamp_of(figures.step_time(on_backend(steps_of(), "reference")))


def test_the_slider_of_step_time_reads_off_every_width_without_python():
    """Each step, applied as the page's script applies it, moves the rings and says the numbers of its width."""
    result = steps_of(widths=(1, 2, 5))
    figure = figures.step_time(result)
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["0", "1", "4"]
    assert slider.active == 2  # γ = 4, or what lies nearest
    for step, width in zip(slider.steps, (1, 2, 5), strict=True):
        data, layout, (index,) = step.args
        moved = go.Figure(figure)
        moved.data[index].update(x=data["x"][0], y=data["y"][0])
        ((key, text),) = layout.items()
        note = int(re.fullmatch(r"annotations\[(\d+)\]\.text", key)[1])
        moved.layout.annotations[note].text = text
        assert moved.data[index].name == "at the slider"
        assert list(moved.data[index].x) == [width, width]
        assert list(moved.data[index].y) == [20.0 + width, 10.0 + width]
        (readout,) = [note.text for note in moved.layout.annotations if note.name == "readout"]
        assert f"γ = {width - 1}" in readout
        assert f"<b>{(20 + width) / (10 + width):.2f}</b>" in readout
        assert f"<b>{10 + width:.2f} ms</b>, 100 MB, floor 5.00 ms" in readout


def test_the_slider_holds_only_widths_that_every_verifier_was_timed_at():
    result = steps_of(widths=(1, 2, 4))
    result = changed_steps(result, lambda row: None if (row.verifier, row.width) == ("w8a8", 2) else row)
    assert [step.label for step in figures.step_time(result).layout.sliders[0].steps] == ["0", "3"]
    result = changed_steps(result, lambda row: row if (row.verifier == "w8a8") == (row.width == 1) else None)
    assert not figures.step_time(result).layout.sliders


# Roofline


def test_roofline_puts_points_under_roofs_that_were_measured():
    figure = figures.roofline(steps_of(widths=(1, 40)))
    for name, megabytes, ceiling in (("bf16", 200, 50.0), ("w8a8", 100, 100.0)):
        (possible,), (measured,) = named(figure, f"{name}: possible"), named(figure, f"{name}: measured")
        intensity = [300 * width / megabytes for width in (1, 40)]
        assert list(possible.x) == list(measured.x) == pytest.approx(intensity)
        assert list(possible.y) == pytest.approx([20.0 * intensity[0], ceiling])  # memory, then arithmetic
        base = 20.0 if name == "bf16" else 10.0
        assert list(measured.y) == pytest.approx([300 / (base + 1), 12000 / (base + 40)])
        low, high = measured.y[0] - measured.error_y.arrayminus[0], measured.y[0] + measured.error_y.array[0]
        assert (low, high) == pytest.approx((300 / (base + 20), 300 / (base - 1)))
        (roof,) = named(figure, f"{name}: roof, flat at {ceiling:.0f}")
        assert roof.x[1] == pytest.approx(ceiling / 20.0)
        assert list(roof.y[1:]) == [ceiling, ceiling]
        assert "open" in possible.marker.symbol
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert "20.0 GB/s" in subtitle_of(figure)


def test_roofline_says_that_an_older_result_lacks_what_it_needs():
    for old in (
        replace(steps_of(), ceilings=None),
        changed_steps(steps_of(), lambda row: replace(row, operations=None)),
    ):
        with pytest.raises(InputError, match="no operations and ceilings"):
            figures.roofline(old)


def test_ticks_of_log_axes_are_written_in_full():
    ticks = full_ticks(0.15, 60)
    assert ticks["ticktext"] == ["0.2", "0.5", "1", "2", "5", "10", "20", "50"]
    assert full_ticks(1, 1e5)["ticktext"] == ["1", "10", "100", "1,000", "10,000", "100,000"]


# Rounds


def test_round_breakdown_stacks_every_part(trace):
    figure = figures.round_breakdown(trace)
    assert [data.name for data in figure.data] == ["draft", "verify", "sample", "host", "tokens emitted"]
    assert list(figure.data[-1].text) == ["1", "3", "3"]
    assert list(figure.data[-1].y) == [10.0, 11.0, 12.0]
    assert "11.0 ms a round, 4.7 ms a token" in subtitle_of(figure)
    assert list(named(figure, "verify")[0].y) == [8.0, 9.0, 10.0]
    assert figure.layout.barmode == "stack"
    assert "estimate" not in subtitle_of(figure)
    assert "3 rounds" in stamp_of(figure)


def test_round_breakdown_splits_verify_by_the_nearest_width_and_says_it_is_an_estimate(trace, parts):
    figure = figures.round_breakdown(trace, parts)
    assert list(named(figure, "products")[0].y) == pytest.approx([4.0, 2.25, 2.5])  # widths 1, 4, 3
    bars = [data for data in figure.data if data.type == "bar"]
    assert np.sum([bar.y for bar in bars], axis=0) == pytest.approx([10.0, 11.0, 12.0])
    assert "by estimate: its ops timed one by one, 6 samples" in subtitle_of(figure)
    with pytest.raises(InputError, match="the parts are of bf16; accepted: of w8a8"):
        figures.round_breakdown(trace, profile_of("bf16"))


def test_the_parts_of_an_audited_run_are_those_of_the_verifier_that_drafts_meet(trace, parts):
    trace.header.update(verifier="w8a8+bf16", auditor="bf16")
    assert named(figures.round_breakdown(trace, parts), "products")


def test_mean_round_divides_by_rounds_and_by_tokens(trace, parts):
    figure = figures.mean_round([trace, trace], parts)
    bars = [data for data in figure.data if data.type == "bar"]
    assert sum(bar.x[1] for bar in bars) == pytest.approx(11.0)
    assert "<b>4.7</b> ms a token" in figure.data[-1].text[0]
    assert "τ = 2.33" in bars[0].y[0]
    trace.rounds.clear()
    with pytest.raises(InputError, match="no rounds"):
        figures.mean_round([trace])


# The map


def test_speedup_map_pins_the_run_twice(trace):
    result = steps_of(widths=(1, 4, 8))
    figure = figures.speedup_map(result, trace=trace)
    (pin,), (judged,) = named(figure, "this run, by its τ"), named(figure, "this run, by its judged drafts")
    assert float(expected_tokens(pin.x[0], 3)) == pytest.approx(7 / 3)
    assert judged.x[0] == pytest.approx(4 / 5)  # four accepted, one refused
    assert pin.y[0] == judged.y[0] == 3
    assert "drafting 0.60 ms a token, 1.00 ms a round besides" in subtitle_of(figure)
    surface = figure.data[0]
    assert list(surface.y) == [1, 2, 3, 4, 5, 6, 7]
    draft, other = 3 / 5, 1.0
    assert surface.z[2][100] == pytest.approx(4 * 22 / (14 + 3 * draft + other))
    worth = [tokens * 22 / (14 + 3 * draft + other) for tokens in (7 / 3, float(expected_tokens(0.8, 3)))]
    assert "by the map {:.2f} ×, without short drafts {:.2f} ×".format(*worth) in subtitle_of(figure)


def test_speedup_map_draws_break_even_where_it_is_and_says_where_it_is_not():
    figure = figures.speedup_map(steps_of(widths=(1, 8)))
    assert named(figure, "as fast as bf16, plain: everywhere faster")
    (line,) = [data for data in figure.data if data.name.startswith("as fast as w8a8, plain")]
    assert line.contours.start == line.contours.end == pytest.approx(21 / 11)
    slow = changed_steps(steps_of(widths=(1, 8)), lambda row: replace(row, ms_p50=1000.0) if row.width == 8 else row)
    assert named(figures.speedup_map(slow, "bf16", draft_ms=50.0), "as fast as bf16, plain: nowhere")


def test_speedup_map_says_what_it_cannot_pin_or_draw(trace):
    trace.header["gamma"] = 12
    figure = figures.speedup_map(steps_of(widths=(1, 4)), trace=trace)
    assert "this run (γ = 12) is not on the map" in subtitle_of(figure)
    with pytest.raises(InputError, match="'w4a8' was not timed"):
        figures.speedup_map(steps_of(), "w4a8")
    with pytest.raises(InputError, match="was not timed at width 1"):
        figures.speedup_map(steps_of(widths=(2, 4)))


# Where numbers come from


def test_names_that_others_chose_are_no_markup_in_any_figure(trace):
    result = steps_of(("bf16", HOSTILE), widths=(1, 4))
    result = replace(result, origin=replace(result.origin, model=HOSTILE, cpu=HOSTILE))
    trace.header["verifier"] = HOSTILE
    parts = profile_of(HOSTILE)
    drawn = [
        figures.step_time(result),
        figures.roofline(result),
        figures.speedup_map(result, HOSTILE, trace=trace),
        figures.round_breakdown(trace, parts),
        figures.mean_round([trace], parts),
    ]
    for figure in drawn:
        form = figure.to_plotly_json()
        for data in form["data"]:
            data.pop("legendgroup", None)  # a key, never shown
        text = json.dumps(form, default=str)
        assert "&lt;img" in text
        assert "<img" not in text


def test_results_of_another_machine_or_of_a_file_are_labelled(tmp_path):
    result = steps_of()
    moment = {"date": "2026-01-02T03:04:05+00:00", "versions": {}}
    here = replace(result, origin=replace(result.origin, cpu=cpu_name(), **moment))
    assert "saved results" not in stamp_of(figures.step_time(here))
    assert stamp_of(figures.step_time(here)).endswith(cpu_name())
    there = replace(here.origin, cpu="Some <Other> CPU", device="cuda", backend="triton")
    assert "<b>saved results of Some &lt;Other&gt; CPU, cuda</b>, 2026-01-02" in stamp_of(
        figures.step_time(replace(here, origin=there))
    ).replace(" · ", " ")
    file = tmp_path / "step.json"
    file.write_text(json.dumps(here.to_json()))
    assert "saved results of" in stamp_of(figures.roofline(pass_time.read(file)))


def test_a_figure_of_a_document_is_that_of_the_result(trace, parts):
    result = steps_of()
    document = json.loads(json.dumps(result.to_json()))
    for draw in (figures.step_time, figures.roofline, figures.speedup_map):
        assert draw(document) == draw(result)
    document = json.loads(json.dumps(parts.to_json()))
    assert figures.round_breakdown(trace, document) == figures.round_breakdown(trace, parts)
    assert figures.mean_round([trace], document) == figures.mean_round([trace], parts)


def test_lines_are_as_short_as_asked_and_lose_nothing():
    text = "a &lt;tag&gt; · " + " · ".join(f"part {number}" for number in range(9)) + " · " + "word " * 20 + "end"
    lines = wrapped(text, 24)
    assert all(len(unescape(line)) <= 24 for line in lines)
    assert re.sub(r"[ ·]+", " ", " ".join(lines)) == re.sub(r"[ ·]+", " ", text)
    assert wrapped("unbreakable" * 9, 24) == ["unbreakable" * 9]
