"""W8A8 copies of tiny random models, and traces compared without their times."""

import json

from safetensors.torch import save_file

from quasar_lab.quantization import folding, saved_model
from quasar_lab.quantization.calibration import collect
from quasar_lab.quantization.recipes import Recipe, candidates

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
RECIPES = [Recipe("x", "smoothquant", 0.7), Recipe("x", "shifted", 0.7), Recipe("x", "rotated")]


def smoothed(model, folder, recipe=RECIPES[0]):
    """W8A8 of a model without a tokenizer: calibrated on ids."""
    found = {key: first for key, (first,) in candidates(model.checkpoint, collect(model, [PROMPT * 5]), recipe).items()}
    return _saved(model, folder, found, "w8a8")


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
