"""The ops in C++: what `reference` defines, at the speed of memory.

One optional extension, `_C`, holds kernels for AVX-512 VNNI, AVX2, NEON and plain C++ and picks one when it loads:
the fastest that this CPU has *and* that agrees with plain C++ on a few small problems.
`QUASAR_CPU_ISA=scalar|avx2|avx512|neon` forces one. It has its own thread pool, so torch's threads stay out of the
decode loop.

This file is the thin side of it: tensors in, addresses out. Whatever size or dtype would make a kernel read or write
foreign memory is an error here (a few comparisons of integers); the checked functions of `quasar_kernels` name the
argument too. A strided tensor is copied, never misread.

What is lost: weights must be packed first (`pack_w8a8`, `pack_bf16`); a packed weight is read by this backend alone.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_kernels.backend import Capabilities, PlannedLayer, PlannedLinear
from quasar_kernels.reference import Transform, hadamard_size
from quasar_kernels.reference import activations as activations
from quasar_kernels.reference import embed_rows as embed_rows

try:
    import quasar_kernels.cpu._C as _C

    _missing = None
except ImportError as error:
    _missing = (
        f"the C++ extension is not built ({error}); install a C++17 compiler (g++ or clang) and reinstall: "
        "pip install -e ."
    )

name = "cpu"
capabilities = Capabilities(plan=True, own_threads=True)

MOST_ROTATION = 256
"""The largest dense factor of a rotation: a quarter of a megabyte, which stays in a core's own cache between rows."""


def unavailable() -> str | None:
    """Why this backend cannot run here and how to get it, or None."""
    return _missing


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight [N, K] in the layout that the kernels stream: tiles of 16 outputs, inputs interleaved by 4 (INT8) or 2
    (BF16)."""

    data: Tensor
    shape: tuple[int, int]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        size = _C.packed_bytes(*self.shape)[self.dtype == torch.bfloat16]
        if self.data.dtype is not torch.uint8 or self.data.numel() != size or not self.data.is_contiguous():
            raise ValueError(f"packed data are {self.data.dtype} {list(self.data.shape)}; accepted: {size} dense uint8")

    @property
    def nbytes(self) -> int:
        """Bytes that a step reads."""
        return self.data.numel()

    def unpack(self) -> Tensor:
        """The row-major weight that was packed."""
        w = torch.empty(self.shape, dtype=self.dtype)
        convert = _C.unpack_int8 if self.dtype == torch.int8 else _C.unpack_bf16
        convert(self.data.data_ptr(), *self.shape, w.data_ptr())
        return w


def pack_w8a8(wq: Tensor) -> Packed:
    """int8 [N, K] in the layout that `linear_w8a8` reads."""
    return _pack(wq, torch.int8, 0)


def pack_bf16(w: Tensor) -> Packed:
    """bf16 [N, K] in the layout that `linear_bf16` reads."""
    return _pack(w, torch.bfloat16, 1)


def _pack(w: Tensor, dtype: torch.dtype, index: int) -> Packed:
    w = _dense(w, dtype)
    data = torch.empty(_C.packed_bytes(*w.shape)[index], dtype=torch.uint8)
    (_C.pack_int8, _C.pack_bf16)[index](w.data_ptr(), *w.shape, data.data_ptr())
    return Packed(data, (w.shape[0], w.shape[1]), dtype)


def _dense(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    if x.dtype is not dtype or not x.is_cpu:
        raise TypeError(f"a tensor is {x.dtype} on {x.device}; accepted: {dtype} on the CPU")
    return x if x.is_contiguous() else x.contiguous()


def _sized(x: Tensor, size: int) -> Tensor:
    if x.numel() != size:
        raise ValueError(f"a tensor is {list(x.shape)}; accepted: {size} numbers")
    return _dense(x)


def _sized_or_none(x: Tensor | None, size: int) -> Tensor | None:
    return None if x is None else _sized(x, size)


def _matrix(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    if x.dim() != 2:
        raise ValueError(f"a tensor is {list(x.shape)}; accepted: two dimensions")
    return _dense(x, dtype)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _transform(transform: Transform | None, size: int) -> tuple[tuple[int, int, int, int], tuple[Tensor | None, ...]]:
    """Addresses and side of a transform, and what must stay alive while they are used."""
    if transform is None:
        return (0, 0, 0, 0), ()
    inv_smooth, shift = _sized_or_none(transform.inv_smooth, size), _sized_or_none(transform.shift, size)
    rotation = None if transform.rotation is None else _rotation(transform.rotation, size)
    side = 0 if rotation is None else rotation.shape[0]
    return (_address(inv_smooth), _address(shift), _address(rotation), side), (inv_smooth, shift, rotation)


def _rotation(rotation: Tensor, size: int) -> Tensor:
    hadamard_size(rotation, size, MOST_ROTATION)
    return _dense(rotation)


def _empty_quantized(rows: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.empty(rows, size, dtype=torch.int8), torch.empty(rows)


def quantize_rows(x: Tensor, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
    """See `reference.quantize_rows`; q and scale are equal to it, whatever the transform."""
    x = _matrix(x)
    rows, size = x.shape
    addresses, _keep = _transform(transform, size)
    q, scale = _empty_quantized(rows, size)
    _C.quantize_rows(x.data_ptr(), *addresses, rows, size, q.data_ptr(), scale.data_ptr())
    return q, scale


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """See `reference.rotate`; equal to it bit for bit. A strided rotation, such as a transposed one, is copied on every
    call: pass a dense one where that matters."""
    x = _matrix(x)
    rows, size = x.shape
    rotation = _rotation(rotation, size)
    y = torch.empty_like(x)
    _C.rotate(x.data_ptr(), rotation.data_ptr(), rotation.shape[0], rows, size, y.data_ptr())
    return y


def rmsnorm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """See `reference.rmsnorm`."""
    x = _matrix(x)
    w = _sized(w, x.shape[1])
    y = torch.empty_like(x)
    _C.rmsnorm(x.data_ptr(), w.data_ptr(), eps, *x.shape, y.data_ptr())
    return y


def rmsnorm_quantize(x: Tensor, w: Tensor, eps: float, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
    """See `reference.rmsnorm_quantize`."""
    x = _matrix(x)
    rows, size = x.shape
    w = _sized(w, size)
    addresses, _keep = _transform(transform, size)
    q, scale = _empty_quantized(rows, size)
    _C.rmsnorm_quantize(x.data_ptr(), w.data_ptr(), eps, *addresses, rows, size, q.data_ptr(), scale.data_ptr())
    return q, scale


def _halves(gate_up: Tensor) -> tuple[Tensor, int, int]:
    """The dense matrix, its rows, and the width of each half."""
    gate_up = _matrix(gate_up)
    rows, width = gate_up.shape
    if width % 2:
        raise ValueError(f"gate_up is {width} wide; accepted: an even width, gate and then up")
    return gate_up, rows, width // 2


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `reference.silu_mul`."""
    gate_up, rows, size = _halves(gate_up)
    y = torch.empty(rows, size)
    _C.silu_mul(gate_up.data_ptr(), rows, size, y.data_ptr())
    return y


