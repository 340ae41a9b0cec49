"""Does every op of a device backend compute what the reference defines, at every width, and write all of it?

## Idea

Each op runs at widths 1…17 and is held to three things. Its results agree with the reference, bit for bit where the
definition says so. It writes all of its output and nothing behind it. A row has the same bits at every width.

## Choice

The inputs are fresh random numbers at every run (the report has the seed), rounded to what the device holds. The
reference computes from the same numbers on the CPU. The output buffers are filled with poison first and have one more
row, the guard row, which must still hold poison afterwards. Shapes are those of models, and odd ones.

The vendor's BF16 product (cuBLAS) runs only where a tile table asks for it. It is checked as if one did, and it is
checked in two more ways: each row alone, and from a CUDA graph.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from quasar_kernels import reference
from quasar_kernels.agreement import Agree, equal, near, one_step
from quasar_kernels.reference import Transform
from quasar_kernels.triton import tiles
from torch import Tensor

from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.support.machine import wait_for_device

WIDEST = 17
HEADS, GROUPS, SIZE = 8, 2, 64
"""Query heads, key/value heads, and the size of a head."""
CAPACITY, START = 640, 301
"""Rows of the KV cache, and how many of them a pass finds filled."""
POISON = 77
"""What an INT8 buffer is filled with; a buffer of floating-point numbers is filled with NaN."""

INT8 = torch.int8, torch.float32
"""Dtypes of rows that are rounded to INT8, and of their scales."""


@dataclass(frozen=True)
class Case:
    """One op on one shape, and what it must give."""

    label: str
    run: Callable[[int, Any], object]
    """Called with a width and one tensor per result: computes the first `width` rows into these tensors."""
    wanted: tuple[Tensor, ...]
    """The reference's results on the CPU, for all WIDEST rows."""
    agree: tuple[Agree, ...]
    """How a result is compared with the reference, per result."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    """The dtypes of the tensors that `run` writes to."""


class Inputs:
    """Random operands on a device, and the same numbers in FP32 on the CPU.

    ops: the backend to be checked. dtype: of its activations. capture: makes a CUDA graph of a call.
    """

    def __init__(self, ops: Any, device: str, capture: Callable[..., Callable[[], None]], seed: int):
        self.ops, self.device, self.capture = ops, device, capture
        self.dtype = ops.activations(torch.device(device))
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=self.generator)

    def rounded(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Like an activation: with an outlier channel, rounded to the precision of the device."""
        x = self.normal(*shape, scale=scale)
        x[..., int(torch.randint(shape[-1], (1,), generator=self.generator))] *= 20
        return x.to(self.dtype).float()

    def activation(self, x: Tensor) -> Tensor:
        """`x` on the device, in the dtype of its activations."""
        return x.to(self.device, self.dtype)

    def here(self, x: Tensor) -> Tensor:
        """`x` on the device, in its own dtype."""
        return x.to(self.device)

    def integers(self, numbers: Sequence[int]) -> Tensor:
        """The numbers as an i32 tensor on the device."""
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def near(self, limit: float) -> Agree:
        """Agreement to `limit` where activations are BF16, and to 1e-5 where they are FP32."""
        return near(1e-5 if self.dtype is torch.float32 else limit)

    def transform(self, size: int) -> tuple[Transform, Transform]:
        """(on the CPU, on the device): smoothing, shift, and a rotation where there is one for this size."""
        smooth, shift, rotation = self.normal(size).abs() + 0.5, self.normal(size, scale=0.1), rotation_matrix(size)
        rotation_here = None if rotation is None else self.here(rotation)
        return Transform(smooth, shift, rotation), Transform(self.here(smooth), self.here(shift), rotation_here)


