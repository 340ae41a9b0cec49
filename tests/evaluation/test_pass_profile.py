"""Parts of a pass: their shares, and that every op is counted once."""

import itertools

import pytest
from speed_results import profile_of
from tiny_quantized import plain

from quasar_lab.evaluation import pass_profile
from quasar_lab.support.errors import InputError


@pytest.fixture(scope="module")
def tiny_w8a8(tiny, tmp_path_factory):
    return plain(tiny, tmp_path_factory.mktemp("quantized"))


def test_parts_of_a_pass_are_shares_and_the_verifier_is_left_as_it_was(tiny, tiny_w8a8):
    before = tiny.ops
    found = pass_profile.profile_passes([tiny, tiny_w8a8], [1, 3], context=4, samples=2)
    assert tiny.ops is before
    assert [(row.verifier, row.width) for row in found.parts] == [
        ("bf16", 1),
        (tiny_w8a8.name, 1),
        ("bf16", 3),
        (tiny_w8a8.name, 3),
    ]
    for row in found.parts:
        assert set(row.shares) == {*pass_profile.GROUPS, "other"}
        assert all(share > 0 for share in row.shares.values())
        assert sum(row.shares.values()) == pytest.approx(1.0)
    with pytest.raises(InputError, match="widths in 1…"):
        pass_profile.profile_passes([tiny], [0], context=4)


def test_every_op_of_a_pass_is_counted_once(tiny, monkeypatch):
    """On a clock that ticks once a reading, an op takes one tick and so does the way to the next."""
    ticks = itertools.count()
    monkeypatch.setattr(pass_profile.time, "perf_counter", lambda: next(ticks))
    (row,) = pass_profile.profile_passes([tiny], [2], context=4, samples=1).parts
    layers = tiny.config.layers
    expected = {"products": 4 * layers + 1, "attention": 2 * layers, "rounding": 3 * layers + 1}
    expected["other"] = sum(expected.values()) + 1
    assert row.shares == pytest.approx({part: n / sum(expected.values()) for part, n in expected.items()})


def test_shares_are_those_of_the_nearest_width_of_the_verifier():
    profile = profile_of()
    assert [profile.shares("w8a8", width)["products"] for width in (1, 2, 3, 9)] == [0.5, 0.5, 0.25, 0.25]
    assert profile.fewest_samples() == 6
    with pytest.raises(InputError, match="the parts are of w8a8; accepted: of bf16"):
        profile.shares("bf16", 1)


def test_the_document_of_a_profile_has_the_keys_of_every_version(tiny):
    document = pass_profile.profile_passes([tiny], [1], context=4, samples=1).to_json()
    keys = {"parts", "model", "context", "device", "backend", "threads", "date", "cpu", "versions"}
    assert set(document) == keys
    assert set(document["parts"][0]) == {"verifier", "width", "shares", "samples"}
