"""A recipe is one class: its file is found, its name and option are read, and it may bring its own linears."""

import json
from dataclasses import dataclass

import pytest
import torch
from quasar_kernels.reference import quantize_rows
from tiny_quantized import SEQUENCES

from quasar_lab.quantization import recipes, saved_model
from quasar_lab.quantization.calibration import Calibration, collect
from quasar_lab.quantization.folding import quantized_tensors
from quasar_lab.quantization.layer_error import LinearError, error_table
from quasar_lab.quantization.linear_formats import W8A8Format
from quasar_lab.quantization.recipes import RECIPES, accepted, examples, parse_recipe, summaries
from quasar_lab.quantization.recipes.plain import Plain
from quasar_lab.quantization.recipes.smoothquant import SmoothQuant
from quasar_lab.quantization.record import RECORD, WEIGHTS, read_record
from quasar_lab.support.errors import RecipeError

IDENTITIES = {
    "w8a8": "rotated",
    "w8a8-plain": "plain",
    "w8a8-smoothquant": "smoothquant-0.5",
    "w8a8-smoothquant:0.85": "smoothquant-0.85",
    "w8a8-smoothquant:-0": "smoothquant-0",
    "w8a8-searched": "searched",
    "w8a8-shifted": "shifted-0.5",
    "w8a8-shifted:.70": "shifted-0.7",
}


@pytest.mark.parametrize(("text", "identity"), IDENTITIES.items())
def test_saved_models_keep_their_names(text, identity):
    """Another word would make every machine prepare the recipe again."""
    assert parse_recipe(text).identity == identity


def test_lists_derive_from_the_classes():
    assert accepted() == "w8a8, w8a8-plain, w8a8-smoothquant[:alpha], w8a8-searched, w8a8-shifted[:alpha]"
    assert ", ".join(summaries()) == accepted()
    assert len({recipe.saved_as for recipe in RECIPES.values()}) == len(RECIPES), "two recipes share saved models"
    assert [parse_recipe(example).name for example in examples()] == [
        name for name, recipe in RECIPES.items() for _ in recipe.examples()
    ]
    assert parse_recipe("w8a8-smoothquant:0.5") == parse_recipe("w8a8-smoothquant") == SmoothQuant()


def test_a_new_file_is_a_new_recipe(tmp_path, monkeypatch):
    (tmp_path / "halved_for_a_test.py").write_text(
        """
from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.recipes.base import Recipe


class Halved(Recipe):
    name, saved_as, place, summary = "w8a8-halved", "halved", 9, "inputs divided by 2"

    def propose(self, linear):
        return [InputMap(linear.channels.largest.new_full(linear.channels.largest.shape, 2.0))]
"""
    )
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path)])
    found = {recipe.name for recipe in recipes._discovered()}
    assert found == {*RECIPES, "w8a8-halved"}


class FourBits(W8A8Format):
    """Weights of 15 levels, kept in INT8: enough to see whether a recipe's own format is used everywhere."""

    name = "four-bits"

    def round_to_nearest(self, weight):
        _, scale = quantize_rows(weight.float())
        scale = scale * 127 / 7
        return {"wq": (weight / scale[:, None]).round().clamp(-7, 7).to(torch.int8), "wscale": scale}


@dataclass(frozen=True)
class FourBitPlain(Plain):
    name = "four-bits"
    saved_as = "four-bits"
    linear_format = FourBits()


def test_a_recipe_brings_its_own_linears(tiny, tmp_path, monkeypatch):
    calibrated = Calibration(tiny, SEQUENCES[:2], SEQUENCES[2:], collect(tiny, SEQUENCES[:2]))
    monkeypatch.setitem(recipes.RECIPES, "four-bits", FourBitPlain)
    monkeypatch.setattr(saved_model.calibration, "calibrate", lambda *_: calibrated)
    coarse = saved_model.prepare(tiny, "four-bits", out=tmp_path / "four")
    fine = saved_model.prepare(tiny, "w8a8-plain", out=tmp_path / "eight")
    assert (read_record(coarse).format, read_record(fine).format) == ("four-bits", None)
    assert "format" not in json.loads((fine / RECORD).read_text())
    exact, *rounded = (
        model.forward(SEQUENCES[0], model.new_cache()).logits
        for model in (tiny, *(saved_model.load_quantized(tiny, folder, "x") for folder in (fine, coarse)))
    )
    fine_error, coarse_error = (float((logits - exact).norm()) for logits in rounded)
    assert coarse_error > 4 * fine_error
    for column in ("error", "error_plain"):
        errors = [max(row[column] for row in read_record(folder).errors) for folder in (fine, coarse)]
        assert errors[1] > 4 * errors[0], f"{column} is that of another format"
    record = json.loads((coarse / RECORD).read_text())
    (coarse / RECORD).write_text(json.dumps({**record, "format": "w3a3"}))
    with pytest.raises(RecipeError, match=r"'w3a3'; accepted: w8a8, four-bits"):
        saved_model.load_quantized(tiny, coarse, "x")


def test_the_error_table_has_a_row_for_every_linear(tiny):
    calibrated = Calibration(tiny, SEQUENCES[:2], SEQUENCES[2:], collect(tiny, SEQUENCES[:2]))
    maps = SmoothQuant().input_maps(calibrated)
    rows = error_table(calibrated, maps, quantized_tensors(tiny.checkpoint, maps))
    assert [(row.layer, row.projection) for row in rows] == list(tiny.config.linear_keys())
    assert list(rows[0].to_json()) == ["layer", "projection", "max_over_median", "error_plain", "error"]
    assert all(0 < row.error < 0.1 and row.max_over_median >= 1 for row in rows)
    assert LinearError.from_json(rows[0].to_json()) == rows[0]


def test_a_record_that_lacks_its_end_counts_as_incomplete(tiny, tmp_path, monkeypatch):
    """As after a crash of an older version: the model is prepared again, and nothing fails."""
    calibrated = Calibration(tiny, SEQUENCES[:2], SEQUENCES[2:], collect(tiny, SEQUENCES[:2]))
    monkeypatch.setattr(saved_model.calibration, "calibrate", lambda *_: calibrated)
    out = saved_model.prepare(tiny, "w8a8-plain", out=tmp_path / "out")
    whole = (out / RECORD).read_text()
    for damage in ({"weights_bytes": 3}, {"errors": 5}, {"calibration": None}):
        (out / RECORD).write_text(json.dumps({**json.loads(whole), **damage}))
        (out / WEIGHTS).write_bytes(b"x")
        saved_model.prepare(tiny, "w8a8-plain", out=out)
        assert (out / RECORD).read_text() == whole
