"""Measures tiles for the Triton kernels on the GPU of this machine and writes them for review.

    python kernels/benchmarks/tune_triton.py --shapes SmolLM2-135M --shapes Qwen3-8B --seconds 240

writes `kernels/quasar_kernels/triton/tiles/<device>.json`: one entry per product and head size of those models, with
what it took, beside the device, versions and date. Read the file, run the tests, commit it.

How. From the conservative tile, one number at a time takes its neighbours for as long as that is faster (coordinate
descent: some twenty candidates a shape instead of hundreds, and each has to be compiled). A candidate must give the
result of the conservative tile first, bit for bit where INT32 decides. It is timed as it will run: in a CUDA graph,
over so many copies of the weight that the L2 cache holds none of them, at width 5 of the sixteen rows that every width
has. For the BF16 product the vendor's at sixteen rows is timed too, and taken where it is faster (`engine`).

What is lost: a minimum between two neighbours that are both slower is not found. Sixteen rows and blocks of 64 cached
positions are not searched: results of every width, and of files already written, hang on them.
"""

import json
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from quasar_kernels import triton as ops
from quasar_kernels.triton import tiles
from quasar_kernels.triton.compiled import SHAPES, Shape
from triton.runtime.errors import OutOfResources

WIDTH, CONTEXT = 5, 4096
COLD_BYTES = 512 * 2**20
REPLAYS = 30
CHOICES: dict[str, dict[str, list[int]]] = {
    "linear_w8a8": {
        "block_n": [16, 32, 64, 128],
        "block_k": [64, 128, 256, 512],
        "split_k": [1, 2, 4, 8, 16],
        "warps": [1, 2, 4, 8],
        "stages": [2, 3, 4, 5, 6],
    },
    "linear_bf16": {
        "block_n": [16, 32, 64, 128],
        "block_k": [32, 64, 128, 256],
        "split_k": [1, 2, 4, 8, 16],
        "warps": [1, 2, 4, 8],
        "stages": [2, 3, 4, 5, 6],
    },
    "attend": {"rows": [16, 32, 64], "split": [64, 128, 256, 512], "warps": [1, 2, 4, 8], "stages": [1, 2, 3]},
}
Tile = dict[str, Any]
Measure = Callable[[Tile], float | None]
"""Microseconds of a call with a tile; None where it does not fit the GPU or gives another result."""


def descend(start: Tile, choices: dict[str, list[int]], measure: Measure) -> tuple[Tile, float]:
    """The fastest tile found from `start` by changing one number at a time to a neighbour among its choices, and its
    microseconds. Raises RuntimeError where not even `start` can be measured."""
    best, took = start, measure(start)
    if took is None:
        raise RuntimeError(f"the conservative tile {start} does not run here")
    seen = {_key(start)}
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


