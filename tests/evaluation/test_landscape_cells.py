"""Cells lose no spike, and one scale holds every position of the slider."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outlier_inputs import IDS, LAYER, PROJECTION, Rotating, with_channel, with_token

from quasar_lab.evaluation.activations import capture
from quasar_lab.evaluation.landscapes import (
    COLUMNS,
    NONE,
    ROWS,
    block_max,
    block_starts,
    landscapes,
)
from quasar_lab.quantization.product_error import GRIDS, product_errors
from quasar_lab.support.errors import InputError


@pytest.fixture
def captured(tiny):
    return capture(tiny, IDS)


# Cells


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_spike_anywhere_survives_the_cells(data):
    rows, columns = data.draw(st.integers(1, 130)), data.draw(st.integers(1, 200))
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    first_alone = data.draw(st.booleans())
    values = torch.rand(rows, columns)
    values[row, column] = 1000.0
    down, across = block_starts(rows, ROWS, first_alone), block_starts(columns, COLUMNS)
    cells = block_max(values, down, across)
    assert cells.shape == (len(down), len(across))
    assert len(down) <= ROWS
    assert len(across) <= COLUMNS
    at = sum(begin <= row for begin in down) - 1, sum(begin <= column for begin in across) - 1
    assert cells[at] == 1000.0
    assert int((cells == 1000.0).sum()) == 1


@given(st.integers(1, 2000), st.integers(2, 64), st.booleans())
def test_cells_cover_everything_in_blocks_of_nearly_one_size(count, cells, first_alone):
    begins = block_starts(count, cells, first_alone)
    assert begins[0] == 0
    assert begins == sorted(set(begins))
    sizes = np.diff([*begins, count])
    assert sizes.min() >= 1
    rest = sizes[1:] if first_alone and count > 1 else sizes
    assert np.ptp(rest) <= 1
    if first_alone and count > 1:
        assert sizes[0] == 1


@pytest.mark.parametrize(("count", "cells", "alone"), [(0, 4, False), (5, 0, False), (5, 1, True)])
def test_nothing_and_no_cells_are_refused(count, cells, alone):
    with pytest.raises(InputError, match="at least one value and one cell"):
        block_starts(count, cells, alone)


# Positions of the slider


def test_every_position_holds_its_own_mapping(tiny, captured):
    recipe = Rotating(captured.at(LAYER, PROJECTION).shape[1])
    found = landscapes(tiny, LAYER, PROJECTION, recipe, captured, alphas=(0.0, 0.5))
    part = found.linear
    assert [view.name for view in found.positions] == [NONE, "0", "0.5", "w8a8"]
    assert found.opened is found.positions[3]
    mappings = (part.unmapped(), part.smoothed(0.0), part.smoothed(0.5), recipe.mapping)
    for view, mapping in zip(found.positions, mappings, strict=True):
        x, weight = mapping.inputs(part.x).abs(), mapping.weight(part.weight).abs()
        assert view.inputs.largest == float(x.max()) == float(view.inputs.values.max())
        assert view.weights.largest == float(weight.max()) == float(view.weights.values.max())
        assert torch.equal(view.inputs.values, block_max(x, view.inputs.rows, view.inputs.columns))
        for grid in GRIDS:
            assert view.errors[grid] == product_errors(part.x, part.weight, mapping, grid, (0, 1))


def test_without_a_recipe_the_opening_is_the_strength_nearest_to_a_half(tiny, captured):
    found = landscapes(tiny, LAYER, PROJECTION, text=captured, alphas=(0.0, 0.5, 0.75))
    assert (found.opened.name, found.recipe) == ("0.5", None)
    assert landscapes(tiny, LAYER, PROJECTION, text=captured, alphas=(0.7, 1)).opened.name == "0.7"


def test_ceilings_are_127_steps(tiny, captured):
    found = landscapes(tiny, LAYER, PROJECTION, text=with_channel(captured), alphas=(0.5,))
    x = captured.at(LAYER, PROJECTION).abs()
    assert found.before.ceilings("per token") == pytest.approx(x.amax(dim=1).tolist())
    assert found.before.ceilings("per tensor") == pytest.approx([float(x.max())] * len(IDS))


def test_one_scale_holds_every_position(tiny, captured):
    found = landscapes(tiny, LAYER, PROJECTION, text=with_token(captured), alphas=(0.0, 0.5, 1.0))
    for kind, limits in enumerate(found.limits):
        every = [view.cells[kind].largest for view in found.positions]
        shown = [view.cells[kind] for view in (found.before, found.opened)]
        assert limits.top == max(every)
        assert limits.opening_top == max(cells.largest for cells in shown)
        assert 0 < limits.floor < limits.top
    inputs, weights = found.limits
    rest = max(float(view.inputs.values[1:].max()) for view in (found.before, found.opened))
    assert inputs.opening_top_without_first == rest < inputs.opening_top
    assert weights.opening_top_without_first == weights.opening_top
    half = min(float(view.steps["per token"].min()) / 2 for view in found.positions)
    assert inputs.floor < half


def test_one_token_of_zeros_has_a_scale(tiny):
    activations = capture(tiny, IDS[:1])
    activations.inputs[LAYER, PROJECTION] = torch.zeros_like(activations.at(LAYER, PROJECTION))
    limits, _ = landscapes(tiny, LAYER, PROJECTION, text=activations, alphas=(0.5,)).limits
    assert (limits.top, limits.opening_top, limits.opening_top_without_first) == (1.0, 1.0, 1.0)
    assert 0 < limits.floor < 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alphas": ()}, "at least one number from 0 to 1"),
        ({"alphas": (1.5,)}, "from 0 to 1"),
        ({"grid": "per row"}, "accepted: per token, per tensor"),
    ],
)
def test_what_cannot_be_computed_is_refused(tiny, options, said):
    with pytest.raises(InputError, match=said):
        landscapes(tiny, 0, PROJECTION, text=IDS, **options)
