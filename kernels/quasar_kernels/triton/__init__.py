"""The ops in Triton: what `reference` defines, for CUDA devices from sm_80 on.

Every op takes the arguments of its namesake in `reference`, as tensors on the device, and is one kernel launch
(attention and `top_table`: two). Where a CUDA graph must be able to replay it, everything that changes between passes
may lie on the device, and every result may go into a buffer that is already there: the keyword arguments below.

| op | arguments as in `reference` | on the device instead | `out=` and default result |
|---|---|---|---|
| quantize_rows | x A [M, K], transform | | (q i8 [M, K], scale f32 [M]) |
| rotate | x A [M, K], rotation f32 [P, P] | | f32 [M, K] |
| rmsnorm | x f32 [M, K], w f32 [K], eps | | A [M, K] |
| rmsnorm_quantize | x f32 [M, K], w, eps, transform | | (q, scale) |
| silu_mul | gate_up f32 or A [M, 2F] | | A [M, F] |
| silu_mul_quantize | gate_up f32 or A [M, 2F], transform | | (q, scale) |
| linear_w8a8 | q, scale, wq, wscale, bias, residual f32 | | f32 [M, N]; may be `residual` itself |
| linear_bf16 | x A [M, K], w bf16, bias, residual f32 | | f32 [M, N]; may be `residual` itself |
| rope_append | qkv f32 or A, caches, start, cos, sin, q_norm, k_norm, eps | start i32 [1]; positions | q A [M, H, D] |
| attend | q A [M, H, D], k_cache, v_cache, lengths, parents, window | lengths i32 [M], parents i32 [M] | A [M, H·D] |
| top_table | logits f32 [M, V], k | | f64 [M, 2k + 1]: what `reference.top_rows` returns, ids first |
| embed_rows | table bf16 [V, K], ids | ids i32 or i64 [M] | f32 [M, K] |

`rope_append(…, positions=i32 [M])` takes cos and sin as whole tables f32 [context, D/2] and picks a row for each row.

A is `activations(device)`: BF16 on CUDA (f32 is accepted too). The residual stream, what a linear writes and the logits
are FP32; what feeds a product and the KV cache (k_cache, v_cache A [G, C, D]) is BF16. All sums are FP32 in a fixed
order or exact INT32.

Width-invariance. Nothing in a kernel depends on M but the number of programs: a product has 16 rows whatever M is (more
rows are more programs; an INT8 product, exact in any order, may use taller tiles for them), K is split by shape alone,
and attention runs over blocks at fixed absolute positions, combined in position order.

What a caller owes, since a device-resident length cannot be checked on the host: lengths within 1…C, start + M ≤ C,
parents before their children. A kernel drops what does not fit instead of touching foreign memory. Products of one
stream share its scratch (`scratch.py`): run each shape once before capturing a graph.

What is lost: every operand must be dense and on the device; nothing is copied or converted behind the caller's back.
"""

from typing import Any

import torch
from torch import Tensor

from quasar_kernels.backend import Capabilities

try:
    import triton as _triton  # noqa: F401 – the question is whether it is there
except ImportError as error:
    _missing: str | None = f"Triton is not installed ({error}); install it on Linux with: pip install triton"
else:
    _missing = None
    from quasar_kernels.triton.attend import attend
    from quasar_kernels.triton.embed_rows import embed_rows
    from quasar_kernels.triton.launch import activations, in_turn
    from quasar_kernels.triton.linear_bf16 import linear_bf16, pack_bf16
    from quasar_kernels.triton.linear_w8a8 import linear_w8a8, pack_w8a8
    from quasar_kernels.triton.quantize_rows import quantize_rows
    from quasar_kernels.triton.rmsnorm import rmsnorm
    from quasar_kernels.triton.rmsnorm_quantize import rmsnorm_quantize
    from quasar_kernels.triton.rope_append import rope_append
    from quasar_kernels.triton.rotate import rotate
    from quasar_kernels.triton.silu_mul import silu_mul
    from quasar_kernels.triton.silu_mul_quantize import silu_mul_quantize
    from quasar_kernels.triton.top_rows import top_rows, top_table

__all__ = [
    "activations",
    "attend",
    "capabilities",
    "embed_rows",
    "get_threads",
    "in_turn",
    "isa",
    "linear_bf16",
    "linear_w8a8",
    "pack_bf16",
    "pack_w8a8",
    "quantize_rows",
    "rmsnorm",
    "rmsnorm_quantize",
    "rope_append",
    "rotate",
    "runtime",
    "silu_mul",
    "silu_mul_quantize",
    "stream_read",
    "top_rows",
    "top_table",
    "unavailable",
]
name = "triton"
capabilities = Capabilities(graphs=True, asynchronous=True)


def unavailable() -> str | None:
    """Why this backend cannot run here, or None."""
    if _missing is not None:
        return _missing
    if not torch.cuda.is_available():
        built = torch.version.cuda
        return "no CUDA device" + ("" if built else f" (and torch {torch.__version__} is built without CUDA)")
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"{torch.cuda.get_device_name()} is sm_{major}{minor}; accepted: sm_80 and later"
    return None


def get_threads() -> int:
    """Threads of the host that share an op outside the device: torch's."""
    return torch.get_num_threads()


def isa() -> str | None:
    """The instruction set in use: of a GPU, its name says it."""
    return None


def stream_read(data: Tensor) -> Tensor:
    """Reads every number of `data` on the device."""
    return data.sum()


def runtime() -> Any:
    """The current CUDA device, as what captures graphs and marks time on it."""
    from quasar_kernels.cuda_runtime import CudaRuntime

    return CudaRuntime()
