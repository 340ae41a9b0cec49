"""Inputs of one linear of the tiny model with outliers planted, and a stand-in for a model that rotates it."""

import torch

from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.rotation import rotation_matrix

IDS = [3, 17, 5, 80, 41, 5, 80, 2]
LAYER, PROJECTION = 1, "down_proj"


def with_channel(captured, channel=7, size=100.0):
    """The same input with one channel that is large for every token."""
    captured.inputs[LAYER, PROJECTION] = captured.at(LAYER, PROJECTION).clone()
    captured.inputs[LAYER, PROJECTION][:, channel] = size
    return captured


def with_token(captured, channel=7, size=3000.0):
    """The same input with one massive value, of the first token."""
    captured.inputs[LAYER, PROJECTION] = captured.at(LAYER, PROJECTION).clone()
    captured.inputs[LAYER, PROJECTION][0, channel] = size
    return captured


class Rotating:
    """A quantized model that rotates the toy's linears."""

    name = "w8a8"

    def __init__(self, channels):
        torch.manual_seed(0)
        self.mapping = InputMap(torch.rand(channels) + 0.5, rotation_matrix(channels))
        self.mappings = {(LAYER, PROJECTION): self.mapping}
