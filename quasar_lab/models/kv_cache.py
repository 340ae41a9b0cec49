"""Keys and values of the tokens already seen: one contiguous block per layer, and a length.

A rejected draft is undone by `rollback(length)`: the length shrinks and the rows behind it are dead, never read and
overwritten by the next pass. Nothing is copied, so a rollback costs nothing. Capacity is fixed at creation; a pass that
does not fit is refused before it starts.
"""

from typing import Any

from torch import Tensor

from quasar_lab.support.errors import InputError


class KVCache:
    """k, v [layers, kv_heads, at least `capacity` rows, head_dim], f32 on CPUs; `length` rows are valid.

    arena: whose memory that is, where it is leased (`graphs`).
    """

    def __init__(self, k: Tensor, v: Tensor, capacity: int, arena: Any = None):
        self.k, self.v, self.capacity, self.arena = k, v, capacity, arena
        self.length = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.k.shape[0] * self.k.shape[1] * self.k.shape[3] * self.k.element_size()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each [kv_heads, rows, head_dim] (views)."""
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
