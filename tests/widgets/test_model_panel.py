"""The model panel: loads at first try, keeps the last good model, carries a person's choice to the next notebook."""

import gc
import re
import threading
import weakref
from dataclasses import dataclass

import pytest

from quasar_lab import widgets
from quasar_lab.quantization import recipes
from quasar_lab.support import progress
from quasar_lab.support.errors import CheckpointError, InputError, RecipeError
from quasar_lab.widgets import models
from quasar_lab.widgets.models import Choice, ModelPanel, Session


@dataclass
class Fake:
    """What the panel reads of a decoder."""

    name: str
    model: str
    device: str
    backend: str
    weight_bytes: int
    resident_bytes: int

    @property
    def identity(self):
        return {"model": self.model, "device": self.device, "backend": self.backend}


@pytest.fixture(autouse=True)
def loads(monkeypatch):
    """Choices that were loaded; "missing…" cannot be. A person is there, and nothing was chosen before."""
    found = []

    def load(model, device, backend):
        progress.announce(f"reading {model}")
        if model.startswith("missing"):
            raise CheckpointError(f"{model} is no folder here; accepted: <folders>")
        found.append(model)
        return Fake("bf16", model, device, backend, 200_000_000, 300_000_000)

    def quantize(base, recipe):
        recipes.parse_recipe(recipe)
        return Fake(recipe, base.model, base.device, base.backend, 100_000_000, 150_000_000)

    monkeypatch.setattr(models, "load", load)
    monkeypatch.setattr(models, "quantize", quantize)
    monkeypatch.setattr(models, "SESSION", Session())
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)
    return found


def panel(session, choice=None, interactive=True):
    return ModelPanel(choice or Choice(), interactive, session)


def pick(shown, **fields):
    """Fills the fields, presses Load and waits."""
    for name, value in fields.items():
        getattr(shown, {"model": "choice"}.get(name, name)).value = value
    shown.start.click()
    shown.wait()


def test_the_table_shows_bytes_of_both_and_their_share(loads):
    shown = widgets.pick_model()
    numbers = re.findall(r"<td[^>]*>([^<]*)</td>", shown._repr_html_())
    assert numbers == ["bf16", "200.0 MB", "100%", "300.0 MB", "100%", "w8a8", "100.0 MB", "50%", "150.0 MB", "50%"]
    assert "embedded · device cpu, backend auto" in shown._repr_html_()


def test_load_replaces_both_models_at_once(loads):
    session = Session()
    shown = panel(session)
    pick(shown, model="other", recipe="w8a8-plain", backend="reference")
    assert (shown.model.model, shown.quantized.name, shown.model.backend) == ("other", "w8a8-plain", "reference")
    assert shown.chosen == Choice("other", "w8a8-plain", "cpu", "reference")
    assert "loaded" in shown.message.value
    assert shown.below.offered
    assert "other · device cpu, backend reference" in shown.table.value


def test_a_choice_that_cannot_be_loaded_is_explained_and_the_last_good_one_stays(loads):
    session = Session()
    shown = panel(session)
    before = shown.model, shown.quantized, shown.table.value
    pick(shown, model="missing <b>")
    assert 'role="alert"' in shown.message.value
    assert "missing &lt;b&gt; is no folder here; accepted: &lt;folders&gt;" in shown.message.value
    assert "embedded stays loaded" in shown.message.value
    assert (shown.model, shown.quantized, shown.table.value) == before
    assert not shown.start.disabled
    assert session.by_hand is None


def test_a_first_choice_that_cannot_be_loaded_stops_the_cell(loads):
    with pytest.raises(CheckpointError, match="missing is no folder"):
        widgets.pick_model("missing")


def test_a_notebook_whose_model_is_missing_opens_with_the_last_good_one(loads):
    session = Session()
    panel(session)
    shown = panel(session, Choice("missing"))
    assert shown.model.model == "embedded"
    assert "missing is no folder here" in shown.message.value
    with pytest.raises(CheckpointError):  # nobody would read that
        panel(session, Choice("missing"), interactive=False)


def test_a_choice_by_hand_is_kept_for_the_next_notebook(loads):
    session = Session()
    pick(panel(session), model="other", recipe="w8a8-plain")
    following = panel(session)
    assert following.chosen == Choice("other", "w8a8-plain")
    assert following.choice.value == "other"
    assert loads == ["embedded", "other"]  # at hand, and not loaded again
    # What a notebook names itself wins, field by field; a run without a person sees no choice of before.
    assert panel(session, Choice("third")).chosen == Choice("third", "w8a8-plain")
    assert panel(session, interactive=False).chosen == Choice()


