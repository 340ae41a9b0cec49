"""Measures tiles for the Triton kernels on the GPU of this machine, and writes them to a file for review.

    python kernels/benchmarks/tune_triton.py --shapes Qwen3-8B --shapes SmolLM2-135M --seconds 240

writes `kernels/quasar_kernels/triton/tiles/<device>.json`. It has one entry per product and head size of these models,
in the order in which they were given, with the time that the entry took, and with the device, the versions and the
date. Read the file, run the tests, and commit it. It runs from a checkout as it is, with torch and triton.

## Idea

A tile is a few numbers: block sizes, parts of a split sum, warps, stages. Coordinate descent finds a fast one: it
starts at a tile that works, and each number in turn takes its neighbouring choices for as long as that is faster. This
tries some twenty tiles a shape instead of hundreds, and every tile that is tried has to be compiled.

## Choice

- The start is the conservative tile. A product starts from the faster of two, that tile and one that does not split K,
  because no change of a single number leads from one to the other.
- A tile must first give the result of the conservative tile: bit for bit where INT32 decides, else within a relative
  distance of CLOSE.
- A tile is timed as it will be used, in a CUDA graph, over so many copies of the weight that the L2 cache holds none of
  them (`quasar_kernels.op_timing`). A narrow pass has sixteen rows at every width, so it is timed at width 5. The
  taller tile of wide passes is timed at 64 rows. Attention is timed over a short and a long context in turn, in a cache
  with room for more.
- The vendor's BF16 product is timed too, at sixteen rows, and taken where it is faster (`engine`).
- What a step spends most of its time in is measured first, because the time limit cuts off the rest.

## What is lost

A minimum between two neighbours that are both slower is not found. Sixteen rows and blocks of 64 cached positions are
not searched, because the results of every width, and of files that were written before, depend on them.
"""

import json
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(KERNELS))

import torch  # noqa: E402
import triton  # noqa: E402
from quasar_kernels import triton as ops  # noqa: E402
from quasar_kernels.agreement import Agree, equal, near  # noqa: E402
from quasar_kernels.cuda_runtime import CudaRuntime  # noqa: E402
from quasar_kernels.op_timing import Bench, product_calls  # noqa: E402
from quasar_kernels.triton import tiles  # noqa: E402
from quasar_kernels.triton.compiled import SHAPES, Shape  # noqa: E402
from triton.errors import TritonError  # noqa: E402

WIDTH, WIDE_WIDTH = 5, 64
"""Rows of a narrow product and of a wide one."""
CONTEXTS, CAPACITY = (1024, 8192), 16384
"""Tokens that attention reads, and rows of the KV cache that they lie in."""
CLOSE = 8e-3
"""The relative distance at which two results of BF16 products or of attention count as the same."""
REPLAYS = 30
"""Samples per tile; their median counts."""
CHOICES: dict[str, dict[str, list[int]]] = {
    "linear_w8a8": {
        "block_n": [16, 32, 64, 128],
        "block_k": [64, 128, 256, 512],
        "split_k": [1, 2, 4, 8, 16],
        "warps": [1, 2, 4, 8],
        "stages": [2, 3, 4, 5, 6],
    },
    "linear_w8a8_wide": {
        "rows": [32, 64, 128],
        "block_n": [64, 128],
        "block_k": [64, 128],
        "split_k": [1, 2, 4],
        "warps": [4, 8],
        "stages": [3, 4],
    },
    "linear_bf16": {
        "block_n": [16, 32, 64, 128],
        "block_k": [32, 64, 128, 256],
        "split_k": [1, 2, 4, 8, 16],
        "warps": [1, 2, 4, 8],
        "stages": [2, 3, 4, 5, 6],
    },
    "attend": {
        "rows": [16, 32, 64],
        "split": [64, 128, 256, 512],
        "warps": [1, 2, 4, 8],
        "stages": [1, 2, 3],
        "registers": [128, 168, 255],
    },
}
UNSPLIT: dict[str, dict[str, int]] = {
    "linear_w8a8": {"block_n": 32, "block_k": 256, "split_k": 1, "warps": 4, "stages": 5},
    "linear_bf16": {"block_n": 32, "block_k": 128, "split_k": 1, "warps": 4, "stages": 5},
}
"""The second start of a product: no split of K."""
Tile = dict[str, Any]
Measure = Callable[[Tile], float | None]
"""Microseconds of a call with a tile; None where it does not fit the GPU or gives another result."""


