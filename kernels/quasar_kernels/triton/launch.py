"""The one place where a kernel is launched, and the checks that every op shares.

`launch` fixes what all kernels have in common: a one-dimensional grid (axis 0 takes 2³¹ − 1 programs, the others 65535)
and no fusing of a product with the sum behind it (`enable_fp_fusion=False`), so that a rounded product stays one, as in
the reference.

Within `recording()` nothing runs: launches are noted, with operands on torch's "meta" device. So the tests can compile
exactly what the ops would launch, for GPUs that are not there (`compiled.py`).

With `TRITON_INTERPRET=1` in the environment before the first import, Triton runs the kernels in Python on CPU tensors;
activations are then FP32, since the interpreter has no BF16 products.

Kernels overlap (`overlap.py`) on GPUs of data centres from sm_90 on; `in_turn()` is for measuring what that is worth.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED = bool(triton.knobs.runtime.interpret)
FP_FUSION = False
MOST_PROGRAMS = 2**31 - 1
MOST_CHANNELS = 16384
ALL_REGISTERS = 255

_recorded: list["Launch"] | None = None
_in_turn = False


@dataclass(frozen=True)
class Launch:
    """One launch, run or noted."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]
    warps: int
    stages: int
    registers: int | None

    @property
    def options(self) -> dict[str, Any]:
        """What the compiler is told beside the arguments."""
        given = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": FP_FUSION}
        if self.registers is not None:
            given["maxnreg"] = self.registers
        if self.arguments["OVERLAP"]:
            given["launch_pdl"] = True
        return given

    def overlapping(self, overlap: bool) -> "Launch":
        """The same launch, which begins before its predecessor has ended, or not."""
        return replace(self, arguments={**self.arguments, "OVERLAP": overlap})


def activations(device: torch.device) -> torch.dtype:
    """What feeds a product, and what the KV cache holds: BF16; FP32 where the interpreter runs."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def launch(
    kernel: Any,
    programs: int,
    arguments: dict[str, Any],
    warps: int = 4,
    stages: int = 1,
    registers: int | None = None,
) -> None:
    """Runs `kernel` with the named arguments in `programs` programs of `warps` warps.

    registers: how many a thread may have. By default the assembler weighs them against the number of programs that run
    at a time, and may spill a few for one more.
    """
    if programs == 0:
        return
    if programs > MOST_PROGRAMS:
        raise ValueError(f"{programs} programs are more than a grid holds; accepted: {MOST_PROGRAMS}")
    one = Launch(kernel, programs, {**arguments, "OVERLAP": _overlaps()}, warps, stages, registers)
    if _recorded is not None:
        _recorded.append(one)
    else:
        kernel[(programs,)](**one.arguments, **one.options)


def _overlaps() -> bool:
    """Whether the kernel launched now is for a GPU that overlaps, and may."""
    if _recorded is not None or INTERPRETED or _in_turn:
        return False
    # From sm_120 on, GPUs for desktops, others found that graphs refuse such launches (sgl-project/sglang, pull 18596).
    return 90 <= _capability(torch.cuda.current_device()) < 120


@cache
def _capability(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@contextmanager
def in_turn() -> Iterator[None]:
    """Within it kernels begin when their predecessor has ended, also in graphs captured here. Not for threads."""
    global _in_turn
    _in_turn = True
    try:
        yield
    finally:
        _in_turn = False


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Notes launches instead of running them; operands may be on the "meta" device. Not for threads."""
    global _recorded
    noted: list[Launch] = []
    _recorded = noted
    try:
        yield noted
    finally:
        _recorded = None


def check(name: str, x: Tensor, dtypes: torch.dtype | Sequence[torch.dtype], shape: Sequence[int | None]) -> None:
    """Raises TypeError or ValueError, naming what is accepted, unless x is dense, here, and of that dtype and shape."""
    accepted = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    device = "meta" if _recorded is not None else "cpu" if INTERPRETED else "cuda"
    if x.dtype not in accepted or x.device.type != device:
        wanted = " or ".join(str(dtype) for dtype in accepted)
        raise TypeError(f"{name} is {x.dtype} on {x.device}; accepted: {wanted} on {device}")
    if x.dim() != len(shape) or any(want not in (None, have) for want, have in zip(shape, x.shape, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} is {list(x.shape)}; accepted: [{wanted}]")
    if not x.is_contiguous():
        raise ValueError(
            f"{name} has strides {x.stride()}; accepted: a contiguous tensor, {name}.contiguous() makes one"
        )


def check_optional(
    name: str, x: Tensor | None, dtypes: torch.dtype | Sequence[torch.dtype], shape: Sequence[int | None]
) -> None:
    """`check`, unless x is None."""
    if x is not None:
        check(name, x, dtypes, shape)


def result(
    out: Tensor | None, dtype: torch.dtype | Sequence[torch.dtype], shape: Sequence[int], like: Tensor
) -> Tensor:
    """`out`, checked, or a new tensor of the first dtype on the device of `like`."""
    if out is None:
        first = dtype if isinstance(dtype, torch.dtype) else dtype[0]
        return torch.empty(*shape, dtype=first, device=like.device)
    check("out", out, dtype, shape)
    return out


def floats(x: Tensor) -> tuple[torch.dtype, ...]:
    """The dtypes of an activation on the device of x, the default first."""
    default = activations(x.device)
    return (default,) if default is torch.float32 else (default, torch.float32)


def next_power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def row_tile(size: int) -> tuple[int, int]:
    """For a program that holds a whole row of `size` numbers in registers: the tile, a power of two, and its warps.

    Both depend on the size alone, so the order of a row's sums does too. Raises ValueError above 16384.
    """
    if not 1 <= size <= MOST_CHANNELS:
        raise ValueError(f"a row has {size} numbers; accepted: 1…{MOST_CHANNELS}")
    block = max(next_power(size), 16)
    return block, min(max(block // 512, 1), 32)
