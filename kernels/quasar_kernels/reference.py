"""Every op in plain torch: the definition that the C++ and Triton kernels must reproduce.

Idea. One decoder step is seven kinds of work: normalise, quantize, multiply (INT8 or BF16), rotate-and-append, attend,
gate. Each is one function here, written for clarity first; a kernel is right when it agrees with this file (exactly
where INT32 decides or the order of a sum is part of the definition, to a small tolerance where FP32 sums are
reordered).

Width-invariance. Greedy speculative decoding equals plain decoding only if the row of a token has the same bits however
many rows share the pass. BLAS picks another kernel for M = 1 than for M = 2, so a linear here always has `ROWS` = 16
rows (zero padded, wider inputs in chunks): the K loop then never depends on M. What is left to the BLAS is that it sums
these sixteen rows alike; MKL, with which torch is built for x86, does, at a fixed thread count. Attention does not ask
that much: its products are small, and there MKL sums some rows in another order where AVX2 is the best instruction set.
They are summed here, number by number. It walks the cache in blocks of `BLOCK` absolute positions and combines them in
position order, each block padded to full size with zeros, so the cache length changes no shape.

INT8. FP32 products of ±127 are exact only to K = 1040 (127² · 1040 < 2²⁴), so K is cut into chunks of 1024 whose FP32
sums, exact integers, are added in INT32: exact to K = 133 000.

Rotation. One channel with large numbers sets the INT8 step of its whole row; an orthonormal matrix spreads it over all
channels, and the weights multiplied by the same matrix undo it. A dense K × K matrix would cost as much as a linear, so
`rotate` takes the Kronecker product of a small dense P × P matrix and the Walsh-Hadamard matrix of size K/P: P + log₂
K/P additions per number. Channel counts are a small odd number times a power of two (1536 = 12 · 128, 11008 = 43 ·
256), which no Hadamard matrix alone would fit. Every addition has its place in the definition and products are rounded
before they are added, so that all backends give the same bits.

What is lost. Speed: weights are widened block by block on every call, and attention is no BLAS product. Times of this
backend are not speed measurements.

Shapes: M rows (tokens of the pass), K inputs, N outputs, H query heads, G key/value heads, D head size, C cache
capacity. Source: the smoothing and the order of the fused ops follow SmoothQuant (arXiv 2211.10438) and Quasar (arXiv
2603.01399); the rotation follows QuaRot (arXiv 2404.00456), with the dense factor free instead of a fixed Hadamard
matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt

import torch
from torch import Tensor

ROWS = 16
BLOCK = 64
K_EXACT = 1024
N_BLOCK = 4096
QMAX = 127.0

name = "reference"


@dataclass(frozen=True)
class Transform:
    """What happens to an activation row before it is quantized: ``rotate((x − shift) · inv_smooth)``; each part is
    optional.

    inv_smooth: f32 [K], 1/s of the smoothing factors. shift: f32 [K], channel centres. rotation: f32 [P, P] orthonormal
    with K/P a power of two, the dense factor that `rotate` takes.
    """

    inv_smooth: Tensor | None = None
    shift: Tensor | None = None
    rotation: Tensor | None = None


def _in_row_chunks(x: Tensor, product: Callable[[Tensor], Tensor], columns: int) -> Tensor:
    """Applies `product` to zero-padded chunks of ROWS rows: x [M, K] → [M, columns]."""
    rows = x.shape[0]
    padded = torch.zeros((rows + ROWS - 1) // ROWS * ROWS, x.shape[1], dtype=x.dtype)
    padded[:rows] = x
    out = torch.empty(padded.shape[0], columns, dtype=torch.float32)
    for start in range(0, padded.shape[0], ROWS):
        out[start : start + ROWS] = product(padded[start : start + ROWS])
    return out[:rows]


def apply_transform(x: Tensor, transform: Transform | None) -> Tensor:
    """x f32 [M, K] → f32 [M, K], the transformed row that will be rounded."""
    if transform is None:
        return x
    if transform.shift is not None:
        x = x - transform.shift
    if transform.inv_smooth is not None:
        x = x * transform.inv_smooth
    if transform.rotation is not None:
        x = rotate(x, transform.rotation)
    return x


def rotation_sides(channels: int) -> list[int]:
    """Every P that `rotate` takes for K = `channels`, ascending: the odd part of K times a power of two."""
    twos = (channels & -channels).bit_length()
    return [channels >> power for power in reversed(range(twos))]


def hadamard_size(rotation: Tensor, channels: int, most: int | None = None) -> int:
    """K/P of a rotation [P, P] for K channels. Raises ValueError, naming every P that fits, unless it is square, K/P is
    a power of two, and P is at most `most`."""
    side = rotation.shape[0] if rotation.dim() == 2 and rotation.shape[0] == rotation.shape[1] else 0
    size = channels // side if side else 0
    if size * side == channels and size & (size - 1) == 0 < size and (most is None or side <= most):
        return size
    sides = [side for side in rotation_sides(channels) if most is None or side <= most]
    limit = "" if most is None else f"; at most {most} here, `reference` takes any"
    raise ValueError(
        f"rotation is {list(rotation.shape)}; accepted for {channels} channels: [P, P] with P = "
        f"{', '.join(map(str, sides)) or 'none'} ({channels}/P is a power of two{limit})"
    )


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """x f32 [M, K] times the orthonormal matrix rotation ⊗ H: with a row seen as X [P, K/P], row-major, the result is
    rotationᵀ · X · H, f32 [M, K].

    rotation f32 [P, P]; H is the Walsh-Hadamard matrix of size n = K/P, a power of two: H[i, j] = ±1/√n, minus where
    i & j has an odd number of bits. P = 1 is H alone, P = K a dense rotation. H is its own inverse, so `rotate(y,
    rotation.T)` undoes it. The order of the work is fixed: scale, butterflies at distance 1, 2, … n/2, then the sum
    over the P rows, first to last.
    """
    rows, channels = x.shape
    size, side = hadamard_size(rotation, channels), rotation.shape[0]
    y = x * size**-0.5  # first, so that the sums in between stay near the range of x
    distance = 1
    while distance < size:
        a, b = y.reshape(rows, channels // (2 * distance), 2, distance).unbind(2)
        y = torch.stack((a + b, a - b), dim=2)
        distance *= 2
    y = y.reshape(rows, side, size)
    mixed = torch.zeros_like(y)
    for p in range(side):
        mixed += y[:, p, None] * rotation[p, :, None]
    return mixed.reshape(rows, channels)


def quantize_rows(x: Tensor, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
    """Symmetric per-token INT8: x f32 [M, K] → q int8 [M, K] in −127…127, scale f32 [M] with x ≈ q · scale.

    A row of zeros gets scale 1 and zeros. Rounds half to even. A row with NaN or infinity gets scale NaN, so that it
    shows in the result.
    """
    x = apply_transform(x, transform)
    top = x.abs().amax(dim=-1)
    scale = torch.where(top == 0, torch.ones_like(top), top / QMAX)
    scale = torch.where(torch.isfinite(top), scale, torch.full_like(top, torch.nan))
    q = torch.nan_to_num(x / scale[:, None], nan=0.0).round().clamp(-QMAX, QMAX)
    return q.to(torch.int8), scale


def rmsnorm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """x f32 [M, K] / sqrt(mean(x²) + eps) · w [K] → f32 [M, K]."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * w