def quantizing_cases(inputs: Inputs, size: int) -> Iterator[Case]:
    """The ops whose result is INT8 rows of `size` numbers, without and with a transform."""
    ops, gain = inputs.ops, inputs.normal(size)
    x, stream, wide = inputs.rounded(WIDEST, size), inputs.normal(WIDEST, size), inputs.normal(WIDEST, 2 * size)
    x_here, stream_here, wide_here, gain_here = inputs.activation(x), *map(inputs.here, (stream, wide, gain))

    def quantize(transform: Transform | None, m: int, out: Any) -> None:
        ops.quantize_rows(x_here[:m], transform, out=out)

    def norm(transform: Transform | None, m: int, out: Any) -> None:
        ops.rmsnorm_quantize(stream_here[:m], gain_here, 1e-6, transform, out=out)

    def gate(transform: Transform | None, m: int, out: Any) -> None:
        ops.silu_mul_quantize(wide_here[:m], transform, out=out)

    for what, (on_cpu, here) in {"": (None, None), ", transformed": inputs.transform(size)}.items():
        rounded = reference.quantize_rows(x, on_cpu)
        normed = reference.rmsnorm_quantize(stream, gain, 1e-6, on_cpu)
        gated = reference.silu_mul_quantize(wide, on_cpu)
        nearly = one_step, near(1e-4)
        yield Case(f"quantize_rows{what} {size}", partial(quantize, here), rounded, (equal, equal), INT8)
        yield Case(f"rmsnorm_quantize{what} {size}", partial(norm, here), normed, nearly, INT8)
        yield Case(f"silu_mul_quantize{what} {size}", partial(gate, here), gated, nearly, INT8)


def row_cases(inputs: Inputs, size: int) -> Iterator[Case]:
    """The norm, the gate and the rotation of rows of `size` numbers."""
    ops, gain = inputs.ops, inputs.normal(size)
    x, stream, wide = inputs.rounded(WIDEST, size), inputs.normal(WIDEST, size), inputs.normal(WIDEST, 2 * size)
    x_here, stream_here, wide_here, gain_here = inputs.activation(x), *map(inputs.here, (stream, wide, gain))
    yield Case(
        f"rmsnorm {size}",
        lambda m, out: ops.rmsnorm(stream_here[:m], gain_here, 1e-6, out=out[0]),
        (reference.rmsnorm(stream, gain, 1e-6),),
        (inputs.near(4e-3),),
        (inputs.dtype,),
    )
    yield Case(
        f"silu_mul {size}",
        lambda m, out: ops.silu_mul(wide_here[:m], out=out[0]),
        (reference.silu_mul(wide),),
        (inputs.near(4e-3),),
        (inputs.dtype,),
    )
    rotation = rotation_matrix(size)
    if rotation is not None:
        rotation_here = inputs.here(rotation)
        yield Case(
            f"rotate {size}",
            lambda m, out: ops.rotate(x_here[:m], rotation_here, out=out[0]),
            (reference.rotate(x, rotation),),
            (equal,),
        )


def product_cases(inputs: Inputs, outputs: int, size: int) -> Iterator[Case]:
    """Both products of N × K, plain and with bias and residual, the residual also written in place."""
    ops, shape = inputs.ops, f"{outputs} × {size}"
    w, bias = inputs.normal(outputs, size, scale=size**-0.5).bfloat16(), inputs.normal(outputs)
    residual, x = inputs.normal(WIDEST, outputs), inputs.rounded(WIDEST, size)
    (q, scale), (wq, wscale) = reference.quantize_rows(x), reference.quantize_rows(w.float())
    x_here, packed, packed_int8 = inputs.activation(x), ops.pack_bf16(inputs.here(w)), ops.pack_w8a8(inputs.here(wq))
    q_here, scale_here, wscale_here, bias_here, residual_here = map(inputs.here, (q, scale, wscale, bias, residual))

    def w8a8(full: bool, m: int, out: Any) -> None:
        more = (bias_here, residual_here[:m]) if full else (None, None)
        ops.linear_w8a8(q_here[:m], scale_here[:m], packed_int8, wscale_here, *more, out=out[0])

    def bf16(full: bool, m: int, out: Any) -> None:
        more = (bias_here, residual_here[:m]) if full else (None, None)
        ops.linear_bf16(x_here[:m], packed, *more, out=out[0])

    def in_place(m: int, out: Any) -> None:
        out[0].copy_(residual_here[:m])
        ops.linear_w8a8(q_here[:m], scale_here[:m], packed_int8, wscale_here, None, out[0], out=out[0])

    for full, what in ((False, ""), (True, ", bias and residual")):
        more = (bias, residual) if full else (None, None)
        exact, summed = reference.linear_w8a8(q, scale, wq, wscale, *more), reference.linear_bf16(x, w, *more)
        yield Case(f"linear_w8a8{what} {shape}", partial(w8a8, full), (exact,), (equal,))
        # Tensor cores drop low bits when they add.
        yield Case(f"linear_bf16{what} {shape}", partial(bf16, full), (summed,), (near(1e-4),))
    wanted = reference.linear_w8a8(q, scale, wq, wscale, None, residual)
    yield Case(f"linear_w8a8 in place {shape}", in_place, (wanted,), (equal,))


