"""Numbers about outliers are those of the inputs they were taken from."""

import re

import pytest
import torch
from outlier_inputs import IDS, LAYER, PROJECTION, Rotating, with_channel, with_token

from quasar_lab.evaluation.activations import capture
from quasar_lab.evaluation.linear_view import inspect_linear, smoothing_factors
from quasar_lab.evaluation.outliers import alpha_sweep, channel_values, input_outliers, max_over_median, outlier_map
from quasar_lab.quantization.layer_error import output_error
from quasar_lab.quantization.product_error import channel_shares
from quasar_lab.support.errors import InputError


@pytest.fixture
def captured(tiny):
    return capture(tiny, IDS)


def test_max_over_median_of_the_channels():
    assert max_over_median(torch.tensor([1.0, 2.0, 20.0])) == 10.0
    assert max_over_median(torch.zeros(3)) == 0.0


def test_the_map_drops_the_first_token_in_its_second_table(tiny, captured):
    found = outlier_map(tiny, with_token(captured))
    assert found.tokens == len(IDS)
    for row, name in enumerate(found.projections):
        for layer in found.layers:
            x = captured.at(layer, name).abs()
            for ratios, values in ((found.all_tokens, x), (found.without_first, x[1:])):
                largest = values.amax(dim=0)
                assert ratios[row][layer] == pytest.approx(float(largest.max() / largest.median()))
    row = found.projections.index(PROJECTION)
    assert found.all_tokens[row][LAYER] > 100 * found.without_first[row][LAYER]


@pytest.mark.parametrize(
    "compute",
    [lambda tiny, text: outlier_map(tiny, text), lambda tiny, text: alpha_sweep(tiny, 0, "down_proj", text=text)],
)
def test_a_text_of_one_token_has_no_rest(tiny, compute):
    with pytest.raises(InputError, match="the text has one token; accepted: at least two"):
        compute(tiny, IDS[:1])


def test_sizes_before_and_after_are_those_of_the_input_and_of_the_mapped_input(tiny, captured):
    found = input_outliers(tiny, LAYER, PROJECTION, text=with_token(captured))
    x = captured.at(LAYER, PROJECTION)
    mapping = found.linear.smoothed(0.5)
    assert found.channels.tolist() == list(range(x.shape[1]))
    for sizes, values, how in (
        (found.before, x.abs(), found.linear.unmapped()),
        (found.after, mapping.inputs(x).abs(), mapping),
    ):
        largest = values.amax(dim=0)
        assert torch.equal(sizes.first, values[0])
        assert torch.equal(sizes.others, values[1:].amax(dim=0))
        assert [float(values[token, k]) for k, token in enumerate(sizes.others_at)] == sizes.others.tolist()
        assert torch.equal(sizes.shares, channel_shares(x, found.linear.weight, how))
        assert sizes.median == float(largest.median())
        assert sizes.ratio == pytest.approx(sizes.largest / sizes.median)
        assert float(values[sizes.largest_token, sizes.largest_at]) == sizes.largest == float(values.max())
    assert (found.before.largest, found.before.largest_at, found.before.largest_token) == (3000.0, 7, 0)


def test_sorted_channels_are_the_same_channels_from_large_to_small(tiny, captured):
    plain = input_outliers(tiny, 0, "q_proj", text=captured)
    ordered = input_outliers(tiny, 0, "q_proj", text=captured, order="sorted")
    largest = captured.at(0, "qkv_proj").abs().amax(dim=0)[ordered.channels]
    assert bool((largest.diff() <= 0).all())
    assert sorted(ordered.channels.tolist()) == plain.channels.tolist()
    for one, other in ((plain.before, ordered.before), (plain.after, ordered.after)):
        assert torch.equal(one.first[ordered.channels], other.first)
        assert torch.equal(one.others[ordered.channels], other.others)
        assert torch.equal(one.shares[ordered.channels], other.shares)
        assert (one.median, one.ratio, one.largest, one.largest_token) == (
            other.median,
            other.ratio,
            other.largest,
            other.largest_token,
        )
        assert one.largest_at == int(ordered.channels[other.largest_at])


def test_one_token_has_no_others(tiny):
    found = input_outliers(tiny, 0, "down_proj", text=IDS[:1])
    assert found.before.others is None
    assert found.before.others_at == []


def test_an_unknown_order_is_refused(tiny, captured):
    with pytest.raises(InputError, match="accepted: channel, sorted"):
        input_outliers(tiny, 0, "down_proj", text=captured, order="up")


def test_the_sweep_measures_both_groups_with_the_same_factors(tiny, captured):
    alphas = (0.0, 0.4, 1.0)
    sweep = alpha_sweep(tiny, 1, "o_proj", alphas, captured)
    x, weight = captured.at(1, "o_proj"), tiny.checkpoint.projection(1, "o_proj")[0]
    for errors, rows in zip(sweep.groups, (x, x[1:]), strict=True):
        expected = [output_error(rows, weight, smoothing_factors(tiny, "o_proj", x, weight, alpha)) for alpha in alphas]
        assert [error.after for error in errors.by_alpha] == pytest.approx(expected, rel=1e-4)
        assert errors.unsmoothed.after == pytest.approx(output_error(rows, weight), rel=1e-4)
        assert errors.best == expected.index(min(expected))
    assert [errors.group for errors in sweep.groups] == ["all tokens", "without the first token"]


def test_too_little_smoothing_leaves_outliers_and_too_much_ruins_the_weights(tiny, captured):
    sweep = alpha_sweep(tiny, LAYER, PROJECTION, (0.0, 0.5, 1.0), with_channel(captured), "per tensor")
    for errors in sweep.groups:
        none, half, full = errors.by_alpha
        assert none.activations > half.activations
        assert full.weights > half.weights
        assert none.activations > none.weights
        assert full.weights > full.activations
        assert errors.best == 1
        assert none.after == pytest.approx((none.activations**2 + none.weights**2) ** 0.5, rel=0.2)


def test_a_channel_has_its_factor_its_largest_values_and_its_share(tiny, captured):
    found = channel_values(tiny, LAYER, PROJECTION, 7, text=with_channel(captured))
    part = inspect_linear(tiny, LAYER, PROJECTION, captured)
    mapping = part.smoothed(0.5)
    factor, column = float(mapping.factors[7]), float(part.weight[:, 7].abs().max())
    assert found.factor == factor
    assert found.before.values.tolist() == [100.0] * len(IDS)
    assert found.after.values.tolist() == pytest.approx([100.0 / factor] * len(IDS))
    assert (found.before.largest, found.after.largest) == (100.0, pytest.approx(100.0 / factor))
    assert (found.before.largest_weight, found.after.largest_weight) == (column, pytest.approx(column * factor))
    shares = [float(channel_shares(part.x, part.weight, how)[7]) for how in (part.unmapped(), mapping)]
    assert [found.before.share, found.after.share] == shares


def test_without_a_number_the_channel_is_the_largest(tiny, captured):
    recipe = Rotating(captured.at(LAYER, PROJECTION).shape[1])
    found = channel_values(tiny, LAYER, PROJECTION, None, recipe, with_token(captured, channel=13))
    assert found.number == 13
    assert found.choice.mapping is recipe.mapping


@pytest.mark.parametrize("number", [48, -1])
def test_a_channel_that_is_not_there_is_refused(tiny, captured, number):
    with pytest.raises(InputError, match=re.escape("accepted: 0…47")):
        channel_values(tiny, LAYER, PROJECTION, number, text=captured)
