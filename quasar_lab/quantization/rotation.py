"""Rotations that spread a large channel over all channels."""

import torch
from quasar_kernels.reference import rotation_sides
from torch import Tensor

EVEN_LIMIT, DENSE_LIMIT = 16, 128
"""Largest dense factor worth its evenness; largest at all: beyond, a rotation would cost as much as a linear."""


LONGEST = 16384


def hadamard(size: int) -> Tensor | None:
    """A Hadamard matrix f32 [n, n] of ±1 by Paley's first construction, None where it gives none; n = 1 and 2 too."""
    if size <= 2:
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]])[:size, :size]
    q = size - 1
    if size % 4 or any(q % divisor == 0 for divisor in range(2, int(q**0.5) + 1)):
        return None  # it needs a prime q ≡ 3 mod 4
    squares = {i * i % q for i in range(1, q)}
    residue = torch.tensor([0.0] + [1.0 if i in squares else -1.0 for i in range(1, q)])
    index = torch.arange(q)
    matrix = torch.eye(size)
    matrix[0, 1:] += 1
    matrix[1:, 0] -= 1
    matrix[1:, 1:] += residue[(index[:, None] - index) % q]
    return matrix


def rotation_matrix(size: int) -> Tensor | None:
    """The dense factor f32 [P, P] of an orthonormal rotation of `size` channels (`quasar_kernels.rotate`).

    A Hadamard matrix, whose entries are all equally large, where one of at most 16 fits: 12 for 1536 and for 12288.
    Else the Hartley matrix cas(2πij/P)/√P of the odd part of `size`: a little less even, but small, and the cost grows
    with P. At 576 the Hartley 9 has the KL of the Hadamard 36 (0.0019) at less than half its time. None where the
    odd part is above 128. K/P is at most 16384, what a block of a GPU holds in registers.
    """
    sides = [side for side in rotation_sides(size) if size // side <= LONGEST]
    for side in sides:
        matrix = hadamard(side) if side <= EVEN_LIMIT else None
        if matrix is not None:
            return matrix / side**0.5
    odd = sides[0]
    if odd > DENSE_LIMIT:
        return None
    index = torch.arange(odd, dtype=torch.float64)
    angle = 2 * torch.pi * index[:, None] * index / odd
    return ((angle.cos() + angle.sin()) / odd**0.5).float()
