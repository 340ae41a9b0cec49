"""What the compiler makes of every kernel, for GPUs that need not be there: registers, spills, shared memory,
tensor-core instructions.

    python -m quasar_kernels.triton.compiled            # a table for sm_80 and sm_90
    python -m quasar_kernels.triton.compiled --arch 90

Triton compiles for any target without a GPU. The ops themselves are called, on tensors without data
(`launch.recording`), with the shapes of three models, so what is compiled is what they launch. Registers, local memory
(where spills go) and shared memory come from the `cuobjdump` that Triton brings; instructions from the PTX. The limits
of a block are those of the GPU: 163 KiB of shared memory on sm_80, 227 KiB on sm_90, 255 registers per thread and 65536
per block.

What is lost: this shows that a kernel fits a GPU and uses its tensor cores, and nothing about its speed.
"""

import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from quasar_kernels import triton as ops
from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import INTERPRETED, Launch, recording

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a block may have, by compute capability (CUDA C++ Programming Guide, table of technical
specifications)."""

ALIGNMENT = 16
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide which kernels its pass launches."""

    name: str
    hidden: int
    inner: int
    heads: int
    groups: int
    size: int
    vocabulary: int
    context: int
    sides: tuple[int, int]
    """Dense factors of the rotations in front of qkv_proj and gate_up_proj, and of down_proj."""


SHAPES = (
    Shape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152, 8192, (9, 12)),
    Shape("Qwen3-8B", 4096, 12288, 32, 8, 128, 151936, 32768, (1, 12)),
    Shape("Llama-70B", 8192, 28672, 64, 8, 128, 128256, 8192, (1, 28)),
)


@dataclass(frozen=True)
class Compiled:
    """One kernel as compiled: bytes are per block (shared) and per thread (local: spills and stack)."""

    case: str
    kernel: str
    arch: int
    warps: int
    registers: int
    local_bytes: int
    shared_bytes: int
    tensor_core: str
    """The kinds of tensor-core instructions, "mma s8" or "wgmma s8"; empty where there are none."""
    sums: tuple[str, ...]
    """Shape and layout over threads of every reduced tile."""
    ptx: str


