"""One linear is inspected with the mapping that was asked for."""

import pytest
import torch
from outlier_inputs import IDS, LAYER, PROJECTION, Rotating

from quasar_lab.evaluation.activations import capture
from quasar_lab.evaluation.linear_view import inspect_linear
from quasar_lab.quantization.smoothing import smoothquant_factors
from quasar_lab.support.errors import InputError


@pytest.fixture
def part(tiny):
    return inspect_linear(tiny, LAYER, PROJECTION, capture(tiny, IDS))


def test_the_mapping_is_that_of_the_recipe_or_of_this_text(part):
    own = part.mapped(None)
    factors = smoothquant_factors(part.x.abs().amax(dim=0), part.weight.abs().amax(dim=0), 0.5)
    assert torch.equal(own.mapping.factors, factors)
    assert (own.origin, own.recipe) == ("α = 0.5 on this text", None)
    recipe = Rotating(part.x.shape[1])
    rotated = part.mapped(recipe)
    assert rotated.mapping is recipe.mapping
    assert (rotated.origin, rotated.recipe) == ("factors and rotation of w8a8", "w8a8")
    recipe.mappings = {}
    plain = part.mapped(recipe)
    assert torch.equal(plain.mapping.inputs(part.x), part.x)
    assert (plain.origin, plain.recipe) == ("w8a8 rounds this input as it is", "w8a8")


def test_a_layer_that_is_not_there_is_refused(tiny):
    with pytest.raises(InputError, match=r"accepted: layers 0…1"):
        inspect_linear(tiny, 2, PROJECTION, IDS)


@pytest.mark.parametrize("number", [48, -1])
def test_a_channel_that_is_not_there_is_refused(part, number):
    assert part.channel(47) == 47
    with pytest.raises(InputError, match=r"accepted: 0…47"):
        part.channel(number)
