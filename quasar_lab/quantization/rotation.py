"""Rotations that spread a large channel over all channels, and the factors that go with them.

## Idea

An orthonormal matrix R spreads a large channel over all: x Wᵀ = (x R)(W R)ᵀ, exact before rounding like smoothing. A
rotated row looks Gaussian, with its largest value about 3 times its root mean square. So the INT8 step follows ‖x / s‖,
and the rounding noise of the product is proportional to ‖x / s‖² · ‖W · s‖². The s that makes this product smallest
balances root mean squares, not maxima: s_k² = rms(x_k) / ‖W_k‖, by the Cauchy-Schwarz inequality. So `balanced_factors`
and a rotation belong together.

## Choice

The rotation runs online, behind the norm, and not once on the residual stream, where it would be free. A rotated stream
cannot carry the gains of the norms, nor any s. On the embedded model ‖x‖² · ‖W‖² is then 2 to 4 times what gains, s and
an online rotation leave (at nine layers' qkv_proj and gate_up_proj; 1.5 times at the head). In front of o_proj the
rotation acts inside each value head and is folded into the rows that give the values: nothing runs online there.

R is a Kronecker product of a small dense factor and a Hadamard matrix of a power of two (`quasar_kernels.rotate`).

## What is lost

Time: what a rotation costs online is in the README of the kernels.

## Source

QuaRot, arXiv 2404.00456.
"""

import torch
from quasar_kernels.reference import rotation_sides
from torch import Tensor

from quasar_lab.quantization.smoothing import smoothquant_factors

EVEN_LIMIT = 16
"""The largest dense Hadamard factor: a larger one costs more time than its evenness gains."""
DENSE_LIMIT = 128
"""The largest dense factor at all: beyond, a rotation would cost as much as a linear."""
LONGEST = 16384
"""The largest power of two beside the dense factor: what a block of a GPU holds in registers."""


def balanced_factors(activation_square: Tensor, weight_square: Tensor) -> Tensor:
    """s f32 [K] = (E[x_k²] / ‖W_k‖²)^¼, for inputs that are rotated next; both arguments f32 [K]; geometric mean 1."""
    return smoothquant_factors(activation_square.sqrt(), weight_square.sqrt(), 0.5)


def hadamard(size: int) -> Tensor | None:
    """A Hadamard matrix f32 [n, n] of ±1 by Paley's first construction, or for n = 1 and 2; None for other sizes."""
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

    It is a Hadamard matrix, whose entries are all equally large, where one of at most 16 fits: 12 for 1536 and for
    12288. Elsewhere it is the Hartley matrix cas(2πij/P)/√P of the odd part of `size`, which is a little less even but
    small, and the cost grows with P. At 576 the Hartley 9 has the KL of the Hadamard 36 (0.0019) at less than half its
    time. None where the odd part is above 128.
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
