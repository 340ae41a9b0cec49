"""Products of Triton's interpreter in an order of their own, so that tests may compare bits.

The interpreter leaves `tl.dot` to numpy, and so to a BLAS, which promises no order: on some processors the rows of one
tile are summed in different orders, and a kernel in which every row goes the same way would seem to depend on the width
of its pass. Here products are rounded, then the upper half of K is added to the lower, until one sum is left: additions
number by number, alike for every row and column of a tile of any shape.

Only then is the sum added to the accumulator, as the interpreter itself does, and halves that are k and k + K/2 are no
stretches of K: so a K that is cut elsewhere has other bits, and a kernel whose cuts depend on the width is still found.

What is lost: every product lies in memory at once, K times the result. Integer sums are exact in any order and stay
with the interpreter.
"""

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

as_given = InterpreterBuilder.create_dot


def order_products() -> None:
    """From now on the interpreter of this process sums the products of floating-point numbers as said above."""
    InterpreterBuilder.create_dot = _create_dot


def _create_dot(builder, a, b, d, input_precision, max_num_imprecise_acc):
    if not all(np.issubdtype(x.data.dtype, np.floating) for x in (a, b)):
        return as_given(builder, a, b, d, input_precision, max_num_imprecise_acc)
    left, right = (x.data.astype(d.data.dtype) for x in (a, b))
    products = left[..., :, :, None] * right[..., None, :, :]
    while half := products.shape[-2] // 2:  # K is a power of two, as every side of a tile
        products = products[..., :half, :] + products[..., half:, :]
    return TensorHandle(products[..., 0, :] + d.data, d.dtype.scalar)
