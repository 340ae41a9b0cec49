"""An INT8 verifier audited by BF16 writes the BF16 model's own text."""

import json

import pytest
import torch
from conftest import write_checkpoint
from safetensors.torch import save_file

import quasar_lab as ql
from quasar_lab import quantization
from quasar_lab.calibration import collect
from quasar_lab.decoder import ValueMap
from quasar_lab.errors import InputError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def smoothed(model, folder):
    """W8A8 with SmoothQuant of a model without a tokenizer: calibrated on ids."""
    factors = quantization.smoothing_factors(model.checkpoint, collect(model, [PROMPT * 5]), 0.7)
    save_file(quantization.quantized_tensors(model.checkpoint, factors), folder / "weights.safetensors")
    record = {"schema": quantization.SCHEMA, "checksum": model.checkpoint.checksum, "model": "tiny"}
    (folder / "recipe.json").write_text(json.dumps(record))
    return quantization.load_quantized(model, folder, "w8a8")


def error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("family", ["llama", "llama-one-kv", "qwen2", "qwen3"])
def test_adopted_rows_are_in_the_adopters_basis(tmp_path, family):
    """In the first layer the two verifiers differ by the rounding alone."""
    write_checkpoint(tmp_path, family)
    model = ql.load(tmp_path)
    w8a8 = smoothed(model, tmp_path)
    exact, own, adopted = model.new_cache(32), w8a8.new_cache(32), w8a8.new_cache(32)
    model.forward(PROMPT, exact)
    w8a8.forward(PROMPT, own)
    w8a8.adopt(adopted, exact, 0, len(PROMPT))
    rows = slice(0, len(PROMPT))
    assert adopted.length == len(PROMPT)
    assert error(adopted.k[0, :, rows], own.k[0, :, rows]) < 0.03
    assert error(adopted.v[0, :, rows], own.v[0, :, rows]) < 0.03
    assert error(exact.v[0, :, rows], own.v[0, :, rows]) > 0.06, "the factors are 1: this shows nothing"


def test_a_value_map_shifts_scales_and_turns():
    generator = torch.Generator().manual_seed(0)
    v, shift = torch.randn(2, 5, 4, generator=generator), torch.randn(2, 4, generator=generator)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=generator)).Q
    inv_scale = torch.rand(2, 4, generator=generator) + 0.5
    before = v.clone()
    found = ValueMap(inv_scale, rotation, shift)(v)
    for group in range(2):
        assert torch.allclose(found[group], ((v[group] - shift[group]) * inv_scale[group]) @ rotation, atol=1e-6)
    assert torch.equal(ValueMap()(v), before)
    assert torch.equal(v, before), "the input was changed"


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 6), (2, 9), (3, 2)])
def test_rows_that_are_not_there_are_not_adopted(tiny, start, stop):
    cache, other = tiny.new_cache(6), tiny.new_cache(12)
    tiny.forward([1, 2, 3], cache)
    tiny.forward(PROMPT, other)
    with pytest.raises(InputError, match="accepted"):
        tiny.adopt(cache, other, start, stop)
    assert cache.length == 3
