"""Recipes on one text: what is measured, what is drawn, and what the figure must say of a 4-bit checkpoint."""

from itertools import pairwise

import pytest

from quasar_lab.evaluation import recipe_frontier
from quasar_lab.evaluation.fidelity import MarginHistograms, Series, TextFidelity
from quasar_lab.evaluation.histogram import Histogram
from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.recipe_frontier import FrontierRow
from quasar_lab.figures import frontier as draw
from quasar_lab.figures.frontier import FOUR_BIT, spread
from quasar_lab.models.embedded import ID
from quasar_lab.support.errors import InputError


def row(recipe, kl, model=ID):
    nothing = Histogram(edges=[1.0, 10.0], counts=[0], below=128, above=0)
    fidelity = TextFidelity(
        tokens=128,
        kl_mean=kl,
        kl_p99=9 * kl,
        top1_agreement=0.9,
        flips=3,
        flip_margin_p50=0.1,
        margin_p50=1.0,
        kl_histogram=nothing,
        margin_histogram=MarginHistograms(all=nothing, flips=nothing),
        series=Series(kl=[], margin=[], expected=[], got=[]),
        flip_margins=[],
        base="bf16",
        verifier=recipe,
        origin=Origin(model, "cpu", "cpu"),
        perplexity_bf16=20.0,
        perplexity=21.0,
        per_layer=[],
        window=64,
    )
    return FrontierRow(
        recipe=recipe, step_bytes=135_000_000, resident_bytes=0, step_bytes_bf16=269_000_000, fidelity=fidelity
    )


def test_the_figure_says_that_the_checkpoint_was_4_bit_where_it_was():
    rows = [row("w8a8-plain", 0.03), row("w8a8", 0.002)]
    figure = draw(rows)
    assert FOUR_BIT in figure.layout.title.subtitle.text
    assert FOUR_BIT not in draw([row("w8a8", 0.01, "other")]).layout.title.subtitle.text
    mean = next(trace for trace in figure.data if trace.name == "mean")
    assert sorted(zip(mean.y, mean.x, strict=True)) == [(0.002, 135.0), (0.03, 135.0)]


def test_a_recipe_as_good_as_bf16_can_be_drawn():
    assert draw([row("same", 0.0)]).layout.yaxis.type == "log"


def test_a_row_has_its_recipe_and_its_fidelity_as_one_document():
    made = row("w8a8", 0.002)
    document = made.to_json()
    assert (document["recipe"], document["kl_mean"], document["step_bytes"]) == ("w8a8", 0.002, 135_000_000)
    assert "own_text" not in document
    assert FrontierRow.from_json(document).to_json() == document


def test_labels_of_close_recipes_do_not_lie_on_each_other():
    heights = [0.0, -1.0, -1.01, -1.02, -1.05, -3.0]
    places = spread(heights, 0.2)
    gaps = [above - below for above, below in pairwise(places)]
    assert min(gaps) > 0.2 - 1e-9
    assert (places[0], places[-1]) == (0.0, -3.0)
    assert max(abs(place - height) for place, height in zip(places, heights, strict=True)) < 0.4
    labels = [note.text for note in draw([row("a", 0.03), row("<b>", 0.002)]).layout.annotations]
    assert {"a", "&lt;b&gt;"} <= set(labels)


@pytest.mark.slow
def test_recipes_are_measured_on_text_of_our_own(embedded, w8a8):
    ids = recipe_frontier.tokens_of_questions(embedded, 96)
    assert len(ids) == 96
    (found,) = recipe_frontier.measure_recipes(embedded, ["w8a8"], ids, 48)
    assert (found.recipe, found.fidelity.tokens, found.fidelity.window) == ("w8a8", 96, 48)
    assert (found.step_bytes, found.step_bytes_bf16) == (w8a8.weight_bytes, embedded.weight_bytes)
    assert 0 < found.fidelity.kl_mean < 0.02
    with pytest.raises(InputError, match="tokens is 1; accepted: 2…"):
        recipe_frontier.tokens_of_questions(embedded, 1)


@pytest.mark.parametrize("recipes", [[], ["w8a8", "w8a8"]])
def test_recipes_are_different_ones(recipes):
    with pytest.raises(InputError, match="one or more different ones"):
        recipe_frontier.measure_recipes(None, recipes, [1, 2])