def vendor_cases(inputs: Inputs, outputs: int, size: int) -> Iterator[Case]:
    """The BF16 product where the tile table says "cublas"."""
    ops, shape = inputs.ops, f"{outputs} × {size}"
    tile = {**tiles.linear_tile("linear_bf16", outputs, size, torch.device("cpu")), "engine": "cublas"}
    w, bias = inputs.normal(outputs, size, scale=size**-0.5).bfloat16(), inputs.normal(outputs)
    residual, x = inputs.normal(WIDEST, outputs), inputs.rounded(WIDEST, size)
    x_here, packed = inputs.activation(x), ops.pack_bf16(inputs.here(w))
    bias_here, residual_here = map(inputs.here, (bias, residual))

    def product(rows: slice, out: Tensor | None = None) -> Tensor:
        with tiles.forced("linear_bf16", tile):
            return ops.linear_bf16(x_here[rows], packed, bias_here, residual_here[rows], out=out)

    def alone(m: int, out: Any) -> None:
        for row in range(m):
            product(slice(row, row + 1), out[0][row : row + 1])

    def captured(m: int, out: Any) -> None:
        replay = inputs.capture(lambda: product(slice(m), out[0]))
        out[0].fill_(torch.nan)
        replay()
        wait_for_device(inputs.device)  # before the graph goes

    wanted = reference.linear_bf16(x, w, bias, residual)
    yield Case(f"linear_bf16 of cuBLAS {shape}", lambda m, out: product(slice(m), out[0]), (wanted,), (near(1e-4),))
    together = product(slice(WIDEST)).cpu()
    yield Case(f"linear_bf16 of cuBLAS, each row alone {shape}", alone, (together,), (equal,))
    yield Case(f"linear_bf16 of cuBLAS, from a graph {shape}", captured, (together,), (equal,))


