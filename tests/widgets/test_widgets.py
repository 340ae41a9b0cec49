"""Panels: live or static by one rule; the live strip says every round once, in order, and stops when told."""

import threading

import pytest
from toys import toy_pair

from quasar_lab import audited, widgets
from quasar_lab.figures import StripHTML
from quasar_lab.speculative.generation import generate, stream
from quasar_lab.support.errors import InputError
from quasar_lab.widgets import explorer
from quasar_lab.widgets.live import note
from quasar_lab.widgets.token_strip import TokenStrip

IDS = [3, 17, 5, 80, 41, 5, 80, 2]


@pytest.fixture(autouse=True)
def with_a_person(monkeypatch):
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)


@pytest.fixture
def heard(monkeypatch):
    """Every custom message that strips send to their views."""
    messages = []
    monkeypatch.setattr(TokenStrip, "send", lambda self, content, buffers=None: messages.append(content))
    return messages


def test_headless_wins_over_the_notebook(monkeypatch):
    assert widgets.enabled(True)
    assert not widgets.enabled(False)
    monkeypatch.setenv("QUASAR_HEADLESS", "1")
    assert not widgets.enabled(True)


def test_strip_says_one_message_per_round_and_keeps_the_whole_run(tiny, heard):
    strip = TokenStrip()
    finished = []
    strip.run(stream(tiny, IDS, drafter="ngram", gamma=3, max_new_tokens=12), done=finished.append)
    strip.wait()
    expected = generate(tiny, IDS, drafter="ngram", gamma=3, max_new_tokens=12)
    assert finished == [strip.trace]
    assert strip.trace.token_ids == expected.token_ids
    said = [record["kind"] for message in heard for record in message["records"]]
    assert said == ["header", "prefill", *["round"] * len(expected.rounds), "footer"]
    assert len(heard) == len(expected.rounds) + 2
    assert [record["kind"] for record in strip.records] == said
    assert (strip.running, strip.status) == (False, "")


def test_strip_of_a_single_token_still_shows_it(tiny, heard):
    strip = TokenStrip()
    strip.run(stream(tiny, IDS, max_new_tokens=1))
    strip.wait()
    assert [record["kind"] for record in strip.records] == ["header", "prefill", "footer"]


def test_stop_from_the_front_end_cancels(tiny, heard):
    strip = TokenStrip()
    generation = stream(tiny, IDS, drafter="none", max_new_tokens=100)
    strip.running = True
    with pytest.raises(InputError, match="a run is going on"):
        strip.run(generation)
    strip.running = False
    strip._generation = generation
    strip._heard(strip, {"type": "stop"}, [])
    strip.run(generation)
    strip.wait()
    assert strip.trace.summary()["finish_reason"] == "cancelled"


def test_a_view_that_opens_late_hears_everything_said_so_far(tiny, heard):
    strip = TokenStrip(generate(tiny, IDS, max_new_tokens=4))
    strip._heard(strip, {"type": "ready"}, [])
    assert heard == []  # nothing runs: the records are in the widget's state
    strip.running = True
    strip._heard(strip, {"type": "ready"}, [])
    assert heard == [{"records": strip.records}]


def test_generate_live_static_draws_the_given_trace(tiny):
    trace = generate(tiny, IDS, max_new_tokens=4)
    strip = widgets.generate_live(tiny, "unused", trace=trace, interactive=False)
    assert isinstance(strip, StripHTML)
    assert "quasar-trace/1" in strip.html


def test_a_run_can_be_judged_again_by_another_verifier(heard):
    pair = toy_pair(0.8, 6)
    trace = generate(pair, [1, 2, 1, 2], gamma=3, max_new_tokens=40)
    panel = widgets.generate_live([pair, pair.fast, pair.exact], "unused", trace=trace)
    assert panel.judge.value == pair.exact.name
    panel.again.click()
    assert panel.message.value == ""
    assert {record.other["verifier"] for record in panel.trace.rounds} == {pair.exact.name}
    assert heard == [{"records": panel.strip.records}]
    assert trace.rounds[0].other is None
    panel.strip.running = True
    assert panel.start.disabled
    assert panel.again.disabled
    with pytest.raises(InputError, match="a run is going on"):
        panel.strip.show(trace)
    panel.strip.running = False
    alone = widgets.generate_live(pair, "unused", trace=trace)
    assert alone.verifier.options == (pair.name,)
    assert alone.again not in alone.children[2].children


