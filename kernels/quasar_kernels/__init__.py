"""One op, one name, several backends.

`reference` (plain torch) defines every op; `cpu` (C++) and `triton` (CUDA) make them fast. A caller either asks for a
backend once,

    ops = select("auto", "cpu")
    weight = ops.pack_w8a8(wq)              # whatever layout this backend reads fastest
    y = ops.linear_w8a8(q, scale, weight, wscale)

which is what the decoder does, or calls the checked functions of this module, `quasar_kernels.linear_w8a8(q, scale, wq,
wscale)`, which validate shapes and dtypes, pack, and name what is accepted when something does not fit. The unchecked
way costs nothing per call.
"""

import importlib
import warnings
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from quasar_kernels import reference
from quasar_kernels.backend import Backend, Capabilities
from quasar_kernels.reference import Transform, hadamard_size, rotation_sides

__all__ = [
    "Backend",
    "BackendUnavailable",
    "Capabilities",
    "Transform",
    "attend",
    "availability",
    "linear_bf16",
    "linear_w8a8",
    "quantize_rows",
    "rmsnorm",
    "rmsnorm_quantize",
    "rope_append",
    "rotate",
    "rotation_sides",
    "select",
    "silu_mul",
    "silu_mul_quantize",
    "top_rows",
]

BACKENDS = {"cpu": ("cpu", "reference"), "cuda": ("triton",)}
"""Per device, the backends that can serve it, fastest first."""


class BackendUnavailable(RuntimeError):
    """The backend asked for cannot run here; the message says why and what can."""


def availability() -> dict[str, str | None]:
    """Backend name → None when it can run here, else the reason why it cannot."""
    return {name: _load(name)[1] for name in ("cpu", "triton", "reference")}


def _load(name: str) -> tuple[ModuleType | None, str | None]:
    if name == "reference":
        return reference, None
    try:
        module = importlib.import_module(f"quasar_kernels.{name}")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == f"quasar_kernels.{name}"
        return None, "not in this version" if missing else f"not built ({error})"
    return module, module.unavailable()


def select(backend: str = "auto", device: str = "cpu") -> Backend:
    """The backend called `backend` for `device`; "auto" takes the fastest that works.

    Raises BackendUnavailable, naming the reason, when the one asked for cannot run.
    """
    if backend not in ("auto", "cpu", "triton", "reference"):
        raise BackendUnavailable(f"unknown backend {backend!r}; accepted: auto, reference, cpu, triton")
    candidates = BACKENDS.get(device)
    if candidates is None:
        raise BackendUnavailable(f"unknown device {device!r}; accepted: {', '.join(BACKENDS)}")
    if backend != "auto" and backend not in candidates:
        reason = _load(backend)[1]
        elsewhere = f", and nowhere on this machine ({reason})" if reason else ""
        raise BackendUnavailable(
            f"backend {backend!r} does not run on device {device!r}{elsewhere}; accepted: {', '.join(candidates)}"
        )
    reasons: list[str] = []
    for name in candidates if backend == "auto" else (backend,):
        module, reason = _load(name)
        if module is not None and reason is None:
            if reasons:
                _warn_once(f"the {name} backend stands in for a faster one: {'; '.join(reasons)}")
            return cast(Backend, module)
        reasons.append(f"{name}: {reason}")
    raise BackendUnavailable(f"no backend for device {device!r}: {'; '.join(reasons)}")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


def _check(name: str, x: Tensor, dtype: torch.dtype | None, shape: tuple[int | None, ...]) -> None:
    """dtype None: that of an activation, FP32, on CUDA also BF16."""
    dtypes = (dtype,) if dtype is not None else (torch.float32, torch.bfloat16) if x.is_cuda else (torch.float32,)
    fits = x.dim() == len(shape) and all(want in (None, have) for want, have in zip(shape, x.shape, strict=False))
    if x.dtype not in dtypes or not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} is {x.dtype} {list(x.shape)}; accepted: {' or '.join(map(str, dtypes))} [{wanted}]")


