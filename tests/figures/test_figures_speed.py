"""Figures of speed show the numbers they claim to show, say where these come from, and cannot be made markup."""

import itertools
import json
import re
from html import unescape

import numpy as np
import plotly.graph_objects as go
import pytest
from safetensors.torch import save_file

from quasar_lab import figures
from quasar_lab.evaluation import pass_profile, pass_time
from quasar_lab.evaluation.speedup_model import equivalent_alpha, expected_tokens, speedups
from quasar_lab.figures.style import full_ticks, wrapped
from quasar_lab.quantization import saved_model
from quasar_lab.speculative.trace import Prefill, Round, Trace
from quasar_lab.support.errors import InputError

HOSTILE = "<img src=x onerror=alert(1)>"
DRAFTS = [0, 3, 2]
"""Drafted tokens of the rounds of `trace`; of the three two are accepted, of the two both."""


def make_round(index, drafted, accepted):
    emitted = accepted + 1
    return Round(
        index=index,
        position=4 + index,
        draft_ids=list(range(drafted)),
        draft_pieces=[HOSTILE] * drafted,
        parents=None,
        source=None,
        q=[1.0] * drafted,
        p=[0.5] * drafted,
        u=[None] * drafted,
        states=["accepted"] * accepted + ["rejected"] * (drafted - accepted),
        emitted_ids=list(range(emitted)),
        emitted_pieces=["a"] * emitted,
        emitted_states=["accepted"] * accepted + ["plain"],
        top=[[[0, "a", 0.2]] for _ in range(drafted + 1)],
        margin=[1.5] * (drafted + 1),
        ms={"draft": 1.0, "verify": 8.0 + index, "sample": 0.5, "host": 0.5},
    )


@pytest.fixture
def trace():
    header = {
        "model": HOSTILE,
        "recipe": "w8a8",
        "verifier": "w8a8",
        "drafter": HOSTILE,
        "gamma": 3,
        "device": "cpu",
        "backend": "reference",
    }
    rounds = [make_round(0, 0, 0), make_round(1, 3, 2), make_round(2, 2, 2)]
    return Trace(header, Prefill([9], ["a"], rounds[0].top[:1], [1.0], 5.0), rounds)


@pytest.fixture(scope="module")
def tiny_w8a8(tiny, tmp_path_factory):
    """W8A8 of a model without a tokenizer."""
    folder = tmp_path_factory.mktemp("quantized")
    save_file(saved_model.quantized_tensors(tiny.checkpoint, {}), folder / "weights.safetensors")
    record = {"schema": saved_model.SCHEMA, "checksum": tiny.checkpoint.checksum, "model": "tiny"}
    (folder / "recipe.json").write_text(json.dumps(record))
    return saved_model.load_quantized(tiny, folder, "w8a8-plain")


def steps_of(names=("bf16", "w8a8"), widths=(4, 1)):
    """bf16: 20 + M ms and 200 MB; every further verifier half of it."""
    rows = []
    for place, name in enumerate(names):
        base = 20.0 / 2**place
        for width in widths:
            rows.append(
                {
                    "verifier": name,
                    "width": width,
                    "ms_p20": base - 1,
                    "ms_p50": base + width,
                    "ms_p80": base + 20,
                    "samples": 7,
                    "bytes": 2 * 10**8 // 2**place,
                    "operations": 3 * 10**8 * width,
                    "floor_ms": base / 2,
                    "fraction_of_floor": 0.5,
                }
            )
    ceilings = [
        {"verifier": name, "width": 128, "gop_s_p20": 40.0, "gop_s_p50": 50.0 * (1 + place), "gop_s_p80": 60.0}
        for place, name in enumerate(names)
    ]
    return {
        "bandwidth_gb_s": 20.0,
        "device": "cpu",
        "backend": "cpu",
        "threads": 2,
        "model": "m",
        "context": 8,
        "steps": rows,
        "ceilings": ceilings,
    }


