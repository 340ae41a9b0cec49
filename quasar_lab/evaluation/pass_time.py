"""How long is a verify pass, and how much of that is unavoidable?

## Idea

A pass at batch 1 must read every weight once, so  floor = bytes read / stream bandwidth,  with the bandwidth of this
machine measured in the same run. *Fraction of floor* = floor / time, and 1 is a perfect engine. The honest way to
compare BF16 with W8A8 is both times beside both floors.

Where a pass is not bound by memory, it is bound by arithmetic. That ceiling is measured too, never assumed. It is one
product of each verifier's own kernel, so wide that every weight, once read, is used many times. Floor and ceiling
together are the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009).

## Choice

Verifiers are interleaved sample by sample (width by width, one pass each), so that a machine that slows down slows all
alike. Medians with the 20th and the 80th percentile are reported, never a best.

## What is lost

Caches. The embedded model's INT8 weights are 134 MB, above any last-level cache here. A smaller model would look faster
than its floor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.kernel_speed import KernelResult
from quasar_lab.evaluation.memory_bandwidth import stream_bandwidth
from quasar_lab.evaluation.origin import Origin, timed_origin
from quasar_lab.evaluation.pass_profile import ProfileResult
from quasar_lab.evaluation.pass_timer import Ceiling, CeilingTimer, StepTimer, operations
from quasar_lab.models.decoder import Decoder
from quasar_lab.support.errors import InputError
from quasar_lab.support.json_schema import parse
from quasar_lab.support.machine import percentiles
from quasar_lab.support.numbers import whole, whole_numbers
from quasar_lab.support.progress import track
from quasar_lab.support.result import Result, flat, left_out

WIDEST = 64
"""The widest pass that is timed."""
BANDWIDTH_EVERY = 10
"""Samples after which the bandwidth is measured once more."""


@dataclass(frozen=True, kw_only=True)
class StepRow(Result):
    """The time of one verify pass, by verifier and width."""

    verifier: str
    width: int
    ms_p20: float
    ms_p50: float
    """Median over the samples, in milliseconds."""
    ms_p80: float
    samples: int
    bytes: int
    """Bytes of weights and cache that the pass reads."""
    operations: int | None = left_out()
    """Multiplications and additions of the pass; None in results saved by an older version."""
    floor_ms: float
    """The time that reading these bytes takes at the stream bandwidth."""
    fraction_of_floor: float
    """floor_ms / ms_p50: 1 is a perfect engine."""
    device_ms_p50: float | None = left_out()
    """On a GPU, the part of the pass that the device worked."""


@dataclass(frozen=True, kw_only=True)
class StepResult(Result):
    """Times of verify passes, beside what memory and arithmetic allowed in the same minutes."""

    bandwidth_gb_s: float
    """Stream bandwidth, measured between the passes."""
    origin: Origin = flat()
    context: int
    """Tokens in the cache before the pass."""
    steps: list[StepRow]
    ceilings: list[Ceiling] | None = left_out()
    """How fast each verifier's kernel computes; None in results saved by an older version."""
    note: str | None = left_out()
    """A warning, where one is due."""
    command: str | None = left_out()
    """The command line that measured it."""

    def row(self, verifier: str, width: int) -> StepRow:
        """The time of a pass of `width` of a verifier. Raises InputError where it was not timed."""
        for row in self.steps:
            if (row.verifier, row.width) == (verifier, width):
                return row
        known = ", ".join(f"{row.verifier}/{row.width}" for row in self.steps)
        raise InputError(f"{verifier}/{width} was not timed; accepted: {known}")

    def by_verifier(self) -> dict[str, list[StepRow]]:
        """Verifier → its rows by width, verifiers in the order they were given."""
        rows: dict[str, list[StepRow]] = {}
        for row in sorted(self.steps, key=lambda row: row.width):
            rows.setdefault(row.verifier, []).append(row)
        return {name: rows[name] for name in dict.fromkeys(row.verifier for row in self.steps)}

    def curves(self) -> dict[str, dict[int, float]]:
        """Verifier → width → median milliseconds of a pass."""
        return {name: {row.width: row.ms_p50 for row in rows} for name, rows in self.by_verifier().items()}

    def common_widths(self) -> list[int]:
        """The widths that every verifier was timed at."""
        return sorted(set.intersection(*(set(curve) for curve in self.curves().values())))

    def fewest_samples(self) -> int:
        """The fewest samples that any of the rows is the median of."""
        return min(row.samples for row in self.steps)


