"""The decoder against transformers (the oracle), and against itself at other widths, chunkings, trees and rollbacks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quasar_kernels import availability
from tiny_models import FAMILIES, write_checkpoint

import quasar_lab as ql
from quasar_lab.support.errors import InputError

IDS = torch.randint(0, 94, (50,), generator=torch.Generator().manual_seed(1)).tolist()


BACKENDS = [name for name, reason in availability().items() if reason is None and name != "triton"]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    """(a folder, the logits of every position by transformers in FP32)."""
    folder = tmp_path_factory.mktemp(request.param)
    oracle = write_checkpoint(folder, request.param)
    with torch.no_grad():
        return folder, oracle(torch.tensor([IDS])).logits[0]


@pytest.fixture(scope="module", params=BACKENDS)
def pair(request, checkpoint):
    """(our decoder, the oracle's logits)."""
    return ql.load(checkpoint[0], backend=request.param), checkpoint[1]


def in_chunks(decoder, ids, widths, cache=None):
    """Logits of `ids` computed in passes of the given widths."""
    cache = cache or decoder.new_cache()
    rows, start = [], 0
    for width in widths:
        rows.append(decoder.forward(ids[start : start + width], cache).logits)
        start += width
    return torch.cat(rows)


def test_logits_equal_transformers(pair):
    decoder, expected = pair
    for widths in ([50], [1] * 50, [17, 1, 1, 5, 16, 10], [3, 40, 7]):
        got = in_chunks(decoder, IDS, widths)
        assert (got - expected).abs().max() < 1e-4, f"widths {widths}"


def test_bits_do_not_depend_on_width(pair):
    decoder, _ = pair
    whole = in_chunks(decoder, IDS, [50])
    for widths in ([1] * 50, [2] * 25, [17, 1, 1, 5, 16, 10], [49, 1]):
        assert torch.equal(in_chunks(decoder, IDS, widths), whole), f"widths {widths}"


def test_rollback_leaves_no_trace(pair):
    decoder, expected = pair
    cache = decoder.new_cache()
    decoder.forward(IDS[:20], cache)
    decoder.forward([7, 7, 7, 7, 7], cache)
    decoder.rollback(cache, 20)
    got = in_chunks(decoder, IDS[20:], [1, 9, 20], cache)
    assert (got - expected[20:]).abs().max() < 1e-4
    assert torch.equal(got, in_chunks(decoder, IDS, [50])[20:])


def test_tree_rows_equal_their_own_path(pair):
    decoder, _ = pair
    parents = [-1, 0, 0, 1, 2, -1]
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [5]]
    tokens = IDS[20:26]
    cache = decoder.new_cache()
    decoder.forward(IDS[:20], cache)
    tree = decoder.forward(tokens, cache, parents=parents).logits
    for row, path in enumerate(paths):
        decoder.rollback(cache, 20)
        alone = decoder.forward([tokens[place] for place in path], cache).logits[-1]
        assert torch.equal(tree[row], alone), f"row {row}, path {path}"


def test_last_equals_the_last_of_all(tiny):
    every = tiny.forward(IDS, tiny.new_cache(), hidden=True)
    last = tiny.forward(IDS, tiny.new_cache(), logits="last")
    assert torch.equal(every.logits[-1:], last.logits)
    assert every.hidden.shape == (50, 32)
    assert last.hidden is None


def test_taps_see_the_input_of_every_product(tiny):
    seen = {}
    tiny.forward(IDS[:5], tiny.new_cache(), taps=lambda layer, projection, x: seen.update({(layer, projection): x}))
    assert {key: tuple(x.shape) for key, x in seen.items()} == {
        **{(layer, "qkv_proj"): (5, 32) for layer in range(2)},
        **{(layer, "o_proj"): (5, 32) for layer in range(2)},
        **{(layer, "gate_up_proj"): (5, 32) for layer in range(2)},
        **{(layer, "down_proj"): (5, 48) for layer in range(2)},
        (2, "lm_head"): (5, 32),
    }
    weight, _ = tiny.checkpoint.projection(1, "down_proj")
    with_taps = tiny.forward(IDS[:5], tiny.new_cache(), taps=lambda *_: None).logits
    assert torch.equal(with_taps, tiny.forward(IDS[:5], tiny.new_cache()).logits)
    assert weight.shape[1] == seen[1, "down_proj"].shape[1]


def test_layers_runs_a_subset(tiny):
    both = tiny.forward(IDS[:5], tiny.new_cache(), layers=[0, 1]).logits
    one = tiny.forward(IDS[:5], tiny.new_cache(), layers=[0]).logits
    assert torch.equal(both, tiny.forward(IDS[:5], tiny.new_cache()).logits)
    assert not torch.equal(one, both)


@pytest.mark.parametrize(
    ("ids", "parents", "message"),
    [([], None, "at least one"), ([96], None, "0…95"), ([-1], None, "0…95"), ([1, 2], [-1, 1], "earlier row")],
)
def test_bad_input_is_refused(tiny, ids, parents, message):
    cache = tiny.new_cache()
    with pytest.raises(InputError, match=message):
        tiny.forward(ids, cache, parents=parents)
    assert cache.length == 0


def test_a_full_cache_is_refused_before_anything_runs(tiny):
    cache = tiny.new_cache(10)
    tiny.forward(IDS[:8], cache)
    with pytest.raises(InputError, match="10"):
        tiny.forward(IDS[8:11], cache)
    assert cache.length == 8


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 6), st.tuples(st.just("back"), st.integers(0, 8))), max_size=12))
def test_any_history_of_passes_and_rollbacks(tiny_folder, history):
    """After any mix of passes and rollbacks, the next logits equal those of a fresh prefill of what is left."""
    decoder = _loaded(tiny_folder)
    cache, held = decoder.new_cache(), []
    for number, action in enumerate(history):
        if isinstance(action, tuple):
            length = max(0, len(held) - action[1])
            decoder.rollback(cache, length)
            held = held[:length]
        else:
            tokens = [(31 * number + place) % 90 for place in range(action)]
            decoder.forward(tokens, cache)
            held += tokens
        assert cache.length == len(held)
    got = decoder.forward([5], cache).logits
    fresh = decoder.forward([*held, 5], decoder.new_cache(), logits="last").logits
    assert torch.equal(got, fresh)


_models: dict = {}


def _loaded(folder):
    if folder not in _models:
        _models[folder] = ql.load(folder)
    return _models[folder]


def test_standing_in_for_a_faster_backend_is_said_once(monkeypatch):
    import quasar_kernels

    genuine = quasar_kernels._load
    monkeypatch.setattr(
        quasar_kernels, "_load", lambda name: (None, "not built for this test") if name == "cpu" else genuine(name)
    )
    with pytest.warns(RuntimeWarning, match="not built for this test") as said:
        assert [quasar_kernels.select("auto").name for _ in "abc"] == ["reference"] * 3
    assert len(said) == 1
    with pytest.raises(quasar_kernels.BackendUnavailable, match="not built for this test"):
        quasar_kernels.select("cpu")