@pytest.fixture
def parts():
    """Width → shares that differ, so that a test sees which width was taken."""
    shares = {
        1: {"products": 0.5, "attention": 0.25, "rounding": 0.125, "other": 0.125},
        4: {"products": 0.25, "attention": 0.25, "rounding": 0.25, "other": 0.25},
    }
    rows = [{"verifier": "w8a8", "width": width, "shares": share, "samples": 6} for width, share in shares.items()]
    return {"parts": rows, "model": "m", "device": "cpu", "backend": "cpu"}


def stamp_of(figure):
    return next(a.text for a in figure.layout.annotations if a.name == "stamp").replace("<br>", " · ")


def subtitle_of(figure):
    return figure.layout.title.subtitle.text.replace("<br>", " ")


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
    assert "not a speed measurement" in stamp_of(figures.step_time({**steps_of(), "backend": "reference"}))


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
    result["steps"] = [step for step in result["steps"] if (step["verifier"], step["width"]) != ("w8a8", 2)]
    assert [step.label for step in figures.step_time(result).layout.sliders[0].steps] == ["0", "3"]
    result["steps"] = [step for step in result["steps"] if (step["verifier"] == "w8a8") == (step["width"] == 1)]
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
        (roof,) = named(figure, f"{name}: roof")
        assert roof.x[1] == pytest.approx(ceiling / 20.0)
        assert list(roof.y[1:]) == [ceiling, ceiling]
        assert "open" in possible.marker.symbol
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert "20.0 GB/s" in subtitle_of(figure)


def test_roofline_says_that_an_older_result_lacks_what_it_needs():
    old = {key: value for key, value in steps_of().items() if key != "ceilings"}
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
    for row in parts["parts"]:
        row["verifier"] = "bf16"
    with pytest.raises(InputError, match="the parts are of bf16; accepted: of w8a8"):
        figures.round_breakdown(trace, parts)


def test_the_parts_of_an_audited_run_are_those_of_the_verifier_that_drafts_meet(trace, parts):
    trace.header["verifier"] = "w8a8+bf16"
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


@pytest.mark.parametrize("gamma", [1, 3, 7])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_expected_tokens_are_those_of_the_sum_over_what_can_happen(alpha, gamma):
    """k drafts accepted, then one refused: k + 1 tokens, with probability α^k (1 − α); all accepted: γ + 1."""
    exact = sum((k + 1) * alpha**k * (1 - alpha) for k in range(gamma)) + (gamma + 1) * alpha**gamma
    assert float(expected_tokens(alpha, gamma)) == pytest.approx(exact)


def test_expected_tokens_are_those_of_drawn_rounds():
    draws = np.random.default_rng(3).random((200_000, 5)) < 0.7
    tokens = 1 + np.cumprod(draws, axis=1).sum(axis=1)
    assert tokens.mean() == pytest.approx(float(expected_tokens(0.7, 5)), abs=0.02)


def test_equivalent_alpha_undoes_expected_tokens():
    for alpha in (0.05, 0.5, 0.95):
        assert equivalent_alpha(float(expected_tokens(alpha, 6)), 6) == pytest.approx(alpha, abs=1e-9)
    assert equivalent_alpha(1.0, 4) == pytest.approx(0.0, abs=1e-6)
    assert equivalent_alpha(5.0, 4) == pytest.approx(1.0, abs=1e-6)


def test_speedups_are_time_per_token_over_time_per_token():
    curve = {1: 5.0, 2: 6.0, 6: 10.0}
    values = speedups([0.0, 1.0], [1, 3], curve, base_ms=10.0, draft_ms=0.5, other_ms=1.0)
    assert values[0] == pytest.approx([11 / (6 + 0.5 + 1), 2 * 11 / (6 + 0.5 + 1)])
    assert values[1] == pytest.approx([11 / (8 + 1.5 + 1), 4 * 11 / (8 + 1.5 + 1)])  # width 4: between 2 and 6


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
    slow = steps_of(widths=(1, 8))
    for row in slow["steps"]:
        if row["width"] == 8:
            row["ms_p50"] = 1000.0
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


