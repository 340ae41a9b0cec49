"""Smoothing is exact before rounding, rounding is what it says, and a saved model comes back the same."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quasar_kernels import reference
from quasar_kernels.reference import apply_transform, quantize_rows
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, write_checkpoint
from tiny_quantized import SEQUENCES

import quasar_lab as ql
from quasar_lab.models.decoder import bf16_decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.linear import Int8Linear
from quasar_lab.models.model_config import PARTS
from quasar_lab.quantization import calibration, saved_model, smoothing
from quasar_lab.quantization.calibration import Calibration, collect
from quasar_lab.quantization.folding import quantized_tensors
from quasar_lab.quantization.gptq import quantize_weight
from quasar_lab.quantization.layer_error import output_error
from quasar_lab.quantization.recipes import CalibratedLinear, parse_recipe
from quasar_lab.quantization.recipes.rotated import Rotated
from quasar_lab.quantization.recipes.searched import Searched
from quasar_lab.quantization.recipes.shifted import Shifted, shifted_map
from quasar_lab.quantization.recipes.smoothquant import SmoothQuant, smoothquant_map
from quasar_lab.quantization.selection import least_error
from quasar_lab.support.errors import CalibrationError, NotInThisVersion, QuasarError, RecipeError

METHODS = [SmoothQuant(), Shifted(), Rotated()]


def smoothed(checkpoint, sequences=SEQUENCES, recipe=METHODS[0]):
    model = bf16_decoder(checkpoint)
    proposed = recipe.proposals(checkpoint, collect(model, sequences))
    return {key: first for key, (first,) in proposed.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recipe", METHODS, ids=lambda recipe: recipe.name)
def test_folding_is_exact_before_rounding(family, recipe, tmp_path, monkeypatch):
    """Smoothed, shifted, rotated and folded, but with rounding taken out of the ops: the BF16 model's logits."""
    write_checkpoint(tmp_path, family)
    model = ql.load(tmp_path, backend="reference")
    found = smoothed(model.checkpoint, recipe=recipe)
    assert max(float(m.factors.max() / m.factors.min()) for m in found.values()) > 1.5, "nothing was smoothed"
    expected = model.forward(SEQUENCES[0], model.new_cache()).logits

    def as_it_is(rows):
        return rows, torch.ones(rows.shape[0])

    monkeypatch.setattr(reference, "quantize_rows", lambda x, transform=None: as_it_is(apply_transform(x, transform)))
    monkeypatch.setattr(
        reference,
        "linear_w8a8",
        lambda q, scale, wq, wscale, bias=None, residual=None: (
            q @ wq.T + (0 if bias is None else bias) + (0 if residual is None else residual)
        ),
    )
    folded = quantized_tensors(
        model.checkpoint, found, lambda key, weight: dict(zip(("wq", "wscale"), as_it_is(weight), strict=True))
    )

    def unrounded(base, key):
        weight = folded[f"{base}.wq"]
        transform = saved_model.online(found[key], key[1])
        return Int8Linear(weight, folded[f"{base}.wscale"], folded.get(f"{base}.bias"), transform, tuple(weight.shape))

    layers = []
    for index, layer in enumerate(model.layers):
        base = f"layers.{index}"
        norms = {name: folded[f"{base}.{name}"] for name in ("attention_norm", "mlp_norm")}
        layers.append(replace(layer, **norms, **{name: unrounded(f"{base}.{name}", (index, name)) for name in PARTS}))
    head = unrounded("lm_head", (len(layers), "lm_head"))
    got = replace(model, layers=layers, head=head).forward(SEQUENCES[0], model.new_cache()).logits
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recipe", [None, *METHODS], ids=lambda recipe: recipe.name if recipe else "plain")
def test_a_quantized_model_stays_close(family, recipe, tmp_path):
    write_checkpoint(tmp_path, family, initializer_range=0.1)
    model = ql.load(tmp_path)
    w8a8 = saved(model, tmp_path / "out", {} if recipe is None else smoothed(model.checkpoint, recipe=recipe))
    exact = torch.log_softmax(model.forward(SEQUENCES[0], model.new_cache()).logits, dim=-1)
    rounded = torch.log_softmax(w8a8.forward(SEQUENCES[0], w8a8.new_cache()).logits, dim=-1)
    assert (exact.exp() * (exact - rounded)).sum(dim=-1).mean() < 0.01
    assert not torch.equal(exact, rounded)