def cases(shape: Shape, width: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(label, call) for every op with operands as in a pass of `width` rows."""
    f32, bf16, i8, i32 = torch.float32, torch.bfloat16, torch.int8, torch.int32

    def new(*sizes: int, dtype: torch.dtype = f32) -> Tensor:
        return torch.empty(*sizes, dtype=dtype, device="meta")

    hidden, inner, size = shape.hidden, shape.inner, shape.size
    qkv = (shape.heads + 2 * shape.groups) * size
    x, gate_up = new(width, hidden), new(width, 2 * inner)
    smooth = Transform(new(hidden), new(hidden))
    turn_hidden, turn = (new(side, side) for side in shape.sides)
    turned = Transform(new(inner), None, turn)
    k, v = (new(shape.groups, shape.context, size, dtype=bf16) for _ in range(2))
    cos, sin = (new(shape.context, size // 2) for _ in range(2))
    q = new(width, shape.heads, size, dtype=bf16)
    lengths, parents = new(width, dtype=i32), new(width, dtype=i32)

    def int8(outputs: int, inputs: int, *, residual: bool) -> Callable[[], Any]:
        return lambda: ops.linear_w8a8(
            new(width, inputs, dtype=i8),
            new(width),
            new(outputs, inputs, dtype=i8),
            new(outputs),
            None if residual else new(outputs),
            new(width, outputs) if residual else None,
        )

    def wide(outputs: int, inputs: int, *, residual: bool) -> Callable[[], Any]:
        y = new(width, outputs) if residual else None
        return lambda: ops.linear_bf16(new(width, inputs, dtype=bf16), new(outputs, inputs, dtype=bf16), None, y)

    for name, linear in (("w8a8", int8), ("bf16", wide)):
        yield f"qkv_proj {name}", linear(qkv, hidden, residual=False)
        yield f"down_proj {name}", linear(hidden, inner, residual=True)
        yield f"lm_head {name}", linear(shape.vocabulary, hidden, residual=False)
    yield "rmsnorm", lambda: ops.rmsnorm(x, new(hidden), 1e-5)
    yield "rmsnorm_quantize", lambda: ops.rmsnorm_quantize(x, new(hidden), 1e-5, smooth)
    yield (
        "rmsnorm_quantize rotated",
        lambda: ops.rmsnorm_quantize(x, new(hidden), 1e-5, Transform(rotation=turn_hidden)),
    )
    yield "quantize_rows", lambda: ops.quantize_rows(q.reshape(width, -1))
    yield "silu_mul", lambda: ops.silu_mul(gate_up)
    yield "silu_mul_quantize", lambda: ops.silu_mul_quantize(gate_up)
    yield "silu_mul_quantize rotated", lambda: ops.silu_mul_quantize(gate_up, turned)
    yield "rotate", lambda: ops.rotate(new(width, inner, dtype=bf16), turn)
    norms = (new(size), new(size))
    positions, start = new(width, dtype=i32), new(1, dtype=i32)
    yield "rope_append", lambda: ops.rope_append(new(width, qkv), k, v, start, cos, sin, *norms, positions=positions)
    yield "attend", lambda: ops.attend(q, k, v, lengths)
    yield "attend window", lambda: ops.attend(q, k, v, lengths, None, 4096)
    yield "attend tree", lambda: ops.attend(q, k, v, lengths, parents)
    yield "top_table", lambda: ops.top_table(new(width, shape.vocabulary), 5)
    yield "embed_rows", lambda: ops.embed_rows(new(shape.vocabulary, hidden, dtype=bf16), new(width, dtype=torch.int64))


def launches(shape: Shape, width: int) -> Iterator[tuple[str, Launch]]:
    """(label, launch) for everything that the ops of a pass launch."""
    for label, call in cases(shape, width):
        with recording() as noted:
            call()
        for one in noted:
            yield label, one


def specialised(one: Launch) -> tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]:
    """(types, constants, attributes) that the compiler sees of a launch, as at run time: addresses and sizes that are
    multiples of 16 are known to be, a size of 1 is a constant, unless the kernel says that a size shall not matter."""
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(one.kernel.params):
        value = one.arguments[parameter.name]
        plain = parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not plain):
            signature[parameter.name], constants[(index,)] = "constexpr", value
            continue
        signature[parameter.name] = _type(value)
        if not plain and (isinstance(value, Tensor) or (isinstance(value, int) and value % ALIGNMENT == 0)):
            attributes[(index,)] = [["tt.divisibility", ALIGNMENT]]
    return signature, constants, attributes


def form(one: Launch) -> str:
    """Equal for two launches that run the same machine code."""
    return repr((one.kernel.__name__, *specialised(one), one.options))


def compile_launch(case: str, one: Launch, arch: int) -> Compiled:
    """Compiles a recorded launch for compute capability `arch`, major · 10 + minor."""
    one = one.overlapping(arch >= 90)
    source = ASTSource(one.kernel, *specialised(one))
    binary = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=one.options)
    registers, local_bytes = _resources(binary.asm["cubin"])
    ptx = binary.asm["ptx"]
    return Compiled(
        case=case,
        kernel=one.kernel.__name__,
        arch=arch,
        warps=one.warps,
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=binary.metadata.shared,
        tensor_core=", ".join(sorted(set(_tensor_core(ptx)))),
        sums=_sums(binary.asm["ttgir"]),
        ptx=ptx,
    )


def _sums(ttgir: str) -> tuple[str, ...]:
    """How numbers are laid out over threads where they are reduced, which fixes the order of a sum."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.MULTILINE))
    reduced = re.findall(r"\}\) : \(tensor<(\S+), (#\w+)>\)", ttgir)
    return tuple(f"{shape} {layouts[layout]}" for shape, layout in reduced)


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread, and bytes of stack and local memory per thread, where spilled registers go."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        report = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = {key: int(number) for key, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report.stdout)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def _tensor_core(ptx: str) -> Iterator[str]:
    for kind, types in re.findall(r"\b(wgmma|mma)\.\S*?\.(s8|bf16|tf32)\b", ptx):
        yield f"{kind} {types}"


def compile_all(arch: int, width: int = 5) -> list[Compiled]:
    """Every kernel of a pass of `width` rows of the models in SHAPES, each form of it once."""
    found: dict[str, tuple[str, Launch]] = {}
    for shape in SHAPES:
        for label, one in launches(shape, width):
            found.setdefault(form(one), (f"{shape.name} {label}", one))
    return [compile_launch(case, one, arch) for case, one in found.values()]


def print_table(found: list[Compiled]) -> None:
    """One line a kernel: registers and spilled bytes per thread, shared bytes per block, warps, tensor-core kinds."""
    print(f"\n{'arch':5} {'registers':>9} {'spilled':>8} {'shared':>8} {'warps':>6}  {'tensor cores':12} case: kernel")
    for one in found:
        numbers = f"{one.registers:>9} {one.local_bytes:>8} {one.shared_bytes:>8} {one.warps:>6}"
        print(f"sm_{one.arch} {numbers}  {one.tensor_core or '–':12} {one.case}: {one.kernel}")


def main() -> None:
    parser = ArgumentParser(description="Compiles every Triton kernel and prints what it needs of a GPU.")
    parser.add_argument(
        "--arch", type=int, action="append", choices=sorted(SHARED_LIMIT), help="compute capability × 10"
    )
    parser.add_argument("--width", type=int, default=5, help="rows of the pass")
    arguments = parser.parse_args()
    if INTERPRETED:
        sys.exit("TRITON_INTERPRET is set, which replaces the compiler; unset it")
    print(f"triton {triton.__version__}; {arguments.width} rows; bytes: spilled per thread, shared per block")
    for arch in arguments.arch or sorted(SHARED_LIMIT):
        print_table(compile_all(arch, arguments.width))


if __name__ == "__main__":
    main()