def descend(starts: Sequence[Tile], choices: dict[str, list[int]], measure: Measure) -> tuple[Tile, float]:
    """The fastest tile that coordinate descent finds from the fastest of `starts`, and its microseconds.

    choices: per number of a tile, its values in order. Raises RuntimeError where none of `starts` can be measured.
    """
    timed = [(took, start) for start in starts if (took := measure(start)) is not None]
    if not timed:
        raise RuntimeError(f"none of {list(starts)} runs here")
    took, best = min(timed, key=lambda one: one[0])
    seen = {_key(start) for start in starts}
    improved = True
    while improved:
        improved = False
        for name, values in choices.items():
            at = values.index(best[name])
            for neighbour in values[max(at - 1, 0) : at + 2]:
                tile = {**best, name: neighbour}
                if _key(tile) in seen:
                    continue
                seen.add(_key(tile))
                other = measure(tile)
                if other is not None and other < took:
                    best, took, improved = tile, other, True
    return best, took


def _key(tile: Tile) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(tile.items()))


def conservative(op: str, **wanted: int) -> Tile:
    """The tile that runs without tuning, without the shape that it was set for."""
    device = torch.device("cpu")  # which has the conservative table
    if op == "attend":
        tile = tiles.attend_tile(wanted["size"], wanted["per"], device)
    else:
        tile = tiles.linear_tile(op, wanted["n"], wanted["k"], device)
    return {name: value for name, value in tile.items() if name not in ("n", "k", "size", "per")}


def measured(bench: Bench, op: str, calls: Sequence[Callable[[], torch.Tensor]], start: Tile, agree: Agree) -> Measure:
    """`Measure` for calls of `op` on different operands.

    The first two calls must give with every tile what they give with `start`.
    """

    def results() -> list[torch.Tensor]:
        return [call().clone() for call in calls[:2]]

    with tiles.forced(op, start):
        expected = results()

    def measure(tile: Tile) -> float | None:
        try:
            with tiles.forced(op, tile):
                if any(agree(found, wanted) for found, wanted in zip(results(), expected, strict=True)):
                    return None
                sample = bench.timed(calls)
        except TritonError:
            return None
        return 1e6 * statistics.median(sample() for _ in range(REPLAYS))

    return measure


def tune_product(bench: Bench, op: str, outputs: int, inputs: int) -> Tile:
    """The entry of one product [WIDTH, inputs] × [outputs, inputs]ᵀ, or of WIDE_WIDTH rows."""
    kind, width = op.removesuffix("_wide"), WIDE_WIDTH if op.endswith("_wide") else WIDTH
    of_rows, size = product_calls(bench, kind, outputs, inputs, width)
    start = conservative(op, n=outputs, k=inputs)
    starts = [start, {**start, **UNSPLIT[op]}] if op in UNSPLIT else [start]
    agree = equal if kind == "linear_w8a8" else near(CLOSE)
    measure = measured(bench, op, [partial(call, width) for call in of_rows], start, agree)
    tile, took = descend(starts, CHOICES[op], measure)
    if kind == "linear_bf16":
        vendor = measure({**tile, "engine": "cublas"})
        if vendor is not None and vendor < took:
            tile, took = {**tile, "engine": "cublas"}, vendor
    return {"n": outputs, "k": inputs, **tile, "microseconds": round(took, 2), "gb_s": round(size / took / 1e3, 1)}