def saved(model, folder, factors):
    folder.mkdir()
    tensors = quantized_tensors(model.checkpoint, factors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "weights.safetensors")
    record = {"schema": saved_model.SCHEMA, "checksum": model.checkpoint.checksum, "model": "tiny", "recipe": "x"}
    (folder / "recipe.json").write_text(json.dumps(record))
    return saved_model.load_quantized(model, folder, "w8a8")


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10_000), st.floats(0, 1))
def test_factors_are_safe(n, k, seed, alpha):
    """Zero channels, in calibration or weights, get factor 1; nothing is infinite or NaN; inputs stay as they were."""
    generator = torch.Generator().manual_seed(seed)
    activations = torch.rand(k, generator=generator) * 10.0 ** torch.randint(-3, 4, (k,), generator=generator)
    weight = torch.randn(n, k, generator=generator)
    dead = torch.rand(k, generator=generator) < 0.3
    activations[dead] = 0
    weight[:, torch.rand(k, generator=generator) < 0.3] = 0
    before = activations.clone(), weight.clone()
    s = smoothing.smoothquant_factors(activations, smoothing.column_max(weight), alpha)
    assert torch.isfinite(s).all()
    assert (s > 0).all()
    assert (s[(activations == 0) | (weight.abs().amax(dim=0) == 0)] == 1).all()
    assert torch.equal(activations, before[0])
    assert torch.equal(weight, before[1])