def step(verifiers: Sequence[Decoder], widths: Sequence[int], context: int = 256, samples: int = 20) -> StepResult:
    """Times one verify pass (logits of every row) per verifier and width, behind `context` cached tokens. In the same
    minutes it measures the bandwidth of memory and the speed of arithmetic.

    Raises InputError on widths outside 1…64 or a context that leaves no room for them.
    """
    _check(verifiers, widths, context, samples)
    timer = StepTimer(verifiers, {verifier.name: widths for verifier in verifiers}, context)
    ceilings = CeilingTimer(verifiers)
    first = verifiers[0]
    bandwidth = [stream_bandwidth(first.ops)]
    times = []
    for sample in track(range(1, samples + 1), samples, "Timing steps"):
        times.append(timer.sample())
        ceilings.sample()
        if sample % BANDWIDTH_EVERY == BANDWIDTH_EVERY - 1:
            bandwidth.append(stream_bandwidth(first.ops, repeats=3))
    gigabytes = percentiles(bandwidth)[1]
    rows = []
    for verifier, cache in zip(verifiers, timer.caches, strict=True):
        for width in widths:
            spent = [sample[verifier.name][width] for sample in times]
            on_device = timer.device_ms.get((verifier.name, width), [])
            read = verifier.weight_bytes + (context + width) * cache.row_bytes
            work = operations(verifier, context, width)
            rows.append(_row(verifier.name, width, spent, on_device, read, work, gigabytes))
    return StepResult(
        bandwidth_gb_s=gigabytes,
        origin=timed_origin(first),
        context=context,
        steps=rows,
        ceilings=ceilings.ceilings(),
        note="reference backend: not a speed measurement" if first.backend == "reference" else None,
    )


def _check(verifiers: Sequence[Decoder], widths: Sequence[int], context: int, samples: int) -> None:
    """Raises InputError on what cannot be timed."""
    if not widths or min(whole_numbers(widths, "widths")) < 1 or max(widths) > WIDEST:
        raise InputError(f"widths are {list(widths)}; accepted: one or more in 1…{WIDEST}")
    whole(samples, "samples", "1 or more", least=1)
    room = min(verifier.context for verifier in verifiers) - max(widths)
    whole(context, "context", f"1…{room}", 1, room)


def _row(
    verifier: str,
    width: int,
    spent: Sequence[float],
    on_device: Sequence[float],
    read: int,
    work: int,
    gigabytes: float,
) -> StepRow:
    """spent, on_device: milliseconds per sample, of the pass and of the GPU. read: bytes. work: operations."""
    low, middle, high = percentiles(spent)
    floor = read / gigabytes / 1e6
    return StepRow(
        verifier=verifier,
        width=width,
        ms_p20=low,
        ms_p50=middle,
        ms_p80=high,
        samples=len(spent),
        bytes=read,
        operations=work,
        floor_ms=floor,
        fraction_of_floor=floor / middle,
        device_ms_p50=percentiles(on_device)[1] if on_device else None,
    )


Saved = StepResult | DecodeResult | KernelResult | ProfileResult
KINDS: dict[str, type[StepResult] | type[DecodeResult] | type[KernelResult] | type[ProfileResult]] = {
    "steps": StepResult,
    "runs": DecodeResult,
    "kernels": KernelResult,
    "parts": ProfileResult,
}
"""Key that only one kind of result has → that kind."""


def read(path: Path | str) -> Saved:
    """A result that `quasar-lab bench … --json` wrote, marked as saved, so that a figure of it says so.

    Raises InputError on a file that cannot be read or holds something else.
    """
    try:
        found = parse(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a result: {error}") from error
    kind = next((kind for key, kind in KINDS.items() if isinstance(_part(found, key), list)), None)
    if kind is None:
        raise InputError(f"{path} is no result of a measurement; accepted: what `quasar-lab bench … --json` writes")
    wanted = ("device", "backend") if kind is KernelResult else ("model", "device", "backend")
    missing = [key for key in wanted if not isinstance(found.get(key), str)]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; accepted: what `quasar-lab bench … --json` writes")
    try:
        return kind.from_json({**found, "saved": True})
    except InputError as error:
        raise InputError(f"{path} is no result of this version: {error}") from error


def _part(document: object, key: str) -> object:
    return document.get(key) if isinstance(document, dict) else None
