"""The tensors of a saved model, each checked before it is used.

Kernels trust shapes, so a damaged file must not reach them: every tensor is asked for with the type and shape that it
should have.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.support.errors import RecipeError


class SavedTensors:
    """All tensors of a weights file. Raises RecipeError when the file cannot be read."""

    def __init__(self, path: Path):
        self._path = path
        try:
            with safe_open(path, framework="pt") as file:
                self._tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise RecipeError(f"{path} is truncated or corrupt; prepare it again") from error

    def get(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Raises RecipeError unless the tensor is there with this dtype and shape."""
        found = self._tensors.get(name)
        if found is None or found.dtype != dtype or tuple(found.shape) != shape:
            what = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise RecipeError(f"{self._path} holds {what} as {name}; accepted: {dtype} {list(shape)}; prepare it again")
        return found

    def optional(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """The f32 tensor, or None where there is none."""
        return self.get(name, torch.float32, shape) if name in self._tensors else None

    def input_map(self, name: str, size: int, group: int | None = None) -> InputMap | None:
        """The map of the `size` inputs of a linear, of which `group` are rotated together; None where there is none."""
        factors = self.optional(f"{name}.factors", (size,))
        if factors is None:
            return None
        expected = rotation_matrix(group or size)
        rotation = None if expected is None else self.optional(f"{name}.rotation", tuple(expected.shape))
        return InputMap(factors, rotation, group, self.optional(f"{name}.shift", (size,)))