def test_a_failed_load_does_not_become_the_next_notebooks_choice(loads):
    session = Session()
    shown = panel(session)
    pick(shown, model="other")
    pick(shown, model="missing")
    assert panel(session).chosen.model == "other"


def test_progress_is_said_in_the_panel_and_not_printed(loads, monkeypatch, capsys):
    shown = panel(Session())
    capsys.readouterr()
    said = []
    shown.message.observe(lambda change: said.append(re.sub("<[^>]*>", "", change["new"])), "value")
    pick(shown, model="other")
    assert said == ["loading other …", "reading other", "loaded"]
    assert capsys.readouterr() == ("", "")


def test_a_second_press_while_loading_does_nothing(loads, monkeypatch):
    shown, go = panel(Session()), threading.Event()
    genuine = models.load
    monkeypatch.setattr(models, "load", lambda *given: go.wait(20) and genuine(*given))
    shown.choice.value = "other"
    shown.reload()
    assert shown.start.disabled
    shown.reload()
    go.set()
    shown.wait()
    assert loads == ["embedded", "other"]


def test_the_catalogue_foretells_bytes_and_fit(loads):
    shown = panel(Session())
    assert "Apache-2.0" in shown.preview.value
    shown.choice.value = "Qwen/Qwen3-8B"
    assert "GB" in shown.preview.value
    assert re.search("fits here|does <b>not</b> fit", shown.preview.value)
    shown.choice.value = "/a/folder"
    assert "families" in shown.preview.value
    assert "HuggingFaceTB/SmolLM2-360M-Instruct" in shown.choice.options


def test_static_is_the_table_only(loads, capsys):
    shown = widgets.pick_model(interactive=False)
    shown._ipython_display_()
    out = capsys.readouterr().out
    assert "<table" in out
    assert "widget-view" not in out


def test_a_change_of_the_recipe_keeps_the_bf16_model(loads):
    shown = panel(Session())
    before = shown.model
    pick(shown, recipe="w8a8-plain")
    assert shown.model is before
    assert shown.quantized.name == "w8a8-plain"
    assert loads == ["embedded"]


def test_free_memory_lets_go_of_both_models_and_load_brings_them_back(loads):
    session = Session()
    shown = panel(session)
    held = [weakref.ref(shown.model), weakref.ref(shown.quantized)]
    shown.free.click()
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    with pytest.raises(InputError, match="were freed; press Load"):
        shown.model  # noqa: B018
    assert shown.table.value == ""
    pick(shown)
    assert shown.model.model == "embedded"
    assert "200.0 MB" in shown.table.value


def test_a_closed_panel_lets_go_of_its_models(loads):
    session = Session()
    shown = panel(session)
    held = weakref.ref(shown.model), weakref.ref(shown)
    shown.close()
    session.loaded = None
    gc.collect()
    assert held[0]() is None
    del shown
    gc.collect()
    assert held[1]() is None


def test_recipes_are_a_list_with_one_line_each_and_any_alpha(loads):
    shown = panel(Session())
    labels = [label for label, _ in shown.recipe.name.options]
    assert labels == [f"{name} — {recipe.summary}" for name, recipe in recipes.RECIPES.items()]
    assert any("way to make the INT8 copy" in child.value for child in shown.recipe.children[2:])
    assert shown.recipe.alpha.layout.display == "none"
    for text in ("w8a8-smoothquant:0.85", "w8a8-shifted:0.3", "w8a8-searched"):
        shown.recipe.value = text
        assert shown.recipe.value == text
        assert (shown.recipe.alpha.layout.display == "none") == (":" not in text)
    with pytest.raises(RecipeError, match="unknown recipe"):
        shown.recipe.value = "w8a8-none"


def test_after_a_load_the_cells_below_are_offered_to_run(loads):
    shown = panel(Session())
    assert not shown.below.offered
    pick(shown, recipe="w8a8-plain")
    assert shown.below.offered
    pick(shown, model="missing")
    assert shown.below.offered  # of the model loaded before


def test_a_front_end_without_widgets_shows_the_table_and_a_hint(loads, monkeypatch):
    bundles = []
    monkeypatch.setattr(models, "display", lambda bundle, raw: bundles.append(bundle))
    widgets.pick_model()._ipython_display_()
    (bundle,) = bundles
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "200.0 MB" in bundle["text/html"]
    assert "install ipywidgets and anywidget" in bundle["text/html"]
    assert "VBox" not in bundle["text/plain"]