def rmsnorm_quantize(x: Tensor, w: Tensor, eps: float, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
    """`rmsnorm`, then `quantize_rows`."""
    return quantize_rows(rmsnorm(x, w, eps), transform)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up f32 [M, 2F] (gate, then up) → silu(gate) · up, f32 [M, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate / (1.0 + torch.exp(-gate)) * up


def silu_mul_quantize(gate_up: Tensor, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
    """`silu_mul`, then `quantize_rows`."""
    return quantize_rows(silu_mul(gate_up), transform)


def unavailable() -> str | None:
    """Why this backend cannot run here: it always can."""
    return None


def pack_w8a8(wq: Tensor) -> Tensor:
    """int8 [N, K] in the layout that `linear_w8a8` reads: as it is."""
    return wq


def pack_bf16(w: Tensor) -> Tensor:
    """bf16 [N, K] in the layout that `linear_bf16` reads: as it is."""
    return w


def _int32_product(q: Tensor, wq: Tensor) -> Tensor:
    """q int8 [ROWS, K] · wq int8 [N, K]ᵀ → int32 [ROWS, N], exact."""
    total = torch.zeros(q.shape[0], wq.shape[0], dtype=torch.int32)
    for start in range(0, q.shape[1], K_EXACT):
        part = q[:, start : start + K_EXACT].float() @ wq[:, start : start + K_EXACT].float().T
        total += part.to(torch.int32)
    return total


def linear_w8a8(
    q: Tensor, scale: Tensor, wq: Tensor, wscale: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """INT8 × INT8 → INT32 (exact), then · scale[m] · wscale[n] + bias + residual.

    q int8 [M, K], scale f32 [M], wq int8 [N, K], wscale f32 [N], bias f32 [N], residual f32 [M, N] → f32 [M, N].
    """
    y = torch.cat(
        [_in_row_chunks(q, partial(_int32_product, wq=block), block.shape[0]) for block in wq.split(N_BLOCK)], dim=1
    )
    return _finish(y * (scale[:, None] * wscale), bias, residual)


def linear_bf16(x: Tensor, w: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """x f32 [M, K] · w bf16 [N, K]ᵀ with FP32 sums, + bias f32 [N] + residual f32 [M, N] → f32 [M, N]."""
    parts = []
    for block in w.split(N_BLOCK):
        wide = block.float().T
        parts.append(_in_row_chunks(x, partial(torch.matmul, other=wide), wide.shape[1]))
    return _finish(torch.cat(parts, dim=1), bias, residual)


def _finish(y: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    if bias is not None:
        y = y + bias
    if residual is not None:
        y = y + residual
    return y


def rope_append(
    qkv: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    start: int,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Splits qkv, rotates q and k by their positions, appends k and v to the cache, returns the queries.

    qkv f32 [M, (H + 2G)·D]; k_cache, v_cache f32 [G, C, D], rows start…start+M−1 are written; cos, sin f32 [M, D/2] of
    each row's position; q_norm, k_norm f32 [D] (Qwen3: RMSNorm per head before the rotation). Returns q f32 [M, H, D].
    The rotation pairs dimension i with i + D/2 (the "half-split" layout of Hugging Face checkpoints).
    """
    groups, _, size = k_cache.shape
    rows = qkv.shape[0]
    heads = qkv.shape[1] // size - 2 * groups
    q, k, v = qkv.reshape(rows, -1, size).split([heads, groups, groups], dim=1)
    if q_norm is not None:
        q = rmsnorm(q, q_norm, eps)
    if k_norm is not None:
        k = rmsnorm(k, k_norm, eps)
    k_cache[:, start : start + rows] = _rope(k, cos, sin).transpose(0, 1)
    v_cache[:, start : start + rows] = v.transpose(0, 1)
    return _rope(q, cos, sin)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [M, heads, D], cos and sin [M, D/2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Sequence[int],
    parents: Sequence[int] | None = None,
    window: int = 0,
) -> Tensor:
    """Softmax attention of M queries over the cache, grouped heads: q f32 [M, H, D] → f32 [M, H·D].

    k_cache, v_cache f32 [G, C, D]. lengths[m]: logical positions that row m sees, its own included (its position + 1).
    window > 0: only the last `window` of them. Chain (parents None): logical position = cache row. Tree: the rows of
    this pass lie behind the common prefix, row m at cache row min(lengths) − 1 + m; parents[m] is the row of this pass
    that m continues, −1 for the prefix; a row sees the prefix and its own path, summed in logical order, exactly as if
    that path had been decoded alone. Rows of the cache that no query sees are never read.
    """
    if parents is None:
        chunks = [
            _attend_chain(q[i : i + ROWS], k_cache, v_cache, list(lengths[i : i + ROWS]), window)
            for i in range(0, q.shape[0], ROWS)
        ]
        return torch.cat(chunks)
    prefix = min(lengths) - 1
    out = []
    for m in range(q.shape[0]):
        path = [m]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        rows = torch.tensor([*range(prefix), *(prefix + row for row in reversed(path))])
        out.append(_attend_chain(q[m : m + 1], k_cache[:, rows], v_cache[:, rows], [lengths[m]], window))
    return torch.cat(out)


def _attend_chain(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: list[int], window: int) -> Tensor:
    """Running maximum, sum and weighted values over blocks in position order (online softmax)."""
    rows, heads, size = q.shape
    groups = k_cache.shape[0]
    queries = (q / sqrt(size)).reshape(rows, groups, heads // groups, size).transpose(0, 1).reshape(groups, -1, size)
    ends = torch.tensor(lengths)
    starts = (ends - window).clamp(min=0) if window else torch.zeros_like(ends)

    top = torch.full((groups, queries.shape[1], 1), -torch.inf)
    total = torch.zeros_like(top)
    values = torch.zeros_like(queries)
    first = int(starts.min()) // BLOCK * BLOCK
    for begin in range(first, max(lengths), BLOCK):
        # Only rows that some query sees are copied: what lies outside is not read, whatever it holds.
        low, high = max(begin, int(starts.min())), min(begin + BLOCK, max(lengths))
        k, v = torch.zeros(2, groups, BLOCK, size)
        k[:, low - begin : high - begin] = k_cache[:, low:high]
        v[:, low - begin : high - begin] = v_cache[:, low:high]
        position = torch.arange(begin, begin + BLOCK)
        seen = (position < ends[:, None]) & (position >= starts[:, None])
        seen = seen[None, :, None].expand(groups, rows, heads // groups, BLOCK).reshape(groups, -1, BLOCK)
        scores = _ordered_product(queries, k.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
        # A row that has seen nothing yet keeps top = −inf; −inf − (−inf) would be NaN, so it is shifted by 0 instead.
        shift = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weights = torch.exp(scores - shift)
        decay = torch.exp(top - shift)
        total = total * decay + _ordered_product(weights, torch.ones(groups, BLOCK, 1))
        values = values * decay + _ordered_product(weights, v)
        top = new_top
    out = values / total
    return out.reshape(groups, rows, heads // groups, size).transpose(0, 1).reshape(rows, -1)


def _ordered_product(a: Tensor, b: Tensor) -> Tensor:
    """a f32 [G, R, K] · b f32 [G, K, N] → f32 [G, R, N]: rounded products, the last half added to the first until one
    is left, so every row is summed in the same order."""
    sums = a[..., None] * b[:, None]
    while (count := sums.shape[2]) > 1:
        half = count // 2
        sums, rest = sums[:, :, : count - half], sums[:, :, count - half :]
        sums[:, :, :half] += rest
    return sums[:, :, 0]


def top_rows(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits f32 [M, V] per row: the k largest f32 [M, k], descending, their ids int64 [M, k], equal ones by lowest
    id, and log Σ exp f32 [M].

    With them softmax(logits)[id] = exp(value − log Σ exp), without a pass over the vocabulary. A row that holds a NaN
    has NaN values and sum, and ids 0…k−1.
    """
    values, ids = (part[:, :k].contiguous() for part in logits.sort(dim=-1, descending=True, stable=True))
    broken = logits.isnan().any(dim=-1)
    values[broken] = torch.nan
    ids[broken] = torch.arange(k)
    return values, ids, logits.logsumexp(dim=-1)
