"""One check of everything that needs a GPU: is it right, and is it as fast as memory allows?

    python kernels/benchmarks/gpu_check.py --out gpu_check.json          # about 4 to 5 minutes on one H100 or H200
    python kernels/benchmarks/gpu_check.py --only ops,text               # some sections
    python kernels/benchmarks/gpu_check.py --cpu-rehearsal               # its logic, on tiny shapes, without a GPU

It runs from the checkout as it is, with what the core needs (torch, triton, safetensors, filelock). Sections:

- ops: every op against the reference, at widths 1…17 (`gpu_check_ops`);
- text: greedy speculative text equals plain text and audited text equals BF16's, in BF16 and in W8A8, whatever is
  drafted; a row of logits has the same bits at every width, and whether kernels overlap or not (`gpu_check_text`);
- step: a verify pass in BF16 and W8A8 at widths 1…48 beside the floor that a copy's bandwidth sets; also without
  graphs, and without overlap;
- products, other: each op alone (`gpu_check_speed`), and how often a step has it: what the ops of a step take together
  is held against the step, and what is missing is launches, gaps and the host.

Prints a short table and writes one JSON. Exit status 1 when a result is wrong; a goal that is missed is said, and is no
error. Where something cannot run at all, what it said is in the report, with all that was found before, and the rest
goes on.
"""

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "kernels")]

import gpu_check_ops as op_checks  # noqa: E402
import gpu_check_speed as speed  # noqa: E402
import gpu_check_text as text_checks  # noqa: E402
from quasar_kernels import BackendUnavailable, select  # noqa: E402
from quasar_kernels.stand_in import StandIn  # noqa: E402

from quasar_lab.evaluation import pass_time  # noqa: E402
from quasar_lab.evaluation.memory_bandwidth import stream_bandwidth  # noqa: E402
from quasar_lab.models.cuda_graphs import CudaRuntime  # noqa: E402
from quasar_lab.models.decoder import Decoder  # noqa: E402
from quasar_lab.support.errors import QuasarError  # noqa: E402
from quasar_lab.support.machine import gpu_name, stamp  # noqa: E402

SECTIONS = ("ops", "text", "step", "products", "other")
STEP_WIDTHS = (1, 2, 4, 6, 8, 16, 32, 48)
NARROW = 8
"""The widest step that has goals: verify passes are hardly wider."""
SPEED_KEYS = ("gb_s", "share", "us_", "ms_", "fraction", "floor", "gop_s", "tokens_per_second", "seconds")
FAULTS: tuple[type[Exception], ...] = (
    *(RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError, QuasarError),
    *(OSError, subprocess.SubprocessError),  # compiling a kernel runs other programs
)
try:
    from triton.errors import TritonError
except ImportError:
    pass
else:
    FAULTS += (TritonError,)


def judged(cases: Iterable[tuple[str, Callable[[], str | None]]]) -> Iterator[dict[str, Any]]:
    """{"case", "fault"}: what is wrong with each case, or None."""
    for case, check in cases:
        try:
            fault = check()
        except FAULTS as error:
            fault = told(error)
        yield {"case": case, "fault": fault}


def check_ops(bench: speed.Bench, seed: int, small: bool) -> Iterator[dict[str, Any]]:
    """Every op, `judged`."""
    inputs = op_checks.Inputs(bench.ops, bench.device, bench.runtime.capture, seed)
    cases = op_checks.all_cases(inputs, small)
    return judged((case.label, partial(op_checks.examine, case, bench.device)) for case in cases)


