"""The errors of one linear are split as they are said to be."""

import pytest
import torch
from outlier_inputs import IDS, LAYER, PROJECTION, Rotating, with_channel, with_token

from quasar_lab.evaluation.activations import capture
from quasar_lab.evaluation.linear_view import exactness, inspect_linear
from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.layer_error import output_error
from quasar_lab.quantization.product_error import (
    GRIDS,
    channel_shares,
    product_errors,
    round_inputs,
    step_sizes,
)


@pytest.fixture
def captured(tiny):
    return capture(tiny, IDS)


def test_a_mapping_is_exact_until_something_is_rounded(tiny, captured):
    part = inspect_linear(tiny, LAYER, PROJECTION, captured)
    shifted = InputMap(part.smoothed(0.5).factors, shift=part.x.mean(dim=0))
    for mapping in (part.smoothed(0.5), Rotating(part.x.shape[1]).mapping, shifted):
        found = product_errors(part.x, part.weight, mapping)[0]
        assert found.before < 1e-5
        assert found.after == pytest.approx(output_error(part.x, part.weight, mapping), rel=1e-3)
        assert found.after > 100 * found.before
    readout = exactness(tiny, LAYER, PROJECTION, text=captured)
    assert readout == product_errors(part.x, part.weight, part.smoothed(0.5))[0]
    assert readout.to_json()["after"] == readout.after
    wrong = InputMap(torch.full_like(part.smoothed(0.5).factors, 2.0))
    object.__setattr__(wrong, "weight", lambda weight: weight)  # a mapping that the weights do not undo
    assert product_errors(part.x, part.weight, wrong)[0].before == pytest.approx(0.5)


def test_a_massive_token_ruins_the_others_only_with_one_scale_for_all(tiny, captured):
    part = inspect_linear(tiny, LAYER, PROJECTION, with_token(captured))
    by_grid = {grid: product_errors(part.x, part.weight, part.unmapped(), grid, (0, 1)) for grid in GRIDS}
    assert by_grid["per tensor"][1].after > 0.5
    assert by_grid["per token"][1].after < 0.05
    # Over all tokens its own large output hides what happened to the others.
    assert by_grid["per tensor"][0].after < 0.05


def test_steps_and_rounding(captured):
    x = captured.at(LAYER, PROJECTION)
    assert torch.equal(step_sizes(x, "per token"), x.abs().amax(dim=1) / 127)
    assert step_sizes(x, "per tensor").tolist() == pytest.approx([float(x.abs().max()) / 127] * len(x))
    for grid in GRIDS:
        assert bool(((round_inputs(x, grid) - x).abs() <= step_sizes(x, grid)[:, None] * 0.5001).all())


def test_shares_of_the_error_are_those_of_each_channels_own_product(tiny, captured):
    part = inspect_linear(tiny, LAYER, PROJECTION, with_channel(captured))
    mapping = part.smoothed(0.7)
    shares = channel_shares(part.x, part.weight, mapping)
    x, weight = mapping.inputs(part.x), mapping.weight(part.weight)
    coarse = round_inputs(x, "per token"), round_inputs(weight, "per token")
    norms = torch.stack(
        [
            (torch.outer(coarse[0][:, k], coarse[1][:, k]) - torch.outer(x[:, k], weight[:, k])).norm()
            for k in range(x.shape[1])
        ]
    )
    torch.testing.assert_close(shares.float(), norms**2 / (norms**2).sum(), rtol=1e-3, atol=1e-6)
    assert float(shares.sum()) == pytest.approx(1)
    assert channel_shares(torch.zeros(2, 4), torch.zeros(3, 4), InputMap(torch.ones(4))).tolist() == [0.0] * 4
