"""Keys and values of the tokens already seen: one contiguous block per layer, and a length.

A rejected draft is undone by `rollback(length)`: the length shrinks and the rows behind it are dead, never read and
overwritten by the next pass. Nothing is copied, so a rollback costs nothing. Capacity is fixed at creation; a pass that
does not fit is refused before it starts.
"""

import torch
from torch import Tensor

from quasar_lab.errors import InputError


class KVCache:
    """k, v: f32 [layers, kv_heads, capacity, head_dim]; `length` rows are valid."""

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int):
        self.k, self.v = (torch.empty(layers, kv_heads, capacity, head_dim) for _ in range(2))
        self.length = 0

    @property
    def capacity(self) -> int:
        return self.k.shape[2]

    @property
    def row_bytes(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.k.shape[0] * self.k.shape[1] * self.k.shape[3] * self.k.element_size()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each f32 [kv_heads, capacity, head_dim] (views)."""
        return self.k[index], self.v[index]

    def require(self, rows: int) -> None:
        """Raises InputError unless `rows` more rows fit."""
        if self.length + rows > self.capacity:
            raise InputError(f"{rows} more tokens do not fit behind {self.length}; the cache holds {self.capacity}")

    def rollback(self, length: int) -> None:
        """Forgets every row from `length` on. Raises InputError unless 0 ≤ length ≤ the present one."""
        if not 0 <= length <= self.length:
            raise InputError(f"cannot roll back to {length}; accepted: 0…{self.length}")
        self.length = length
