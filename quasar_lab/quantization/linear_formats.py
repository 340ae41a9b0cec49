"""How the linears of a quantized model are saved, and what they compute.

## Idea

A recipe names one format for all its linears (`Recipe.linear_format`). The format rounds a weight to the tensors that
are saved, says in plain torch what a linear makes of them, and builds the decoder's linear when a saved model is
loaded.

## Choice

W8A8, the one format here, is symmetric: INT8 weights with one scale per output channel, INT8 activations with one scale
per token, computed as they flow.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from quasar_kernels import Backend, Transform
from quasar_kernels.reference import quantize_rows
from torch import Tensor

from quasar_lab.models.linear import Int8Linear, Linear
from quasar_lab.models.model_config import Key
from quasar_lab.models.value_basis import placed
from quasar_lab.quantization.gptq import quantize_weight
from quasar_lab.quantization.saved_tensors import SavedTensors

Rounded = dict[str, Tensor]
"""The tensors of one rounded weight, by the ending of their name in a saved model ("wq", "wscale", …)."""

Rounding = Callable[[Key, Tensor], Rounded]
"""(key, W f32 [N, K] for mapped inputs) → the rounded weight."""


@dataclass(frozen=True)
class SavedLinear:
    """One linear of a saved model."""

    tensors: SavedTensors
    """All tensors of the model."""
    name: str
    """The linear's name in the file: "layers.3.o_proj"."""
    shape: tuple[int, int]
    """[N, K]."""
    transform: Transform | None
    """What is left to do on the way into the linear, after folding."""

    def get(self, ending: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """One of its tensors. Raises RecipeError unless it has this dtype and shape."""
        return self.tensors.get(f"{self.name}.{ending}", dtype, shape)

    @property
    def bias(self) -> Tensor | None:
        """b f32 [N], or None."""
        return self.tensors.optional(f"{self.name}.bias", self.shape[:1])


class LinearFormat(ABC):
    """How the linears of a quantized model are saved, and what they compute."""

    name: ClassVar[str]
    """What recipe.json calls it."""

    @abstractmethod
    def round_to_nearest(self, weight: Tensor) -> Rounded:
        """W [N, K] → the tensors to save."""

    @abstractmethod
    def product(self, x: Tensor, rounded: Rounded) -> Tensor:
        """x Wᵀ f32 [M, N] as the linear computes it, without bias: x f32 [M, K] mapped and not rounded yet."""

    @abstractmethod
    def load(self, saved: SavedLinear, ops: Backend, device: str) -> Linear:
        """The decoder's linear, with its tensors on the device. Raises RecipeError on tensors of the wrong form."""


class W8A8Format(LinearFormat):
    """wq int8 [N, K] and wscale f32 [N]; rows of the input are rounded to INT8 with a scale each."""

    name = "w8a8"

    def round_to_nearest(self, weight: Tensor) -> Rounded:
        wq, wscale = quantize_weight(weight)
        return {"wq": wq, "wscale": wscale}

    def product(self, x: Tensor, rounded: Rounded) -> Tensor:
        q, scale = quantize_rows(x)
        return (q.float() * scale[:, None]) @ (rounded["wq"].float() * rounded["wscale"][:, None]).T

    def load(self, saved: SavedLinear, ops: Backend, device: str) -> Linear:
        wq = saved.get("wq", torch.int8, saved.shape)
        return Int8Linear(
            weight=ops.pack_w8a8(wq.to(device)),
            wscale=saved.get("wscale", torch.float32, saved.shape[:1]).to(device),
            bias=None if saved.bias is None else saved.bias.to(device),
            transform=None if saved.transform is None else placed(saved.transform, device),
            shape=saved.shape,
        )


W8A8 = W8A8Format()


def nearest(linear_format: LinearFormat) -> Rounding:
    """The rounding that treats every weight alone."""
    return lambda key, weight: linear_format.round_to_nearest(weight)