def test_names_that_others_chose_are_no_markup_in_any_figure(trace, parts):
    result = steps_of(("bf16", HOSTILE), widths=(1, 4))
    result["model"] = result["cpu"] = HOSTILE
    trace.header["verifier"] = HOSTILE
    for row in parts["parts"]:
        row["verifier"] = HOSTILE if row["verifier"] == "w8a8" else row["verifier"]
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
    here = {**steps_of(), "cpu": pass_time.cpu_name(), "date": "2026-01-02T03:04:05+00:00"}
    assert "saved results" not in stamp_of(figures.step_time(here))
    assert stamp_of(figures.step_time(here)).endswith(pass_time.cpu_name())
    elsewhere = {**here, "cpu": "Some <Other> CPU", "device": "cuda", "backend": "triton"}
    assert "<b>saved results of Some &lt;Other&gt; CPU, cuda</b>, 2026-01-02" in stamp_of(
        figures.step_time(elsewhere)
    ).replace(" · ", " ")
    file = tmp_path / "step.json"
    file.write_text(json.dumps(here))
    assert "saved results of" in stamp_of(figures.roofline(pass_time.read(file)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as a result"),
        ("[]", "is no result of a measurement"),
        ('{"steps": 3}', "is no result of a measurement"),
        ('{"steps": [], "model": "m"}', "lacks device, backend"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text, said):
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        pass_time.read(file)
    with pytest.raises(InputError, match="cannot be read"):
        pass_time.read(tmp_path / "none.json")


def test_lines_are_as_short_as_asked_and_lose_nothing():
    text = "a &lt;tag&gt; · " + " · ".join(f"part {number}" for number in range(9)) + " · " + "word " * 20 + "end"
    lines = wrapped(text, 24)
    assert all(len(unescape(line)) <= 24 for line in lines)
    assert re.sub(r"[ ·]+", " ", " ".join(lines)) == re.sub(r"[ ·]+", " ", text)
    assert wrapped("unbreakable" * 9, 24) == ["unbreakable" * 9]


# What they are measured by


def test_step_records_operations_and_ceilings_of_every_verifier(tiny, tiny_w8a8):
    result = pass_time.step([tiny, tiny_w8a8], [1, 3], context=4, samples=2)
    config = tiny.config
    attention = 4 * config.layers * config.heads * config.head_dim
    for row in result["steps"]:
        seen = sum(4 + place + 1 for place in range(row["width"]))
        assert row["operations"] == 2 * row["width"] * config.step_weights + attention * seen
    assert [row["verifier"] for row in result["ceilings"]] == ["bf16", tiny_w8a8.name]
    for row in result["ceilings"]:
        assert 0 < row["gop_s_p20"] <= row["gop_s_p50"] <= row["gop_s_p80"]
        assert row["samples"] == 2
    assert figures.roofline(result)


def test_parts_of_a_pass_are_shares_and_the_verifier_is_left_as_it_was(tiny, tiny_w8a8):
    before = tiny.ops
    found = pass_profile.measure([tiny, tiny_w8a8], [1, 3], context=4, samples=2)
    assert tiny.ops is before
    assert [(row["verifier"], row["width"]) for row in found["parts"]] == [
        ("bf16", 1),
        (tiny_w8a8.name, 1),
        ("bf16", 3),
        (tiny_w8a8.name, 3),
    ]
    for row in found["parts"]:
        assert set(row["shares"]) == {*pass_profile.GROUPS, "other"}
        assert all(share > 0 for share in row["shares"].values())
        assert sum(row["shares"].values()) == pytest.approx(1.0)
    with pytest.raises(InputError, match="widths in 1…"):
        pass_profile.measure([tiny], [0], context=4)


def test_every_op_of_a_pass_is_counted_once(tiny, monkeypatch):
    """On a clock that ticks once a reading, an op takes one tick and so does the way to the next."""
    ticks = itertools.count()
    monkeypatch.setattr(pass_profile.time, "perf_counter", lambda: next(ticks))
    (row,) = pass_profile.measure([tiny], [2], context=4, samples=1)["parts"]
    layers = tiny.config.layers
    expected = {"products": 4 * layers + 1, "attention": 2 * layers, "rounding": 3 * layers + 1}
    expected["other"] = sum(expected.values()) + 1
    assert row["shares"] == pytest.approx({part: n / sum(expected.values()) for part, n in expected.items()})