def test_factors_follow_the_formula():
    x, w = torch.tensor([100.0, 1.0, 4.0]), torch.tensor([1.0, 1.0, 0.25])
    s = smoothing.smoothquant_factors(x, w, 0.5)
    assert torch.allclose(s / s[1], torch.tensor([10.0, 1.0, 4.0]))
    assert torch.allclose(
        smoothing.smoothquant_factors(x, w, 1.0) / s.new_tensor(400.0) ** (1 / 3), x / 400.0 ** (2 / 3)
    )


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 20), st.integers(1, 70), st.integers(0, 10_000))
def test_rounding(rows, k, seed):
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(seed))
    x[rows // 2] = 0
    q, scale = quantize_rows(x)
    assert q.abs().max() <= 127
    assert (q[rows // 2] == 0).all()
    assert scale[rows // 2] == 1
    assert ((x - q.float() * scale[:, None]).abs() <= 0.5001 * scale[:, None]).all()
    top = x.abs().amax(dim=1) > 0
    assert (q[top].abs().amax(dim=1) == 127).all()


def test_a_tied_embedding_stays_as_it_is(tmp_path):
    write_checkpoint(tmp_path, "llama-tied")
    model = ql.load(tmp_path)
    before = model.embedding.clone()
    w8a8 = saved(model, tmp_path / "out", smoothed(model.checkpoint))
    assert isinstance(w8a8.head, Int8Linear)
    assert w8a8.embedding is model.embedding
    assert torch.equal(w8a8.embedding, before)
    hidden = [m.forward([1, 2, 3], m.new_cache(), hidden=True).hidden for m in (model, w8a8)]
    assert (hidden[0] - hidden[1]).norm() < 0.1 * hidden[0].norm(), "the final hidden state lost its meaning"


def test_half_the_bytes(embedded, w8a8):
    for (layer, projection, before), (_, _, after) in zip(embedded.linears(), w8a8.linears(), strict=True):
        assert after.bytes <= 0.51 * before.bytes, f"layer {layer}, {projection}"
    assert w8a8.weight_bytes <= 0.51 * embedded.weight_bytes


def test_reloading_gives_the_same_bits(embedded, w8a8):
    again = ql.quantize(embedded, "w8a8")
    ids = list(range(100, 130))
    logits = [model.forward(ids, model.new_cache(64)).logits for model in (w8a8, again)]
    assert torch.equal(*logits)


def test_statistics_need_no_memory_for_more_text(tiny):
    one, many = collect(tiny, SEQUENCES[:1]), collect(tiny, SEQUENCES)
    assert one.channels.keys() == many.channels.keys()
    assert all(one.channels[key].square.shape == many.channels[key].square.shape for key in one.channels)
    assert many.tokens == 120
    seen = []
    for sequence in SEQUENCES:
        tiny.forward(sequence, tiny.new_cache(), taps=lambda layer, p, x: seen.append((layer, p, x)))
    found, down = many.channels[1, "down_proj"], [x for layer, p, x in seen if (layer, p) == (1, "down_proj")]
    assert torch.equal(found.low, torch.cat(down).amin(dim=0))
    assert torch.equal(found.high, torch.cat(down).amax(dim=0))
    assert torch.equal(found.largest, torch.cat(down).abs().amax(dim=0))
    behind_the_first = torch.cat([x[1:] for x in down])
    assert torch.allclose(found.mean, behind_the_first.mean(dim=0), atol=1e-6)
    assert torch.allclose(found.square, behind_the_first.square().mean(dim=0), atol=1e-6)


def test_nan_in_calibration_names_the_layer(tmp_path):
    write_checkpoint(tmp_path, "llama")
    model = ql.load(tmp_path)
    model.layers[1].mlp_norm[3] = torch.nan
    with pytest.raises(CalibrationError, match="layer 1, gate_up_proj"):
        collect(model, SEQUENCES)


@pytest.mark.parametrize(
    "bad",
    [
        "w8a9",
        "",
        "w8a8:",
        "w8a8:3",
        "w8a8-smoothquant:",
        "w8a8-smoothquant:nan",
        "w8a8-plain:1",
        "w8a8-searched:0.5",
        "w8a8-shifted:2",
        "w8a8-rotated",
        "w8a8-smoothquant:x",
        "w8a8-smoothquant:1.5",
        "int8",
    ],
)
def test_unknown_recipes_are_refused(bad):
    with pytest.raises(RecipeError, match="accepted"):
        parse_recipe(bad)


def test_later_recipes_are_named_as_such():
    for later in ("w4a8", "w4a16", "w2a16"):
        with pytest.raises(NotInThisVersion, match="not in this version"):
            parse_recipe(later)


def test_damaged_or_foreign_recipes_are_refused(tmp_path):
    write_checkpoint(tmp_path, "llama")
    model = ql.load(tmp_path)
    saved(model, tmp_path / "out", {})
    record = json.loads((tmp_path / "out" / "recipe.json").read_text())

    def write(**changes):
        (tmp_path / "out" / "recipe.json").write_text(json.dumps({**record, **changes}))

    write(schema=0)
    with pytest.raises(RecipeError, match="schema 0"):
        saved_model.load_quantized(model, tmp_path / "out", "x")
    write(checksum="other")
    with pytest.raises(RecipeError, match="other weights"):
        saved_model.load_quantized(model, tmp_path / "out", "x")
    write()
    weights = tmp_path / "out" / "weights.safetensors"
    tensors = load_file(weights)
    for name in ("layers.0.attention_norm", "layers.1.down_proj.wscale", "lm_head.wq"):
        for wrong in (tensors[name][:1].contiguous(), tensors[name].double(), None):
            changed = {key: value for key, value in {**tensors, name: wrong}.items() if value is not None}
            save_file(changed, weights)
            with pytest.raises(RecipeError, match=name):
                saved_model.load_quantized(model, tmp_path / "out", "x")
    save_file(tensors, weights)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RecipeError, match="truncated or corrupt"):
        saved_model.load_quantized(model, tmp_path / "out", "x")


@pytest.mark.parametrize("record", [None, '{"soup": 1}', "[]", '{"schema": 1, "checksum": "x", "recipe": "plain"}'])
def test_prepare_never_deletes_what_is_not_its_own(tiny, tmp_path, record):
    (tmp_path / "thesis.txt").write_text("years of work")
    if record is not None:
        (tmp_path / "recipe.json").write_text(record)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(QuasarError, match="accepted: a new or empty folder"):
        saved_model.prepare(tiny, "w8a8", out=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("kind", ["file", "link", "foreign recipe.json"])
def test_prepare_refuses_an_out_that_is_no_folder_of_its_own(tiny, tmp_path, kind):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("x")
    elif kind == "link":
        out.symlink_to(tmp_path)
    else:
        out.mkdir()
        (out / "recipe.json").write_text('{"soup": 1}')
    with pytest.raises(QuasarError, match="accepted: a new or empty folder"):
        saved_model.prepare(tiny, "w8a8", out=out)
    assert out.exists()


@pytest.fixture
def worded(tmp_path, embedded):
    """A tiny model that borrows the embedded one's tokenizer, so that it can be prepared in a moment."""
    write_checkpoint(tmp_path / "m", "llama", vocab_size=embedded.vocab, num_hidden_layers=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "m" / name).write_bytes((embedded.checkpoint.folder / name).read_bytes())
    (tmp_path / "text.txt").write_text("Some words to calibrate on, not many, but enough. " * 3)
    return ql.load(tmp_path / "m"), tmp_path / "text.txt"


@pytest.mark.parametrize(
    ("name", "content"),
    [("weights.safetensors", None), ("weights.safetensors", b"cut"), ("recipe.json", None)]
    + [("recipe.json", text) for text in (b"{", b"[]", b"5", b"null", b"\xff")],
)
def test_a_damaged_cache_is_made_again(worded, cache_here, name, content):
    model, text = worded
    folder = saved_model.prepare(model, "w8a8", text)
    expected = (folder / "weights.safetensors").read_bytes()
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    w8a8 = ql.quantize(model, "w8a8", text)
    assert w8a8.name == "w8a8"
    assert (folder / "weights.safetensors").read_bytes() == expected


def test_out_and_cache_hold_the_same_model(worded, cache_here, tmp_path):
    model, text = worded
    cached, out = saved_model.prepare(model, "w8a8", text), saved_model.prepare(model, "w8a8", text, tmp_path / "out")
    assert (cached / "weights.safetensors").read_bytes() == (out / "weights.safetensors").read_bytes()
    saved_model.prepare(model, "w8a8-plain", text, out)  # its own folder may be replaced
    assert saved_model.read_record(out)["recipe"] == "plain"
    assert sorted(path.name for path in out.iterdir()) == ["recipe.json", "weights.safetensors"]
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, bad):
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = bad
    save_file(tensors, path)
    model = ql.load(tmp_path)
    with pytest.raises(QuasarError, match=r"layers\.1\.gate_up_proj .* NaN or infinite"):
        quantized_tensors(model.checkpoint, {})
    with pytest.raises(QuasarError, match="NaN or infinite logits"):
        ql.generate(model, [1, 2], max_new_tokens=3)


def test_weights_round_per_output_channel():
    weight = torch.tensor([[1.0, -2.0], [0.0, 0.0], [0.01, 0.00498]])
    wq, wscale = quantize_weight(weight)
    assert wq.tolist() == [[64, -127], [0, 0], [127, 63]]
    assert torch.allclose(wscale, torch.tensor([2 / 127, 1.0, 0.01 / 127]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "{", "line 1"),
        ("a.jsonl", '{"x": 1}', "neither"),
        ("a.txt", "", "no text"),
        ("a.txt", None, "missing"),
    ],
)
def test_bad_calibration_files(embedded, tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(CalibrationError, match=message):
        calibration.sequences(embedded, path)


@pytest.mark.parametrize("recipe", METHODS, ids=lambda recipe: recipe.name)
def test_one_token_of_calibration_is_enough(tmp_path, recipe):
    write_checkpoint(tmp_path, "llama")
    model = ql.load(tmp_path)
    found = smoothed(model.checkpoint, [[7]], recipe)
    assert all(bool(torch.isfinite(m.factors).all()) for m in found.values())
    w8a8 = saved(model, tmp_path / "out", found)
    assert bool(torch.isfinite(w8a8.forward([7, 8], w8a8.new_cache()).logits).all())


def test_a_shift_halves_the_range_of_a_one_sided_channel(tmp_path):
    """Inputs far to one side of zero: shifted and scaled, their rounding error is smaller than scaled alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 64, generator=generator)
    x[:, :32] += 8
    weight = torch.randn(48, 64, generator=generator)
    channels = calibration.Channels(x.amin(dim=0), x.amax(dim=0), x.mean(dim=0), x.square().mean(dim=0))
    linear = CalibratedLinear(SimpleNamespace(linear_weight=lambda key: weight), (0, "qkv_proj"), channels)
    moved = shifted_map(linear, 0.5)
    assert torch.allclose(moved.inputs(x) @ moved.weight(weight).T + moved.bias(weight, None), x @ weight.T, atol=1e-3)
    assert output_error(x, weight, moved) < 0.5 * output_error(x, weight, moved.factors)
    assert output_error(x, weight, moved) < 0.5 * output_error(x, weight, smoothquant_map(linear, 0.5))


def test_the_search_takes_the_best_alpha_of_each_linear(tiny):
    """Every kept map is the best of its proposals on the text searched, and better than none."""
    proposed = Searched().proposals(tiny.checkpoint, collect(tiny, SEQUENCES))
    found, inputs = least_error(tiny, proposed, SEQUENCES[:1]), {}
    tiny.forward(SEQUENCES[0], tiny.new_cache(), taps=lambda layer, part, x: inputs.update({(layer, part): x[1:]}))
    for key, x in inputs.items():
        weight = tiny.checkpoint.linear_weight(key)
        errors = [output_error(x, weight, input_map) for input_map in proposed[key]]
        if min(errors) < output_error(x, weight):
            assert found[key] is proposed[key][errors.index(min(errors))], key
        else:
            assert key not in found
    assert found


def test_what_hurts_on_held_out_text_is_not_kept(tiny):
    """A map that ruins one linear is proposed: it is dropped, the others stay."""
    ruinous = InputMap(torch.logspace(-4, 4, tiny.config.hidden))

    @dataclass(frozen=True)
    class Ruinous(Rotated):
        def propose(self, linear):
            return [ruinous] if linear.key == (1, "qkv_proj") else super().propose(linear)

    calibrated = Calibration(tiny, SEQUENCES[:2], SEQUENCES[2:], collect(tiny, SEQUENCES))
    honest, kept = Rotated().input_maps(calibrated), Ruinous().input_maps(calibrated)
    assert kept.keys() == honest.keys() - {(1, "qkv_proj")}


@pytest.mark.parametrize("recipe", ["w8a8-searched", "w8a8-shifted", "w8a8-shifted:0.7"])
def test_every_method_can_be_prepared_and_reloads(worded, cache_here, recipe):
    model, text = worded
    folder = saved_model.prepare(model, recipe, text)
    errors = saved_model.read_record(folder)["errors"]
    assert [row for row in errors if row["error"] > 1.2 * row["error_plain"]] == []
    first, second = (saved_model.load_quantized(model, folder, recipe) for _ in range(2))
    logits = [m.forward([5, 6, 7], m.new_cache()).logits for m in (first, second)]
    assert torch.equal(*logits)
    if "shifted" in recipe:
        assert any(mapping.shift is not None for mapping in first.mappings.values())


def test_grams_are_those_of_the_taps(tiny):
    """Layer by layer, on streams kept between layers, each linear sees the inputs of a whole pass."""
    expected = {}

    def tap(layer, projection, x):
        expected[layer, projection] = expected.get((layer, projection), 0) + x.T @ x

    for sequence in SEQUENCES[:2]:
        tiny.forward(sequence, tiny.new_cache(), taps=tap)
    for layer, found in calibration.grams(tiny, SEQUENCES[:2], SEQUENCES[2:]):
        for projection, (gram, held_out) in found.items():
            assert torch.allclose(gram, expected.pop((layer, projection)), rtol=1e-4, atol=1e-4), (layer, projection)
            assert held_out.shape == gram.shape
    assert not expected


def test_nan_in_a_gram_names_the_layer(tmp_path):
    write_checkpoint(tmp_path, "llama")
    model = ql.load(tmp_path)
    model.layers[1].mlp_norm[3] = torch.nan
    with pytest.raises(CalibrationError, match="layer 1, gate_up_proj"):
        list(calibration.grams(model, SEQUENCES, SEQUENCES))


def test_the_default_recipe_keeps_what_helps_and_reloads(worded, cache_here):
    model, text = worded
    folder = saved_model.prepare(model, "w8a8", text)
    errors = saved_model.read_record(folder)["errors"]
    assert all(row["error"] <= 1.1 * row["error_plain"] for row in errors), errors
    logits = [
        m.forward([5, 6, 7], m.new_cache()).logits
        for m in (saved_model.load_quantized(model, folder, "w8a8") for _ in range(2))
    ]
    assert torch.equal(*logits)