def tune_attention(bench: Bench, shape: Shape) -> Tile:
    """The entry of attention with the heads of `shape`, over CONTEXTS in turn."""
    heads, groups, size = shape.heads, shape.groups, shape.size
    cached = bench.activations.itemsize * 2 * groups * size * sum(CONTEXTS)
    calls: list[Callable[[], torch.Tensor]] = []
    for _ in range(max(2, -(-4 * bench.cache_bytes() // cached))):
        for context in CONTEXTS:
            q, k, v = (
                bench.normal(*sizes, size, dtype=bench.activations)
                for sizes in ((WIDTH, heads), (groups, CAPACITY), (groups, CAPACITY))
            )
            lengths = torch.arange(context - WIDTH + 1, context + 1, dtype=torch.int32, device=bench.device)
            calls.append(partial(bench.ops.attend, q, k, v, lengths))
    start = conservative("attend", size=size, per=heads // groups)
    tile, took = descend([start], CHOICES["attend"], measured(bench, "attend", calls, start, near(CLOSE)))
    speed = {"microseconds": round(took, 2), "gb_s": round(cached / len(CONTEXTS) / took / 1e3, 1)}
    return {"size": size, "per": heads // groups, **tile, **speed}


def jobs(bench: Bench, shape: Shape) -> list[tuple[str, Callable[[], Tile]]]:
    """(op, its tuning) for everything that a pass of the model launches. What takes most of a step comes first."""
    qkv, mixed = (shape.heads + 2 * shape.groups) * shape.size, shape.heads * shape.size
    gate_up, down = (2 * shape.inner, shape.hidden), (shape.hidden, shape.inner)
    layer = [gate_up, down, (qkv, shape.hidden), (shape.hidden, mixed)]
    head = (shape.vocabulary, shape.hidden)

    def products(shapes: Sequence[tuple[int, int]], *kinds: str) -> list[tuple[str, Callable[[], Tile]]]:
        return [(op, partial(tune_product, bench, op, *one)) for one in shapes for op in kinds]

    return [
        *products(layer, "linear_w8a8", "linear_bf16"),
        ("attend", partial(tune_attention, bench, shape)),
        *products([head], "linear_w8a8", "linear_bf16"),
        *products([*layer, head], "linear_w8a8_wide"),
    ]


def write(entries: dict[str, list[Tile]], facts: dict[str, Any], path: Path) -> None:
    """Writes one line per entry, so that a change can be reviewed. facts: those of `about`."""
    parts = [f'  "about": {json.dumps(facts)}']
    for op, found in entries.items():
        lines = ",\n".join(f"    {json.dumps(entry)}" for entry in found)
        parts.append(f'  "{op}": [\n{lines}\n  ]')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def about(device: str) -> dict[str, Any]:
    """What a file of tiles says about how they were measured."""
    return {
        "device": device,
        "measured": True,
        "date": time.strftime("%Y-%m-%d"),
        "width": WIDTH,
        "wide_width": WIDE_WIDTH,
        "context": list(CONTEXTS),
        "capacity": CAPACITY,
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
    }


def main() -> None:
    parser = ArgumentParser(description="Measures tiles for the Triton kernels and writes tiles/<device>.json.")
    shapes = {shape.name: shape for shape in SHAPES}
    parser.add_argument(
        "--shapes", action="append", choices=[*shapes], help="models whose shapes are tuned, in order; default: all"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no new shape after so long")
    parser.add_argument("--out", type=Path, default=tiles.FOLDER, help="folder of the file")
    arguments = parser.parse_args()
    reason = ops.unavailable()
    if reason is not None:
        parser.exit(2, f"tiles are measured on a GPU: {reason}\n")
    device = torch.cuda.get_device_name()
    path = arguments.out / f"{tiles.device_slug(device)}.json"
    bench = Bench(ops, "cuda", CudaRuntime(), seed=0)
    entries: dict[str, list[Tile]] = {}
    begun = time.monotonic()
    for name in arguments.shapes or shapes:
        for op, tune in jobs(bench, shapes[name]):
            if time.monotonic() - begun > arguments.seconds:
                print(f"out of time before {name} {op}; what is missing stays conservative or takes a neighbour")
                return
            try:
                entry = tune()
            except (RuntimeError, TritonError) as error:  # the other shapes may still be measured
                print(f"{name} {op} cannot be tuned: {error}", flush=True)
                continue
            entries.setdefault(op, []).append(entry)
            print(f"{name} {op}: {entry}", flush=True)
            write(entries, about(device), path)  # after each, so that a cut costs nothing
    print(f"written: {path}")


if __name__ == "__main__":
    main()