def silu_mul_quantize(gate_up: Tensor, transform: Transform | None = None) -> tuple[Tensor, Tensor]:
    """See `reference.silu_mul_quantize`."""
    gate_up, rows, size = _halves(gate_up)
    addresses, _keep = _transform(transform, size)
    q, scale = _empty_quantized(rows, size)
    _C.silu_mul_quantize(gate_up.data_ptr(), *addresses, rows, size, q.data_ptr(), scale.data_ptr())
    return q, scale


def _check_weight(w: Packed, dtype: torch.dtype) -> None:
    if not isinstance(w, Packed) or w.dtype is not dtype:
        raise TypeError(f"the weight is {getattr(w, 'dtype', type(w))}; accepted: a weight packed from {dtype}")


def _check_linear(x: Tensor, w: Packed, dtype: torch.dtype) -> None:
    _check_weight(w, dtype)
    if x.dim() != 2 or x.shape[1] != w.shape[1]:
        raise ValueError(f"the input is {list(x.shape)}; accepted: [M, {w.shape[1]}], the inputs of the weight")


def linear_w8a8(
    q: Tensor, scale: Tensor, wq: Packed, wscale: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """See `reference.linear_w8a8`; equal to it bit for bit. wq comes from `pack_w8a8`."""
    _check_linear(q, wq, torch.int8)
    outputs, inputs = wq.shape
    rows = q.shape[0]
    q, scale, wscale = _dense(q, torch.int8), _sized(scale, rows), _sized(wscale, outputs)
    bias, residual = _sized_or_none(bias, outputs), _sized_or_none(residual, rows * outputs)
    y = torch.empty(rows, outputs)
    _C.linear_w8a8(
        q.data_ptr(),
        scale.data_ptr(),
        wq.data.data_ptr(),
        wscale.data_ptr(),
        _address(bias),
        _address(residual),
        rows,
        outputs,
        inputs,
        y.data_ptr(),
    )
    return y


def linear_bf16(x: Tensor, w: Packed, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """See `reference.linear_bf16`; each output is one chain of FMAs in the order of K. w comes from `pack_bf16`."""
    _check_linear(x, w, torch.bfloat16)
    outputs, inputs = w.shape
    rows = x.shape[0]
    x, bias, residual = _dense(x), _sized_or_none(bias, outputs), _sized_or_none(residual, rows * outputs)
    y = torch.empty(rows, outputs)
    _C.linear_bf16(
        x.data_ptr(), w.data.data_ptr(), _address(bias), _address(residual), rows, outputs, inputs, y.data_ptr()
    )
    return y


def _rows_dense(cache: Tensor) -> bool:
    """Whether a cache [G, C, D] can be addressed in place: rows of a group one after the other, groups anywhere."""
    return cache.stride(2) == 1 and cache.stride(1) == cache.shape[2]


def _check_caches(k_cache: Tensor, v_cache: Tensor) -> None:
    for cache in (k_cache, v_cache):
        if cache.dtype is not torch.float32 or not cache.is_cpu:
            raise TypeError(f"a cache is {cache.dtype} on {cache.device}; accepted: torch.float32 on the CPU")
    if k_cache.dim() != 3 or v_cache.shape != k_cache.shape:
        raise ValueError(f"caches are {list(k_cache.shape)}, {list(v_cache.shape)}; accepted: [G, C, D], both the same")


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
    """See `reference.rope_append`. Raises ValueError when the rows do not fit into the cache or the cache is strided
    within a group."""
    _check_caches(k_cache, v_cache)
    groups, capacity, size = k_cache.shape
    qkv = _matrix(qkv)
    rows = qkv.shape[0]
    heads = qkv.shape[1] // size - 2 * groups
    if size % 2 or qkv.shape[1] % size or heads < 1:
        raise ValueError(f"qkv is {qkv.shape[1]} wide; accepted: (H + 2·{groups})·{size} with H ≥ 1 and an even {size}")
    if start < 0 or start + rows > capacity:
        raise ValueError(f"rows {start}…{start + rows - 1} do not fit; accepted: 0…{capacity - 1}")
    if not (_rows_dense(k_cache) and _rows_dense(v_cache)):
        raise ValueError(
            f"cache strides are {k_cache.stride()}, {v_cache.stride()}; accepted: rows of a group one after the other"
        )
    cos, sin = _sized(cos, rows * (size // 2)), _sized(sin, rows * (size // 2))
    q_norm, k_norm = _sized_or_none(q_norm, size), _sized_or_none(k_norm, size)
    q = torch.empty(rows, heads, size)
    _C.rope_append(
        qkv.data_ptr(),
        rows,
        heads,
        groups,
        size,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k_cache.stride(0),
        v_cache.stride(0),
        start,
        cos.data_ptr(),
        sin.data_ptr(),
        _address(q_norm),
        _address(k_norm),
        eps,
        q.data_ptr(),
    )
    return q


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Sequence[int],
    parents: Sequence[int] | None = None,
    window: int = 0,
) -> Tensor:
    """See `reference.attend`. Raises ValueError when a length or parent would lead outside the cache."""
    _check_caches(k_cache, v_cache)
    if q.dim() != 3 or q.shape[2] != k_cache.shape[2] or q.shape[1] % k_cache.shape[0]:
        raise ValueError(
            f"q is {list(q.shape)} for a cache {list(k_cache.shape)}; accepted: [M, a multiple of G, D] for [G, C, D]"
        )
    q = _dense(q)
    rows, heads, size = q.shape
    if len(lengths) != rows:
        raise ValueError(f"there are {len(lengths)} lengths; accepted: one for each of the {rows} rows")
    if not (_rows_dense(k_cache) and _rows_dense(v_cache)):
        k_cache, v_cache = k_cache.contiguous(), v_cache.contiguous()
    out = torch.empty(rows, heads * size)
    _C.attend(
        q.data_ptr(),
        heads,
        k_cache.shape[0],
        size,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k_cache.stride(0),
        v_cache.stride(0),
        k_cache.shape[1],
        lengths,
        parents,
        window,
        out.data_ptr(),
    )
    return out


def top_rows(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.top_rows`; values and ids are equal to it."""
    logits = _matrix(logits)
    rows, size = logits.shape
    if not 1 <= k <= size:
        raise ValueError(f"k is {k}; accepted: 1…{size}")
    values, ids, log_sums = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64), torch.empty(rows)
    _C.top_rows(logits.data_ptr(), rows, size, k, values.data_ptr(), ids.data_ptr(), log_sums.data_ptr())
    return values, ids, log_sums


class Plan:
    """The layers of one decoder, flattened so that a pass is one call: the ops above in the same order, so the same
    bits.

    Weights are packed by this backend. The plan keeps every tensor alive whose address it holds.
    """

    def __init__(self, layers: Sequence[PlannedLayer], *, groups: int, size: int, eps: float, window: int = 0):
        self._alive: list[Tensor] = []
        self._hidden, mixed = layers[0].o_proj.weight.shape
        words: list[int] = []
        for layer in layers:
            shapes = [
                (mixed + 2 * groups * size, self._hidden),
                (self._hidden, mixed),
                (2 * layer.down_proj.weight.shape[1], self._hidden),
                (self._hidden, layer.down_proj.weight.shape[1]),
            ]
            linears = (layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj)
            if [tuple(linear.weight.shape) for linear in linears] != shapes or mixed % (groups * size) or size % 2:
                raise ValueError(
                    f"a layer's weights are {[tuple(linear.weight.shape) for linear in linears]}; "
                    f"accepted with {groups} groups of even size {size}: {shapes}"
                )
            for gain, width in (
                (layer.attention_norm, self._hidden),
                (layer.q_norm, size),
                (layer.k_norm, size),
                (layer.mlp_norm, self._hidden),
            ):
                words.append(self._hold(_sized_or_none(gain, width)))
            for linear in linears:
                words += self._linear(linear)
        self._words = torch.tensor(words, dtype=torch.int64)
        self._shape = (len(layers), mixed // size, groups, size, eps, window)

    def _hold(self, x: Tensor | None) -> int:
        if x is not None:
            self._alive.append(x)
        return _address(x)

    def _linear(self, linear: PlannedLinear) -> list[int]:
        _check_weight(linear.weight, torch.bfloat16 if linear.wscale is None else torch.int8)
        outputs, inputs = linear.weight.shape
        addresses, keep = _transform(linear.transform, inputs)
        self._alive += [part for part in keep if part is not None]
        vectors = [self._hold(_sized_or_none(part, outputs)) for part in (linear.wscale, linear.bias)]
        return [self._hold(linear.weight.data), *vectors, outputs, inputs, *addresses]

    def run(
        self,
        x: Tensor,
        order: Sequence[int],
        k_cache: Tensor,
        v_cache: Tensor,
        start: int,
        cos: Tensor,
        sin: Tensor,
        lengths: Sequence[int],
        parents: Sequence[int] | None = None,
    ) -> Tensor:
        """x f32 [M, hidden] through the layers named in `order`; k_cache, v_cache f32 [layers, G, C, D], dense, are
        extended at `start`.

        Raises ValueError when a layer does not exist or a row does not fit.
        """
        layers, _, groups, size, _, _ = self._shape
        rows, capacity = len(lengths), k_cache.shape[2]
        for cache in (k_cache, v_cache):
            if tuple(cache.shape) != (layers, groups, capacity, size) or not cache.is_contiguous():
                raise ValueError(
                    f"a cache is {list(cache.shape)}; accepted: a dense [{layers}, {groups}, {capacity}, {size}]"
                )
        if tuple(x.shape) != (rows, self._hidden):
            raise ValueError(f"x is {list(x.shape)}; accepted: [{rows}, {self._hidden}], a row for each length")
        y, cos, sin = _dense(x).clone(), _sized(cos, rows * (size // 2)), _sized(sin, rows * (size // 2))
        _C.run_step(
            self._words.data_ptr(),
            *self._shape,
            order,
            y.data_ptr(),
            _dense(k_cache).data_ptr(),
            _dense(v_cache).data_ptr(),
            capacity,
            start,
            cos.data_ptr(),
            sin.data_ptr(),
            lengths,
            parents,
        )
        return y


def set_threads(count: int) -> None:
    """How many threads may share an op, the caller included; results do not depend on it. More than there are cores is
    accepted, though no more than 64, or the cores where they are more, are ever started."""
    if not 1 <= count <= 1024:
        raise ValueError(f"threads is {count}; accepted: 1…1024")
    _C.set_threads(count)


def get_threads() -> int:
    """Threads that share an op; by default one for each core this process may use."""
    return _C.get_threads()


def isa() -> str:
    """The instruction set in use."""
    return _C.isa()


def supported_isas() -> list[str]:
    """Instruction sets of this CPU that there are kernels for, fastest first."""
    return _C.supported()


def set_isa(wanted: str) -> None:
    """Changes the instruction set, for tests and benchmarks; packed weights stay valid."""
    if not _C.use(wanted):
        raise ValueError(f"instruction set {wanted!r} is not available; accepted: {', '.join(_C.supported())}")


def stream_read(data: Tensor) -> int:
    """Reads every byte of a contiguous tensor with the pool's threads, the yardstick of a step; returns a checksum."""
    if not data.is_contiguous() or not data.is_cpu:
        raise ValueError(f"data has strides {data.stride()} on {data.device}; accepted: contiguous, on the CPU")
    return _C.stream_read(data.data_ptr(), data.numel() * data.element_size())


if _missing is None:
    _refused = _C.choose(os.environ.get("QUASAR_CPU_ISA", ""))
    if _refused:
        warnings.warn(f"{_refused}running on {_C.isa()}", RuntimeWarning, stacklevel=2)