@pytest.mark.slow
def test_generate_live_panel_runs_an_audited_verifier(embedded, w8a8):
    panel = widgets.generate_live(audited(w8a8, embedded, 3), "Say yes.", max_new_tokens=8)
    assert panel.again.disabled
    panel.run()
    panel.strip.wait()
    assert panel.trace.audited
    assert panel.trace.token_ids == generate(embedded, "Say yes.", max_new_tokens=8).token_ids


def test_generate_live_panel_runs_and_explains_errors(embedded):
    panel = widgets.generate_live(
        embedded, "Say yes.", max_new_tokens=3, trace=generate(embedded, [1], max_new_tokens=2)
    )
    assert not panel.figure.outputs  # the notebook shows that of the opening trace itself
    panel.run()
    panel.strip.wait()
    assert len(panel.trace.token_ids) <= 3
    assert "application/vnd.plotly.v1+json" in panel.figure.outputs[0]["data"]
    panel.prompt.value = "  "
    panel.run()
    assert "the prompt is empty" in panel.message.value


def test_outlier_explorer_redraws_for_what_is_picked(embedded):
    panel = widgets.outlier_explorer(embedded, layer=3, projection="q_proj", text="one two three")

    def shown():
        return [area.outputs[0]["data"]["text/plain"] for area in panel.areas if area.outputs]

    assert shown()[0] == "Layer 3, qkv_proj: its input"
    assert not panel.areas[1].outputs  # the curve comes when it is asked for
    panel.layer.value = 5
    panel.errors.value = True
    panel.projection.value = "down_proj"
    assert "computing" in panel.message.value
    panel.wait()
    assert shown() == ["Layer 5, down_proj: its input", "Layer 5, down_proj: how much to smooth"]
    assert panel.message.value == ""


def test_outlier_explorer_says_what_it_reads(embedded):
    panel = widgets.outlier_explorer(embedded, layer=3, projection="q_proj", text="one two three")
    before = panel.areas[0].outputs
    panel.text.value = " "
    panel.start.click()
    assert "the text is empty" in panel.message.value
    assert "still show the text before" in panel.message.value
    assert panel.areas[0].outputs == before
    panel.text.value = "four five"
    panel.start.click()
    assert "reading" in panel.message.value
    panel.wait()
    assert "the figures show this text" in panel.message.value
    assert panel.areas[0].outputs != before


def test_outlier_explorer_draws_only_the_latest_of_waiting_picks(embedded, monkeypatch):
    panel = widgets.outlier_explorer(embedded, layer=3, projection="q_proj", text="one two three")
    drawn, genuine, begun, go = [], explorer.outliers, threading.Event(), threading.Event()

    def slow(model, layer, *rest):
        drawn.append(layer)
        begun.set()
        assert go.wait(20)
        return genuine(model, layer, *rest)

    monkeypatch.setattr(explorer, "outliers", slow)
    panel.layer.value = 4
    assert begun.wait(20)
    panel.layer.value, panel.layer.value = 5, 6
    go.set()
    panel.wait()
    assert drawn == [4, 6]
    assert panel.areas[0].outputs[0]["data"]["text/plain"] == "Layer 6, qkv_proj: its input"


def test_outlier_explorer_static_is_the_figure(embedded):
    figure = widgets.outlier_explorer(embedded, layer=3, projection="q_proj", text="one two", interactive=False)
    assert figure.layout.title.text == "Layer 3, qkv_proj: its input"


def test_error_notes_are_escaped():
    assert "<img" not in note(InputError("<img src=x onerror=alert(1)>"))
