"""W8A8 copies of tiny random models, and traces compared without their times."""

import json

import torch
from safetensors.torch import save_file

from quasar_lab.quantization import folding, saved_model
from quasar_lab.quantization.calibration import collect
from quasar_lab.quantization.recipes.rotated import Rotated
from quasar_lab.quantization.recipes.shifted import Shifted
from quasar_lab.quantization.recipes.smoothquant import SmoothQuant

SEQUENCES = [torch.randint(0, 94, (40,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(3)]
"""Calibration text for models of 94 words and more."""
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
RECIPES = [SmoothQuant(0.7), Shifted(0.7), Rotated()]


def smoothed(model, folder, recipe=RECIPES[0]):
    """W8A8 of a model without a tokenizer: calibrated on ids."""
    proposed = recipe.proposals(model.checkpoint, collect(model, [PROMPT * 5]))
    maps = {key: first for key, (first,) in proposed.items()}
    return _saved(model, folder, maps, "w8a8")


def plain(model, folder):
    """W8A8 of a model without smoothing."""
    return _saved(model, folder, {}, "w8a8-plain")


def _saved(model, folder, mappings, name):
    save_file(folding.quantized_tensors(model.checkpoint, mappings), folder / "weights.safetensors")
    record = {"schema": saved_model.SCHEMA, "checksum": model.checkpoint.checksum, "model": "tiny"}
    (folder / "recipe.json").write_text(json.dumps(record))
    return saved_model.load_quantized(model, folder, name)


def same_but_for_time(trace):
    return [
        {key: value for key, value in vars(record).items() if key != "ms"} for record in (trace.prefill, *trace.steps())
    ]
