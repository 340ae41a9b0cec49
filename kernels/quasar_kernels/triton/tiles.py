"""Which tile a product or an attention takes: reviewable numbers in JSON, one file per device, beside this module.

`tiles/conservative.json` is set by hand to fit every GPU from sm_80 on; it was not measured.
`kernels/benchmarks/tune_triton.py` measures and writes `tiles/<device>.json`, whose entries come before the
conservative ones where its device matches. The entry of the nearest shape is taken (distance of log N and log K), of
equally near ones the first: so one tuned model serves its neighbours, and shapes far from it keep what was set for
theirs. The choice depends on shape and device alone, never on the width of a pass.

Keys of an entry. Products: n, k (the shape it was tuned for), rows (16, fixed, but for `linear_w8a8_wide`), block_n,
block_k, split_k, warps, stages; of `linear_bf16` also engine, "triton", or "cublas" where the vendor's product at the
fixed sixteen rows was faster. Attention: size, per (query heads of a group), rows (of a tile: queries × heads), split
(positions per program), warps, stages, registers (of a thread, at most).
"""

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import log
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "tiles"
CONSERVATIVE = "conservative"


def device_slug(name: str) -> str:
    """The file name of a device: "NVIDIA H200" → "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@cache
def table(slug: str) -> dict[str, Any]:
    """The entries for a device, by op: those of its own file, then the conservative ones; warns once where there is no
    file."""
    entries = json.loads((FOLDER / f"{CONSERVATIVE}.json").read_text(encoding="utf-8"))
    own = FOLDER / f"{slug}.json"
    if own.exists():
        for op, found in json.loads(own.read_text(encoding="utf-8")).items():
            entries[op] = found if op == "about" else [*found, *entries[op]]
    elif slug != CONSERVATIVE:
        warnings.warn(
            f"no tuned tiles for {slug}; conservative ones run: kernels/benchmarks/tune_triton.py writes {own.name}",
            RuntimeWarning,
            stacklevel=2,
        )
    return entries


@cache
def _slug(device: torch.device) -> str:
    return device_slug(torch.cuda.get_device_name(device)) if device.type == "cuda" else CONSERVATIVE


def linear_tile(op: str, outputs: int, inputs: int, device: torch.device) -> dict[str, Any]:
    """The tile of a product [M, inputs] × [outputs, inputs]ᵀ."""
    return _forced.get(op) or _nearest(op, _slug(device), (("n", outputs), ("k", inputs)))


def attend_tile(size: int, per: int, device: torch.device) -> dict[str, Any]:
    """The tile of attention with heads of `size` numbers, `per` query heads a group."""
    return _forced.get("attend") or _nearest("attend", _slug(device), (("size", size), ("per", per)))


@cache
def _nearest(op: str, slug: str, wanted: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    def distance(entry: dict[str, Any]) -> float:
        return sum(abs(log(entry[key] / size)) for key, size in wanted)

    return min(table(slug)[op], key=distance)


_forced: dict[str, dict[str, Any]] = {}


@contextmanager
def forced(op: str, tile: dict[str, Any]) -> Iterator[None]:
    """Within it every call of `op` takes this tile: for tuning and tests, and not for threads."""
    _forced[op] = tile
    try:
        yield
    finally:
        del _forced[op]