def microseconds(calls: list[Callable[[], Any]]) -> float:
    """Median time of one of `calls`, replayed one after the other from a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()  # compiles, and makes the scratch area that a graph needs
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    samples = []
    for _ in range(REPLAYS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        samples.append(1e3 * first.elapsed_time(last) / len(calls))
    return statistics.median(samples)


def measured(op: str, calls: list[Callable[[], torch.Tensor]], start: Tile, exact: bool) -> Measure:
    """`Measure` for calls of `op` on different operands; the result of `start` is what others must give."""
    with tiles.forced(op, start):
        expected = calls[0]()

    def measure(tile: Tile) -> float | None:
        try:
            with tiles.forced(op, tile):
                y = calls[0]()
                right = torch.equal(y, expected) if exact else torch.allclose(y, expected, rtol=2e-2, atol=2e-2)
                return microseconds(calls) if right else None
        except OutOfResources:
            return None

    return measure


def tune_product(op: str, outputs: int, inputs: int) -> Tile:
    """The entry of one product [WIDTH, inputs] × [outputs, inputs]ᵀ."""
    int8 = op == "linear_w8a8"
    size = outputs * inputs * (1 if int8 else 2)
    copies = max(2, -(-COLD_BYTES // size))
    calls: list[Callable[[], torch.Tensor]] = []
    for _ in range(copies):
        if int8:
            q = torch.randint(-127, 128, (WIDTH, inputs), dtype=torch.int8, device="cuda")
            wq = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device="cuda")
            wscale = torch.ones(outputs, device="cuda")
            calls.append(partial(ops.linear_w8a8, q, torch.ones(WIDTH, device="cuda"), wq, wscale))
        else:
            x = torch.randn(WIDTH, inputs, device="cuda").bfloat16()
            w = (torch.randn(outputs, inputs, device="cuda") / inputs**0.5).bfloat16()
            calls.append(partial(ops.linear_bf16, x, w))
    start = conservative(op, n=outputs, k=inputs)
    measure = measured(op, calls, start, exact=int8)
    tile, took = descend(start, CHOICES[op], measure)
    if not int8:
        vendor = measure({**tile, "engine": "cublas"})
        if vendor is not None and vendor < took:
            tile, took = {**tile, "engine": "cublas"}, vendor
    return {"n": outputs, "k": inputs, **tile, "microseconds": round(took, 2), "gb_s": round(size / took / 1e3, 1)}


def tune_attention(shape: Shape) -> Tile:
    """The entry of attention over CONTEXT rows of the heads of `shape`."""
    heads, groups, size = shape.heads, shape.groups, shape.size
    bytes_read = 2 * 2 * groups * CONTEXT * size
    calls: list[Callable[[], torch.Tensor]] = []
    lengths = torch.arange(CONTEXT - WIDTH + 1, CONTEXT + 1, dtype=torch.int32, device="cuda")
    for _ in range(max(2, -(-COLD_BYTES // bytes_read))):
        q, k, v = (
            torch.randn(*sizes, device="cuda").bfloat16()
            for sizes in ((WIDTH, heads, size), (groups, CONTEXT, size), (groups, CONTEXT, size))
        )
        calls.append(partial(ops.attend, q, k, v, lengths))
    start = conservative("attend", size=size, per=heads // groups)
    tile, took = descend(start, CHOICES["attend"], measured("attend", calls, start, exact=False))
    where = {"size": size, "per": heads // groups}
    return {**where, **tile, "microseconds": round(took, 2), "gb_s": round(bytes_read / took / 1e3, 1)}


def jobs(shape: Shape) -> list[tuple[str, Callable[[], Tile]]]:
    """(op, its tuning) for everything that a pass of the model launches."""
    qkv, mixed = (shape.heads + 2 * shape.groups) * shape.size, shape.heads * shape.size
    products = [
        (qkv, shape.hidden),
        (shape.hidden, mixed),
        (2 * shape.inner, shape.hidden),
        (shape.hidden, shape.inner),
        (shape.vocabulary, shape.hidden),
    ]
    found: list[tuple[str, Callable[[], Tile]]] = [
        (op, partial(tune_product, op, n, k)) for n, k in products for op in ("linear_w8a8", "linear_bf16")
    ]
    return [*found, ("attend", partial(tune_attention, shape))]


def write(entries: dict[str, list[Tile]], about: dict[str, Any], path: Path) -> None:
    """One line an entry, so that a change can be reviewed."""
    parts = [f'  "about": {json.dumps(about)}']
    for op, found in entries.items():
        lines = ",\n".join(f"    {json.dumps(entry)}" for entry in found)
        parts.append(f'  "{op}": [\n{lines}\n  ]')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = ArgumentParser(description="Measures tiles for the Triton kernels and writes tiles/<device>.json.")
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", action="append", choices=names, help="models whose shapes are tuned; default: all")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no new shape after so long")
    parser.add_argument("--out", type=Path, default=tiles.FOLDER, help="folder of the file")
    arguments = parser.parse_args()
    reason = ops.unavailable()
    if reason is not None:
        parser.exit(2, f"tiles are measured on a GPU: {reason}\n")
    device = torch.cuda.get_device_name()
    about = {
        "device": device,
        "measured": True,
        "date": time.strftime("%Y-%m-%d"),
        "width": WIDTH,
        "context": CONTEXT,
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
    }
    path = arguments.out / f"{tiles.device_slug(device)}.json"
    entries: dict[str, list[Tile]] = {}
    begun = time.monotonic()
    for shape in (shape for shape in SHAPES if shape.name in (arguments.shapes or names)):
        for op, tune in jobs(shape):
            if time.monotonic() - begun > arguments.seconds:
                print(f"out of time before {shape.name} {op}; what is missing stays conservative or takes a neighbour")
                return
            entry = tune()
            entries.setdefault(op, []).append(entry)
            print(f"{shape.name} {op}: {entry}", flush=True)
            write(entries, about, path)  # after each, so that a cut costs nothing
    print(f"written: {path}")


if __name__ == "__main__":
    main()