def rope_cases(inputs: Inputs) -> Iterator[Case]:
    """Rope, with what it appends to the KV cache as two more results."""
    ops = inputs.ops
    angles = inputs.normal(CAPACITY, SIZE // 2)
    cos, sin, q_norm, k_norm = angles.cos(), angles.sin(), inputs.normal(SIZE), inputs.normal(SIZE)
    tables_here, norms_here = list(map(inputs.here, (cos, sin))), list(map(inputs.here, (q_norm, k_norm)))
    qkv = inputs.normal(WIDEST, (HEADS + 2 * GROUPS) * SIZE)
    qkv_here, start = inputs.here(qkv), inputs.integers([START])
    places = [START + m for m in range(WIDEST)]
    k, v = (torch.zeros(GROUPS, CAPACITY, SIZE) for _ in range(2))
    wanted = reference.rope_append(qkv, k, v, START, cos[places], sin[places], q_norm, k_norm, 1e-6)
    appended = [cache[:, START : START + WIDEST].transpose(0, 1) for cache in (k, v)]
    positions = inputs.integers(places)

    def rope(m: int, out: Any) -> None:
        caches = [torch.full((GROUPS, CAPACITY, SIZE), 3.0, dtype=inputs.dtype, device=inputs.device) for _ in "kv"]
        ops.rope_append(
            qkv_here[:m], *caches, start, *tables_here, *norms_here, 1e-6, positions=positions[:m], out=out[0]
        )
        for cache, rows in zip(caches, out[1:], strict=True):
            rows.copy_(cache[:, START : START + m].transpose(0, 1))
            cache[:, START : START + m] = 3.0
            if bool((cache != 3.0).any()):
                rows.fill_(torch.nan)  # it wrote where it must not

    yield Case("rope_append", rope, (wanted, *appended), (inputs.near(8e-3),) * 3, (inputs.dtype,) * 3)


def attention_cases(inputs: Inputs) -> Iterator[Case]:
    """Attention with lengths and parents on the device: a chain, a chain in a window, and a tree."""
    ops = inputs.ops
    q = inputs.normal(WIDEST, HEADS, SIZE).to(inputs.dtype).float()
    k, v = (inputs.normal(GROUPS, CAPACITY, SIZE).to(inputs.dtype).float() for _ in "kv")
    q_here, caches_here = inputs.activation(q), [inputs.activation(cache) for cache in (k, v)]
    for cache in caches_here:
        cache[:, START + WIDEST :] = torch.nan  # no row attends to these
    parents = [-1] + [int(torch.randint(-1, m, (1,), generator=inputs.generator)) for m in range(1, WIDEST)]
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    for what, tree, window, more in (
        ("", None, 0, {}),
        (", reach given", None, 0, {"reach": START + WIDEST}),
        (", window", None, 37, {}),
        (", tree", parents, 0, {}),
    ):
        lengths = [START + 1 + (m if tree is None else depths[m]) for m in range(WIDEST)]
        lengths_here = inputs.integers(lengths)
        tree_here = None if tree is None else inputs.integers(tree)

        def run(m: int, out: Any, ends: Any = lengths_here, tree: Any = tree_here, w: int = window, more: Any = more):
            ops.attend(q_here[:m], *caches_here, ends[:m], None if tree is None else tree[:m], w, out=out[0], **more)

        wanted = reference.attend(q, k, v, lengths, tree, window)
        yield Case(f"attend{what}", run, (wanted,), (inputs.near(8e-3),), (inputs.dtype,))


def table_cases(inputs: Inputs, vocabulary: int) -> Iterator[Case]:
    """The two ends of a pass: rows of the embedding, and the likeliest tokens, among them equal ones."""
    ops = inputs.ops
    table = inputs.normal(vocabulary, 96).bfloat16()
    ids = torch.randint(vocabulary, (WIDEST,), generator=inputs.generator)
    table_here, ids_here = inputs.here(table), ids.to(inputs.device, torch.int32)
    yield Case(
        f"embed_rows {vocabulary}",
        lambda m, out: ops.embed_rows(table_here, ids_here[:m], out=out[0]),
        (table[ids].float(),),
        (equal,),
    )
    logits = inputs.normal(WIDEST, vocabulary, scale=4.0)
    logits[:, 3] = logits[:, vocabulary - 2] = logits.amax(dim=-1)
    logits_here = inputs.here(logits)
    values, best, log_sums = reference.top_rows(logits, 5)
    yield Case(
        f"top_table {vocabulary}",
        lambda m, out: ops.top_table(logits_here[:m], 5, out=out[0]),
        (torch.cat([best.double(), values.double(), log_sums.double()[:, None]], dim=1),),
        (lambda f, w: equal(f[:, :-1], w[:, :-1]) or near(1e-5)(f[:, -1], w[:, -1]),),
        (torch.float64,),
    )


def all_cases(inputs: Inputs, small: bool) -> Iterator[Case]:
    """Every op, on the shapes of models and on odd ones. small: only shapes that the reference computes quickly."""
    for size in (96, 517) if small else (96, 517, 4096, 12288):
        yield from quantizing_cases(inputs, size)
        yield from row_cases(inputs, size)
    shapes = ((129, 96), (131, 517)) if small else ((129, 96), (1031, 517), (6144, 4096), (4096, 12288))
    for shape in shapes:
        yield from product_cases(inputs, *shape)
    yield from rope_cases(inputs)
    yield from attention_cases(inputs)
    yield from table_cases(inputs, 211 if small else 151936)
    for shape in shapes:
        yield from vendor_cases(inputs, *shape)


def examine(case: Case, device: str) -> str | None:
    """What is wrong with a case, or None."""
    widest: list[Tensor] = []
    for width in range(WIDEST, 0, -1):
        buffers = [_poisoned(width + 1, *one, device) for one in zip(case.wanted, case.dtypes, strict=True)]
        case.run(width, tuple(buffer[:width] for buffer in buffers))
        for place, (buffer, wanted, agree) in enumerate(zip(buffers, case.wanted, case.agree, strict=True)):
            found = buffer[:width].cpu()
            if width == WIDEST:
                widest.append(found)
            fault = _unwritten(found, buffer[width:].cpu())
            if fault is None and not torch.equal(found, widest[place][:width]):
                fault = f"other bits than at width {WIDEST}"
            if fault is None:
                fault = agree(found.float() if wanted.dtype is torch.float32 else found, wanted[:width])
            if fault is not None:
                return f"width {width}, result {place}: {fault}"
    return None


def _poisoned(rows: int, wanted: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """A buffer for so many rows of a result, filled with poison."""
    poison = torch.nan if dtype.is_floating_point else POISON
    return torch.full((rows, *wanted.shape[1:]), poison, dtype=dtype, device=device)


def _unwritten(found: Tensor, guard: Tensor) -> str | None:
    """Whether the rows still hold poison, or the guard row behind them no longer does."""
    behind = guard.isnan() if found.is_floating_point() else guard == POISON
    if not bool(behind.all()):
        return "written behind its end"
    if found.is_floating_point() and not bool(found.isfinite().all()):
        return f"{int((~found.isfinite()).sum())} numbers are NaN, infinite or were not written"
    return None