def reach(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The goals, with what was measured: {"goal", "value", "limit", "met"}; met None where nothing was measured."""
    rows, products = [], whole(found, "products")

    def add(goal: str, value: float | None, limit: float, at_least: bool) -> None:
        met = None if value is None else value >= limit if at_least else value <= limit
        rows.append({"goal": goal, "value": value, "limit": limit, "met": met})

    shares = [byte_weighted(products, "linear_w8a8", width) for width in range(1, 17)] if products else []
    add("W8A8 products, share of the copy bandwidth, worst of widths 1…16", min(shares, default=None), 0.75, True)
    steps = {(row["verifier"], row["width"]): row for row in found.get("step", {}).get("steps", [])}
    narrow = [width for width in STEP_WIDTHS if width <= NARROW]
    ratios = [steps["w8a8", w]["ms_p50"] / steps["bf16", w]["ms_p50"] for w in narrow] if steps else []
    add("W8A8 step / BF16 step, worst of widths 1…8", max(ratios, default=None), 0.60, False)
    floors = [1 / steps["bf16", w]["fraction_of_floor"] for w in narrow] if steps else []
    add("BF16 step / its floor, worst of widths 1…8", max(floors, default=None), 1.25, False)
    return rows


def byte_weighted(rows: list[dict[str, Any]], op: str, width: int) -> float:
    """Of all products of a step: bytes over the time that a copy would take, divided by the time they take."""
    here = [row for row in rows if row["op"] == op and row["width"] == width]
    copy = sum(row["count"] * row["us_p50"] * row["share_of_copy"] for row in here)
    return copy / sum(row["count"] * row["us_p50"] for row in here)


def whole(found: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The rows of a section, none where it did not come to its end."""
    return [] if section in found.get("faults", {}) else found.get(section, [])


def alone(found: dict[str, Any], verifier: str, width: int) -> float | None:
    """ms of all ops of a step, each timed alone; None where not all were."""
    products = [row for row in whole(found, "products") if (row["op"], row["width"]) == (f"linear_{verifier}", width)]
    others = [row for row in whole(found, "other") if row["width"] == width]
    spent = [(row["count"], row["us_p50"]) for row in products]
    spent += [(row["count"][verifier], row["us_p50"]) for row in others]
    if not products or not others or any(us is None for _, us in spent):
        return None
    return 1e-3 * sum(count * us for count, us in spent)


def without_speed(value: Any) -> Any:
    """A rehearsal's report: every figure of speed taken out."""
    if isinstance(value, list):
        return [without_speed(item) for item in value]
    if isinstance(value, dict):
        return {
            key: None
            if not isinstance(item, (list, dict)) and any(part in key for part in SPEED_KEYS)
            else without_speed(item)
            for key, item in value.items()
        }
    return value


def told(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def run(
    bench: speed.Bench, seed: int, sections: Sequence[str], small: bool, write: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """All sections, each written when it is done; what a section found stays, whatever happens to it later."""
    begun, config = time.perf_counter(), speed.TINY if small else speed.QWEN3_8B
    samples, tokens = (1, 12) if small else (30, 96)
    gammas = (4, 16) if small else (1, 4, 7, 15, 16)
    context = speed.step_context(config)
    found: dict[str, Any] = {"gpu": gpu_name(), "seed": seed, "faults": {}, **stamp().to_json()}
    built: list[tuple[Decoder, Decoder]] = []

    def pair() -> tuple[Decoder, Decoder]:
        if not built:
            built.append(speed.models(bench, config))
        return built[0]

    def stream() -> float:
        return stream_bandwidth(bench.ops, repeats=3)

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        try:
            yield
        except FAULTS as error:
            found["faults"][name] = told(error)

    def fill(rows: list[dict[str, Any]], source: Iterable[dict[str, Any]]) -> None:
        for row in source:  # one by one: an error of the source costs none that are there
            rows.append(row)

    def step(parts: dict[str, Any]) -> None:
        with noting("step"):
            parts |= pass_time.step(pair(), STEP_WIDTHS, context, samples).to_json()
        with noting("step without graphs"):
            fill(parts.setdefault("eager", []), speed.eager(pair(), (1, NARROW), context, 1 if small else 5))
        with noting("step without overlap"):
            fill(parts.setdefault("in_turn", []), speed.in_turn(pair(), (1, NARROW), context, samples))

    work: dict[str, Callable[[Any], None]] = {
        "ops": lambda rows: fill(rows, check_ops(bench, seed, small)),
        "text": lambda rows: fill(rows, judged(text_checks.all_cases(*pair(), tokens, gammas))),
        "step": step,
        "products": lambda rows: fill(rows, speed.products(bench, config, range(1, 17), samples // 2 or 1, stream)),
        "other": lambda rows: fill(rows, speed.other_ops(bench, config, (1, NARROW, 16), samples // 2 or 1)),
    }
    for name in sections:
        print(f"{name} …", file=sys.stderr, flush=True)
        found[name] = {} if name == "step" else []
        with noting(name):
            work[name](found[name])
        found["total_s"] = time.perf_counter() - begun
        write(found)
    return found


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not right, a line each."""
    cases = [row for name in ("ops", "text") for row in found.get(name, []) if row["fault"]]
    return [*(f"{row['case']}: {row['fault']}" for row in cases), *(f"{k}: {v}" for k, v in found["faults"].items())]


def table(found: dict[str, Any]) -> str:
    """The report in a few lines."""
    lines = [f"{found['gpu'] or 'no GPU: a rehearsal, no speed is measured'}   seed {found['seed']}"]
    for name in ("ops", "text"):
        if name in found:
            lines.append(f"{name}: {sum(row['fault'] is None for row in found[name])} of {len(found[name])} right")
    lines += [f"  WRONG {line}" for line in wrong(found)]
    step = found.get("step", {})
    steps = {(row["verifier"], row["width"]): row for row in step.get("steps", [])}
    if steps:
        lines.append(f"copy {shown(step['bandwidth_gb_s'])} GB/s; ms per step (÷ floor):")
    for width in STEP_WIDTHS if steps else ():
        here = [row for (_, of), row in steps.items() if of == width]
        cells = [
            f"{row['verifier']} {shown(row['ms_p50'])} ({shown(inverse(row['fraction_of_floor']))})" for row in here
        ]
        lines.append(f"  width {width:2}  {'   '.join(cells)}")
    for key, how in (("eager", "graphs"), ("in_turn", "overlap")):
        for row in step.get(key, []):
            lines.append(f"  without {how}, {row['verifier']} at width {row['width']}: {shown(row['ms_p50'])} ms")
    for (verifier, width), row in steps.items():
        if width == NARROW:
            sums = f"{shown(alone(found, verifier, width))} ms of {shown(row['ms_p50'])} ms"
            device = f" ({shown(row['device_ms_p50'])} ms on the device)" if "device_ms_p50" in row else ""
            lines.append(f"  {verifier} at width {width}, sum of its ops alone: {sums}{device}")
    names = dict.fromkeys((row["op"], row["name"]) for row in found.get("products", []))
    for op, name in names:
        shares = [row["share_of_copy"] for row in found["products"] if (row["op"], row["name"]) == (op, name)]
        low, high = (None, None) if None in shares else (min(shares), max(shares))
        lines.append(f"  {op} {name:12} {shown(low)} to {shown(high)} of copy, widths 1…16")
    for row in found["reach"]:
        state = {None: "not measured", True: "met", False: "MISSED"}[row["met"]]
        lines.append(f"{row['goal']}: {shown(row['value'])} (goal {row['limit']}): {state}")
    return "\n".join(lines)


def inverse(share: float | None) -> float | None:
    return None if share is None else 1 / share


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description="Checks the CUDA side of the lab on one GPU: correctness and speed.")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections, of {','.join(SECTIONS)}")
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of the inputs (default: fresh)"
    )
    parser.add_argument("--cpu-rehearsal", action="store_true", help="tiny shapes on the reference, no figure of speed")
    options = parser.parse_args(arguments)
    sections = options.only.split(",")
    if not set(sections) <= set(SECTIONS):
        print(f"--only is {options.only!r}; accepted: {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    if options.cpu_rehearsal:
        ops: Any = StandIn()
        bench = speed.Bench(ops, "cpu", ops, options.seed)
    else:
        try:
            bench = speed.Bench(select("triton", "cuda"), "cuda", CudaRuntime(), options.seed)
        except BackendUnavailable as error:
            print(f"nothing can be checked here: {error}", file=sys.stderr)
            return 2

    def write(found: dict[str, Any]) -> None:
        document = {**(without_speed(found) if options.cpu_rehearsal else found), "rehearsal": options.cpu_rehearsal}
        document["reach"] = reach({} if options.cpu_rehearsal else found)
        options.out.write_text(json.dumps(document, indent=1), encoding="utf-8")

    found = run(bench, options.seed, sections, options.cpu_rehearsal, write)
    print(table(json.loads(options.out.read_text(encoding="utf-8"))))
    return 1 if wrong(found) else 0


if __name__ == "__main__":
    sys.exit(main())