def _check_optional(name: str, x: Tensor | None, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    if x is not None:
        _check(name, x, dtype, shape)


def _check_transform(transform: Transform | None, size: int) -> None:
    if transform is None:
        return
    _check_optional("inv_smooth", transform.inv_smooth, torch.float32, (size,))
    _check_optional("shift", transform.shift, torch.float32, (size,))
    if transform.rotation is not None:
        _check_rotation(transform.rotation, size)


def _check_rotation(rotation: Tensor, size: int) -> None:
    _check("rotation", rotation, torch.float32, (None, None))
    hadamard_size(rotation, size)


def quantize_rows(x: Tensor, transform: Transform | None = None, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """See `reference.quantize_rows`. Raises ValueError on a shape or dtype that does not fit."""
    _check("x", x, None, (None, None))
    _check_transform(transform, x.shape[1])
    return select(backend, x.device.type).quantize_rows(x, transform)


def rotate(x: Tensor, rotation: Tensor, *, backend: str = "auto") -> Tensor:
    """See `reference.rotate`. Raises ValueError on a shape or dtype that does not fit."""
    _check("x", x, None, (None, None))
    _check_rotation(rotation, x.shape[1])
    return select(backend, x.device.type).rotate(x, rotation)


def rmsnorm(x: Tensor, w: Tensor, eps: float, *, backend: str = "auto") -> Tensor:
    """See `reference.rmsnorm`. Raises ValueError on a shape or dtype that does not fit."""
    _check("x", x, torch.float32, (None, None))
    _check("w", w, torch.float32, (x.shape[1],))
    return select(backend, x.device.type).rmsnorm(x, w, eps)


def rmsnorm_quantize(
    x: Tensor, w: Tensor, eps: float, transform: Transform | None = None, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """See `reference.rmsnorm_quantize`. Raises ValueError on a shape or dtype that does not fit."""
    _check("x", x, torch.float32, (None, None))
    _check("w", w, torch.float32, (x.shape[1],))
    _check_transform(transform, x.shape[1])
    return select(backend, x.device.type).rmsnorm_quantize(x, w, eps, transform)


def silu_mul(gate_up: Tensor, *, backend: str = "auto") -> Tensor:
    """See `reference.silu_mul`. Raises ValueError on a shape or dtype that does not fit."""
    _check_gate_up(gate_up)
    return select(backend, gate_up.device.type).silu_mul(gate_up)


def silu_mul_quantize(
    gate_up: Tensor, transform: Transform | None = None, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """See `reference.silu_mul_quantize`. Raises ValueError on a shape or dtype that does not fit."""
    _check_gate_up(gate_up)
    _check_transform(transform, gate_up.shape[1] // 2)
    return select(backend, gate_up.device.type).silu_mul_quantize(gate_up, transform)


def _check_gate_up(gate_up: Tensor) -> None:
    _check("gate_up", gate_up, None, (None, None))
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up is {gate_up.shape[1]} wide; accepted: an even width, gate then up")


def linear_w8a8(
    q: Tensor,
    scale: Tensor,
    wq: Tensor,
    wscale: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """See `reference.linear_w8a8`. Raises ValueError on a shape or dtype that does not fit. Packs `wq` on every
    call."""
    _check("q", q, torch.int8, (None, None))
    _check("wq", wq, torch.int8, (None, q.shape[1]))
    _check("scale", scale, torch.float32, (q.shape[0],))
    _check("wscale", wscale, torch.float32, (wq.shape[0],))
    _check_optional("bias", bias, torch.float32, (wq.shape[0],))
    _check_optional("residual", residual, torch.float32, (q.shape[0], wq.shape[0]))
    ops = select(backend, q.device.type)
    return ops.linear_w8a8(q, scale, ops.pack_w8a8(wq), wscale, bias, residual)


def linear_bf16(
    x: Tensor, w: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """See `reference.linear_bf16`. Raises ValueError on a shape or dtype that does not fit. Packs `w` on every call."""
    _check("x", x, None, (None, None))
    _check("w", w, torch.bfloat16, (None, x.shape[1]))
    _check_optional("bias", bias, torch.float32, (w.shape[0],))
    _check_optional("residual", residual, torch.float32, (x.shape[0], w.shape[0]))
    ops = select(backend, x.device.type)
    return ops.linear_bf16(x, ops.pack_bf16(w), bias, residual)


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
    *,
    backend: str = "auto",
) -> Tensor:
    """See `reference.rope_append`. Raises ValueError on a shape or dtype that does not fit, or when the cache has no
    room."""
    _check("qkv", qkv, None, (None, None))
    _check("k_cache", k_cache, None, (None, None, None))
    _check("v_cache", v_cache, k_cache.dtype, tuple(k_cache.shape))
    rows, (groups, capacity, size) = qkv.shape[0], k_cache.shape
    if qkv.shape[1] % size or qkv.shape[1] // size <= 2 * groups:
        raise ValueError(f"qkv is {qkv.shape[1]} wide; accepted: (H + 2·{groups})·{size} with H ≥ 1")
    if start < 0 or start + rows > capacity:
        raise ValueError(f"rows {start}…{start + rows - 1} do not fit; accepted: 0…{capacity - 1}")
    for label, table in (("cos", cos), ("sin", sin)):
        _check(label, table, torch.float32, (rows, size // 2))
    _check_optional("q_norm", q_norm, torch.float32, (size,))
    _check_optional("k_norm", k_norm, torch.float32, (size,))
    return select(backend, qkv.device.type).rope_append(qkv, k_cache, v_cache, start, cos, sin, q_norm, k_norm, eps)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Sequence[int],
    parents: Sequence[int] | None = None,
    window: int = 0,
    *,
    backend: str = "auto",
) -> Tensor:
    """See `reference.attend`. Raises ValueError on a shape, dtype, length or parent that does not fit."""
    _check("q", q, None, (None, None, None))
    _check("k_cache", k_cache, None, (None, None, q.shape[2]))
    _check("v_cache", v_cache, k_cache.dtype, tuple(k_cache.shape))
    if q.shape[1] % k_cache.shape[0]:
        raise ValueError(f"q has {q.shape[1]} heads; accepted: a multiple of the {k_cache.shape[0]} key/value heads")
    if len(lengths) != q.shape[0] or not all(0 < length <= k_cache.shape[1] for length in lengths):
        raise ValueError(f"lengths is {list(lengths)}; accepted: {q.shape[0]} numbers in 1…{k_cache.shape[1]}")
    if parents is not None and (len(parents) != q.shape[0] or not all(-1 <= p < m for m, p in enumerate(parents))):
        raise ValueError(
            f"parents is {list(parents)}; accepted: for each of the {q.shape[0]} rows an earlier row, or −1"
        )
    return select(backend, q.device.type).attend(q, k_cache, v_cache, lengths, parents, window)


def top_rows(logits: Tensor, k: int, *, backend: str = "auto") -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.top_rows`. Raises ValueError on a shape or dtype that does not fit, or a k outside 1…V."""
    _check("logits", logits, torch.float32, (None, None))
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k is {k}; accepted: 1…{logits.shape[1]}")
    return select(backend, logits.device.type).top_rows(logits, k)
