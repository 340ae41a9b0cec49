"""A CUDA device simulated in Python: the reference's ops under the signatures of `triton`, with graphs.

## Idea

An engine on a GPU keeps account of a lot: lengths that lie on the device, buffers that are written in place, which
graph belongs to which cache. All of that can be wrong with every kernel right, and none of it needs a GPU to be tested.
`SimulatedDevice` has the ops of `triton` on CPU tensors, computed by `reference`, and it captures and replays graphs as
CUDA does.

## Choice

- During a capture nothing runs. Every op is recorded with the very tensors that it was called with. What it returns
  holds poison (NaN, or an absurd integer) until a replay has written it.
- A replay runs the recorded ops on those tensors. A number that was read while capturing is fixed in the recording, as
  it would be in a CUDA graph. Only what lies in a tensor can change from replay to replay.

## What is lost

Nothing here is asynchronous, so a missing synchronisation is not found. Neither is a fault of memory that a kernel
allocates for itself (pools, scratch areas). Times mean nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quasar_kernels import reference
from quasar_kernels.backend import Capabilities


def _rope_append(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, start: Any, cos: Tensor, sin: Tensor, *more: Any,
    positions: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    return reference.rope_append(qkv, k_cache, v_cache, int(start), cos, sin, *more)


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Any, parents: Any = None, window: int = 0,
    reach: int | None = None,
) -> Tensor:  # fmt: skip
    lengths, parents = (x.tolist() if isinstance(x, Tensor) else x for x in (lengths, parents))
    if reach is not None and max(lengths) > reach:
        raise ValueError(f"lengths are {lengths}; accepted: at most reach, {reach}")
    return reference.attend(q, k_cache, v_cache, lengths, parents, window)


def _embed_rows(table: Tensor, ids: Tensor) -> Tensor:
    return reference.embed_rows(table, ids.long())


def _top_table(logits: Tensor, k: int) -> Tensor:
    values, ids, log_sums = reference.top_rows(logits, k)
    return torch.cat([ids.double(), values.double(), log_sums.double()[:, None]], dim=1)


_OPS: dict[str, Callable[..., Any]] = {
    "embed_rows": _embed_rows,
    "top_table": _top_table,
    "rope_append": _rope_append,
    "attend": _attend,
    **{
        name: getattr(reference, name)
        for name in (
            "linear_bf16",
            "linear_w8a8",
            "quantize_rows",
            "rmsnorm",
            "rmsnorm_quantize",
            "rotate",
            "silu_mul",
            "silu_mul_quantize",
            "top_rows",
        )
    },
}


class SimulatedDevice:
    """The ops of a backend and the `cuda_runtime.Runtime` of its device in one object.

    captured: how many graphs were captured. replayed: how many replays there were, of all graphs together.
    """

    name = reference.name
    capabilities = Capabilities(graphs=True)
    get_threads = staticmethod(reference.get_threads)
    isa = staticmethod(reference.isa)
    stream_read = staticmethod(reference.stream_read)
    pack_bf16 = staticmethod(reference.pack_bf16)
    pack_w8a8 = staticmethod(reference.pack_w8a8)

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self._tape: list[Callable[[], None]] | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _OPS:
            raise AttributeError(name)
        return partial(self._call, _OPS[name])

    def activations(self, device: torch.device) -> torch.dtype:
        """What feeds a product, and what the cache holds: FP32, as in the reference."""
        return torch.float32

    def runtime(self) -> "SimulatedDevice":
        return self

    def in_turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _call(self, op: Callable[..., Any], *arguments: Any, out: Any = None, **options: Any) -> Any:
        if self._tape is None:
            result = op(*arguments, **options)
            return result if out is None else _written(result, out)
        if out is None:
            untouched = [x.clone() if op is _rope_append and isinstance(x, Tensor) else x for x in arguments]
            out = op(*untouched, **options)
            for tensor in out if isinstance(out, tuple) else (out,):
                tensor.fill_(float("nan") if tensor.is_floating_point() else 101)
        self._tape.append(lambda: _written(op(*arguments, **options), out))
        return out

    def upload(self, numbers: Sequence[int], out: Tensor | None = None) -> Tensor:
        """See `cuda_runtime.Runtime`, as for the methods below."""
        sent = torch.tensor(numbers, dtype=torch.int32)
        return sent if out is None else out.copy_(sent)

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        work()
        tape: list[Callable[[], None]] = []
        self._tape = tape
        try:
            work()
        finally:
            self._tape = None
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            for call in tape:
                call()

        return replay

    def mark(self) -> None:
        return None

    def seconds(self, first: None, last: None) -> float:
        raise NotImplementedError("a simulated device has no clock")


def _written(result: Any, out: Any) -> Any:
    """`out`, holding `result`. Raises ValueError unless shapes and dtypes agree: copying would convert and repeat."""
    pairs = zip(result, out, strict=True) if isinstance(out, tuple) else [(result, out)]
    for have, want in pairs:
        if have.shape != want.shape or have.dtype != want.dtype or not want.is_contiguous():
            raise ValueError(
                f"out is {want.dtype} {list(want.shape)}; accepted: {have.dtype} {list(have.shape)}, dense"
            )
        want.copy_(have)
    return out
