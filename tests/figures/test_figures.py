"""Figures show the numbers they claim to show, say where these come from, and keep token text from becoming markup."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch
from quasar_kernels.reference import apply_transform

from quasar_lab import figures
from quasar_lab.evaluation.linear_view import smoothing_factors
from quasar_lab.figures.style import visible
from quasar_lab.quantization.layer_error import output_error
from quasar_lab.quantization.smoothing import smoothquant_factors
from quasar_lab.speculative.generation import generate
from quasar_lab.speculative.trace import Prefill, Round, Trace
from quasar_lab.support.errors import InputError

IDS = [3, 17, 5, 80, 41, 5, 80, 2]
HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "&lt;b&gt;", "<!--")


def make_round(index, pieces, states, emitted, *, source=None, u=None, other=None):
    drafted, accepted = len(pieces), states.count("accepted")
    emitted_states = ["accepted"] * accepted
    emitted_states += ["bonus" if drafted and accepted == drafted else "corrected" if drafted else "plain"]
    rows = drafted + 1
    return Round(
        index=index,
        position=4 + index,
        draft_ids=list(range(drafted)),
        draft_pieces=pieces,
        parents=None,
        source=source,
        q=[1.0] * drafted,
        p=[0.5] * drafted,
        u=[None] * drafted if u is None else u,
        states=states,
        emitted_ids=list(range(len(emitted))),
        emitted_pieces=emitted,
        emitted_states=emitted_states[: len(emitted)],
        top=[[[token, piece, 0.2] for token, piece in enumerate(("a", *HOSTILE))] for _ in range(rows)],
        margin=[1.5] * rows,
        ms={"draft": 1.0, "verify": 8.0 + index, "sample": 0.5, "host": 0.5},
        other=other,
    )


@pytest.fixture
def trace():
    """Three rounds: nothing drafted, two of three accepted, all accepted; hostile texts everywhere."""
    header = {
        "schema": "quasar-trace/1",
        "kind": "header",
        "model": "<b>model</b>",
        "checksum": "",
        "recipe": "w8a8",
        "verifier": "w8a8",
        "drafter": "ngram",
        "gamma": 3,
        "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0},
        "device": "cpu",
        "backend": "reference",
        "versions": {},
        "prompt_ids": [1, 2, 3],
        "prompt_pieces": ["Say", HOSTILE[0], HOSTILE[1]],
        "prompt_text": HOSTILE[1],
        "started": "2026-01-01T00:00:00+00:00",
    }
    source = {"type": "ngram", "start": 1, "length": 2, "region": "prompt", "matched": 1}
    rounds = [
        make_round(0, [], [], [HOSTILE[1]]),
        make_round(1, ["a", "b", HOSTILE[0]], ["accepted", "accepted", "rejected"], ["a", "b", "c"], source=source),
        make_round(2, ["x", "y"], ["accepted", "accepted"], ["x", "y", "\n"], source=source),
    ]
    return Trace(header, Prefill([9], [HOSTILE[3]], rounds[0].top[:1], [1.0], 5.0), rounds)


def stamp_of(figure):
    return next(a.text for a in figure.layout.annotations if a.name == "stamp")


def named(figure, name):
    return [data for data in figure.data if data.name == name]


def test_outliers_shows_the_first_token_apart_and_divides_by_the_factors(tiny):
    activations = figures.capture(tiny, IDS)
    figure = figures.outliers(tiny, 1, "down_proj", text=activations)
    x = activations.at(1, "down_proj").abs()
    weight = tiny.checkpoint.projection(1, "down_proj")[0]
    factors = smoothquant_factors(x.amax(dim=0), weight.abs().amax(dim=0).float(), 0.5)
    for panel, values in enumerate((x, x / factors)):
        rest, first = figure.data[2 * panel], figure.data[2 * panel + 1]
        assert "over the other tokens" in rest.name
        assert "first token" in first.name
        torch.testing.assert_close(torch.tensor(rest.y), values[1:].amax(dim=0).clamp(min=1e-4))
        torch.testing.assert_close(torch.tensor(first.y), values[0].clamp(min=1e-4))
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range
    assert 10 ** figure.layout.yaxis.range[0] < min(min(data.y) for data in figure.data)
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert f"median {float(x.amax(dim=0).median()):.3g}" in texts
    assert any(f"max {float(x.max()):.4g}<br>channel {int(x.amax(dim=0).argmax())}, token" in text for text in texts)


def test_outliers_sorted_and_by_channel_hold_the_same_values(tiny):
    activations = figures.capture(tiny, IDS)
    plain = figures.outliers(tiny, 0, "q_proj", text=activations)
    ordered = figures.outliers(tiny, 0, "q_proj", text=activations, order="sorted")
    assert sorted(plain.data[0].y) == sorted(ordered.data[0].y)
    channels = [channel for channel, *_ in ordered.data[0].customdata]
    assert [plain.data[0].y[channel] for channel in channels] == list(ordered.data[0].y)
    largest = activations.at(0, "qkv_proj").abs().amax(dim=0)[channels]
    assert bool((largest.diff() <= 0).all())
    assert ordered.layout.xaxis2.title.text == "same order"
    assert plain.layout.xaxis.title.text == plain.layout.xaxis2.title.text == "input channel"


def test_outliers_shows_what_a_quantized_model_rounds(embedded, w8a8):
    """The first layer sees the same input in both models; what its INT8 linear rounds is what is drawn."""
    activations = figures.capture(embedded, IDS)
    rounded = []
    w8a8.forward(IDS, w8a8.new_cache(), taps=lambda *tap: rounded.append(tap))
    (x,) = [x for layer, projection, x in rounded if (layer, projection) == (0, "qkv_proj")]
    transform = w8a8.layers[0].qkv_proj.transform
    figure = figures.outliers(embedded, 0, "qkv_proj", w8a8, activations)
    expected = apply_transform(x, transform)[0].abs().clamp(min=1e-4)
    torch.testing.assert_close(torch.tensor(figure.data[3].y), expected, rtol=1e-3, atol=1e-4)
    assert "mapped as in w8a8" in stamp_of(figure)
    assert figure.layout.xaxis2.title.text == "rotated channel"
    assert "(x / s) R" in figure.layout.annotations[1].text


def test_outliers_of_one_token_and_of_a_channel_of_zeros(tiny):
    activations = figures.capture(tiny, IDS[:1])
    activations.inputs[0, "down_proj"][:, 3] = 0.0
    figure = figures.outliers(tiny, 0, "down_proj", text=activations)
    assert [data.name.split(" “")[0] for data in figure.data] == ["first token", "first token"]
    assert min(figure.data[0].y) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda tiny: figures.outliers(tiny, 2, "down_proj", text=IDS), "accepted: layers 0…1"),
        (lambda tiny: figures.outliers(tiny, 0, "down_proj", text=IDS, order="up"), "accepted: channel, sorted"),
        (lambda tiny: figures.error_by_alpha(tiny, 0, "down_proj", text=IDS[:1]), "at least two"),
        (lambda tiny: figures.capture(tiny, []), "empty"),
    ],
)
def test_what_cannot_be_drawn_is_said(tiny, call, said):
    with pytest.raises(InputError, match=re.escape(said)):
        call(tiny)


def test_activations_of_a_quantized_model_are_refused(w8a8):
    with pytest.raises(InputError, match="the BF16 model"):
        figures.capture(w8a8, IDS)


def test_model_map_drops_the_first_token_in_the_lower_map(tiny):
    activations = figures.capture(tiny, IDS)
    above, below = figures.model_map(tiny, activations).data
    for row, name in enumerate(above.y):
        for layer in (0, 1):
            x = activations.at(layer, name).abs()
            for data, values in ((above, x), (below, x[1:])):
                largest = values.amax(dim=0)
                assert data.customdata[row][layer] == pytest.approx(float(largest.max() / largest.median()))


def test_error_by_alpha_measures_both_groups_with_the_same_factors(tiny):
    activations = figures.capture(tiny, IDS)
    figure = figures.error_by_alpha(tiny, 1, "o_proj", alphas=(0.0, 0.4, 1.0), text=activations)
    x, weight = activations.at(1, "o_proj"), tiny.checkpoint.projection(1, "o_proj")[0]
    for curve, rows in zip(named(figure, "both rounded"), (x, x[1:]), strict=True):
        expected = [
            100 * output_error(rows, weight, smoothing_factors(tiny, "o_proj", x, weight, alpha))
            for alpha in (0.0, 0.4, 1.0)
        ]
        assert list(curve.y) == pytest.approx(expected, rel=1e-4)
    titles = [annotation.text for annotation in figure.layout.annotations]
    assert titles[:2] == ["all tokens", "without the first token"]


def test_error_by_alpha_writes_the_numbers_of_a_log_axis_in_full(tiny):
    activations = figures.capture(tiny, IDS)
    activations.inputs[1, "o_proj"][0, 3] = 1e4
    figure = figures.error_by_alpha(tiny, 1, "o_proj", alphas=(0.0, 0.5, 1.0), text=activations)
    assert figure.layout.yaxis.type == "log"
    assert {"0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"} <= set(figure.layout.yaxis.ticktext)
    assert [float(text) for text in figure.layout.yaxis.ticktext] == pytest.approx(list(figure.layout.yaxis.tickvals))
    weight = tiny.checkpoint.projection(1, "o_proj")[0]
    for line, start in zip(named(figure, "both rounded, no smoothing"), (0, 1), strict=True):
        plain = 100 * output_error(activations.at(1, "o_proj")[start:], weight)
        assert list(line.y) == pytest.approx([plain, plain], rel=1e-4)


def test_acceptance_counts_empty_rounds_apart(trace):
    figure = figures.acceptance(trace)
    (drafted,), (empty,) = named(figure, "something was drafted"), named(figure, "nothing was drafted")
    assert list(drafted.y) == [0, 0, 2, 0]
    assert list(empty.y) == [1, 0, 0, 0]
    survival = figure.data[2]
    assert list(survival.y) == [1.0, 1.0, 0.0]
    assert list(survival.customdata) == [2, 2, 1]
    assert "τ = 2.33" in figure.layout.title.subtitle.text


def test_acceptance_without_rounds_or_drafts(tiny):
    trace = generate(tiny, IDS, drafter="none", max_new_tokens=1)
    figure = figures.acceptance(trace)
    assert "no rounds" in figure.layout.title.subtitle.text
    assert [data.type for data in figure.data] == ["bar", "bar"]  # no survival where nothing was drafted
    assert figures.round_breakdown(trace).data[0].y == ()


def test_figures_are_stamped_and_their_texts_escaped(trace):
    for figure in (figures.acceptance(trace), figures.round_breakdown(trace)):
        assert stamp_of(figure).startswith("&lt;b&gt;model&lt;/b&gt; · w8a8 · cpu / reference backend")
    assert "not a speed measurement" in stamp_of(figures.round_breakdown(trace))


class Tags(HTMLParser):
    """Tags of a document, and the text of its JSON block, as a browser finds them."""

    def __init__(self):
        super().__init__()
        self.tags, self.json, self._in_json = [], "", False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._in_json = tag == "script" and ("type", "application/json") in attrs

    def handle_endtag(self, tag):
        self._in_json = False

    def handle_data(self, data):
        if self._in_json:
            self.json += data


def test_strip_carries_the_whole_trace_and_no_token_becomes_markup(trace):
    page = Tags()
    page.feed(str(figures.token_strip(trace)))
    assert sorted(page.tags) == ["div", "div", "p", "script", "script", "style"]
    assert json.loads(page.json) == json.loads(json.dumps(list(trace.records())))
    assert "<" not in page.json


def test_strip_script_puts_no_text_in_as_markup(trace):
    from quasar_lab.figures.strip import asset, script

    text = re.sub(r"//.*", "", script())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert "</script" not in text
    for state in ("accepted", "rejected", "corrected", "bonus", "provisional", "retracted"):
        assert re.search(rf"\.qs-is-{state} ", asset("strip.css"))
        assert f'"{state}":' in text


def test_strip_asks_nothing_from_outside(trace):
    text = figures.token_strip(trace).page().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|src=\"|@import|url\(", text)


def test_strip_shows_in_notebooks_and_makes_a_page(trace):
    strip = figures.token_strip(trace)
    assert strip._repr_html_() == str(strip)
    page = Tags()
    page.feed(strip.page())
    assert page.tags.count("title") == 1
    assert "b" not in page.tags


def test_whitespace_is_visible():
    assert visible(" a\n\tb\r") == "␣a⏎⇥b␍"
    assert visible("") == "∅"
