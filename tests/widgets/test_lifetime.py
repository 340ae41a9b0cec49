"""Closed panels are gone, with their models; a cell that runs again replaces its panel; front ends without widgets show
the static view."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from toys import toy_pair

from quasar_lab import widgets
from quasar_lab.speculative.generation import generate, stream
from quasar_lab.widgets import explorer, lifetime
from quasar_lab.widgets.token_strip import TokenStrip

PROMPT = [1, 2, 1, 2]


@pytest.fixture(autouse=True)
def with_a_person(monkeypatch):
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)


def gone(*references):
    gc.collect()
    return all(reference() is None for reference in references)


def test_a_strip_that_was_closed_and_dropped_frees_its_run_and_its_model():
    model = toy_pair(0.8, 6).exact
    generation = stream(model, PROMPT, gamma=3, max_new_tokens=12)
    strip = TokenStrip()
    strip.run(generation)
    strip.wait()
    held = weakref.ref(model), weakref.ref(generation), weakref.ref(strip)
    del model, generation
    assert gone(*held[:2])  # an open strip keeps its trace, and not what made it
    strip.close()
    del strip
    assert gone(*held)


def test_closing_a_strip_ends_its_run():
    strip = TokenStrip()
    strip.run(stream(toy_pair(0.8, 6).exact, PROMPT, drafter="none", max_new_tokens=100_000))
    strip.close()
    strip.wait()
    assert strip.trace.summary()["finish_reason"] == "cancelled"
    assert strip._thread not in lifetime._running


def test_a_live_panel_that_was_closed_and_dropped_frees_its_models():
    pair = toy_pair(0.8, 6)
    panel = widgets.generate_live([pair.fast, pair.exact], "unused", trace=generate(pair.exact, PROMPT))
    held = weakref.ref(pair.fast), weakref.ref(pair.exact), weakref.ref(panel), weakref.ref(panel.strip)
    panel.close()
    del pair
    assert gone(*held[:2])  # also where IPython's Out still holds the panel
    del panel
    assert gone(*held)


def test_an_explorer_that_was_closed_and_dropped_frees_what_the_model_read(embedded):
    panel = widgets.outlier_explorer(embedded, layer=3, projection="q_proj", text="one two")
    panel.layer.value = 4
    panel.wait()
    held = weakref.ref(panel._activations), weakref.ref(panel)
    panel.close()
    assert gone(held[0])
    del panel
    assert gone(*held)


@pytest.mark.slow
def test_a_cell_that_runs_again_closes_the_panels_of_its_run_before(monkeypatch):
    shell = type("Shell", (), {"execution_count": 1, "get_parent": lambda self: {"metadata": {"cellId": self.cell}}})()
    shell.cell = "a"
    monkeypatch.setattr(lifetime, "get_ipython", lambda: shell)
    monkeypatch.setattr(lifetime, "_shown", {})

    def shown():
        panel = widgets.generate_live(pair, "unused", trace=trace)
        return weakref.ref(panel), weakref.ref(panel.strip)

    pair = toy_pair(0.8, 6).exact
    trace = generate(pair, PROMPT)
    first, second = shown(), shown()  # two of one run live side by side
    shell.cell, shell.execution_count = "b", 2
    other = shown()
    assert not any(gone(reference) for reference in (*first, *second, *other))
    shell.cell, shell.execution_count = "a", 3
    again = shown()
    assert gone(*first, *second)
    assert not any(gone(reference) for reference in (*other, *again))
    lifetime.close_all(*(reference() for reference, _ in (other, again)))


def test_threads_that_run_when_the_interpreter_ends_are_stopped_and_waited_for():
    strip = TokenStrip()
    strip.run(stream(toy_pair(0.8, 6).exact, PROMPT, drafter="none", max_new_tokens=100_000))
    lifetime._end_threads()
    assert not strip._thread.is_alive()
    assert strip.trace.summary()["finish_reason"] == "cancelled"


def bundles(embedded):
    trace = generate(toy_pair(0.8, 6).exact, PROMPT)
    strip = TokenStrip(trace)
    live = widgets.generate_live(toy_pair(0.8, 6).exact, "unused", trace=trace)
    outliers = explorer.OutlierExplorer(embedded, None, 3, "q_proj", "one two")
    drafts = widgets.drafter_explorer([], {"model": "m", "backend": "cpu", "device": "cpu", "recipe": "r"})
    return {
        "strip": strip._repr_mimebundle_()[0],
        "live": live._repr_mimebundle_(),
        "outliers": outliers._repr_mimebundle_(),
        "drafts": drafts._repr_mimebundle_(),
    }


def test_a_front_end_without_widgets_shows_the_static_view_and_a_hint(embedded):
    for name, bundle in bundles(embedded).items():
        assert "application/vnd.jupyter.widget-view+json" in bundle, name
        assert "install ipywidgets and anywidget" in bundle["text/html"]
        assert "install ipywidgets and anywidget" in bundle["text/plain"]
        assert "object at 0x" not in bundle["text/plain"]
        static = "quasar-trace/1" in bundle["text/html"] or "application/vnd.plotly.v1+json" in bundle
        assert static, name


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ipywidgets", "anywidget"):
            raise ModuleNotFoundError(name)
import importlib.util
genuine = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ("ipywidgets", "anywidget") else genuine(name, *rest)
sys.meta_path.insert(0, Absent())
from toys import toy_pair
from quasar_lab import widgets
strip = widgets.generate_live(toy_pair(0.8, 6).exact, [1, 2, 1, 2], gamma=3, max_new_tokens=8)
print("quasar-trace/1" in strip._repr_html_())
print(widgets.drafter_explorer([], {"model": "m", "backend": "cpu", "device": "cpu", "recipe": "r"}).layout.title.text)
print(*(hasattr(widgets, name) for name in ("pick_model", "outlier_explorer")))
"""


@pytest.mark.slow
def test_without_the_widget_packages_every_panel_is_static_with_a_hint():
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert told.stdout.splitlines()[::2] == ["True", "True True"], told.stderr
    assert told.stderr.count("pip install ipywidgets anywidget") == 1
