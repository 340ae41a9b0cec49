"""One check of everything that needs a GPU: is it right, and is it as fast as memory allows?

    python3 quasar_lab/evaluation/gpu_check --out gpu_check.json          # 4 to 5 minutes on one H100 or H200
    python3 quasar_lab/evaluation/gpu_check --only ops,text               # some sections
    python3 quasar_lab/evaluation/gpu_check --cpu-rehearsal               # its logic on tiny shapes, without a GPU

It runs from a checkout as it is, and needs torch, triton, safetensors and filelock. Where the package is installed,
`python3 -m quasar_lab.evaluation.gpu_check` is the same.

## Sections

- ops: every op against the reference, at widths 1…17 (`ops`).
- text: greedy speculative text equals plain text and audited text equals BF16's, in BF16 and in W8A8, whatever is
  drafted. A row of logits has the same bits at every width, with overlap of kernels and without (`text`).
- step: a verify pass in BF16 and W8A8 at widths 1…48, beside the floor that a copy's bandwidth sets. The same pass
  without CUDA graphs, and without overlap.
- products, other: each op alone, and how often a step has it (`speed`).

## Result

A short table is printed and one JSON document is written. The exit status is 1 when a result is wrong. A goal for speed
that is missed is said, and is no error. Where something cannot run at all, its error is in the report together with all
that was found before, and the rest goes on.
"""

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from quasar_kernels import BackendUnavailable, select
from quasar_kernels.cuda_runtime import CudaRuntime
from quasar_kernels.op_timing import Bench
from quasar_kernels.simulated_device import SimulatedDevice

from quasar_lab.evaluation import pass_time
from quasar_lab.evaluation.gpu_check import ops, speed
from quasar_lab.evaluation.gpu_check.goals import NARROW, PRODUCT_WIDTHS, STEP_WIDTHS
from quasar_lab.evaluation.gpu_check.random_models import QWEN3_8B, TINY, random_models
from quasar_lab.evaluation.gpu_check.report import document, table
from quasar_lab.evaluation.gpu_check.results import CheckedCase, Findings, StepFindings
from quasar_lab.evaluation.gpu_check.text import NamedCheck, TextChecks
from quasar_lab.evaluation.memory_bandwidth import stream_bandwidth
from quasar_lab.models.decoder import Decoder
from quasar_lab.support.errors import QuasarError
from quasar_lab.support.machine import gpu_name, stamp

SECTIONS = ("ops", "text", "step", "products", "other")
FAULTS: tuple[type[Exception], ...] = (
    *(RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError, QuasarError),
    *(OSError, subprocess.SubprocessError),  # compiling a kernel runs other programs
)
"""What a case may end with and still be a finding: the check goes on behind it."""
try:
    from triton.errors import TritonError
except ImportError:
    pass
else:
    FAULTS += (TritonError,)

Row = TypeVar("Row")


def check_cases(cases: Iterable[NamedCheck]) -> Iterator[CheckedCase]:
    """Runs each case; an error that ends one is its fault."""
    for case, check in cases:
        try:
            fault = check()
        except FAULTS as error:
            fault = error_line(error)
        yield CheckedCase(case, fault)


def error_line(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


class Check:
    """The sections, and what they have found. small: tiny shapes and few samples, for a rehearsal."""

    def __init__(self, bench: Bench, seed: int, small: bool):
        self.findings = Findings(gpu_name(), seed, stamp())
        self._bench, self._seed, self._small = bench, seed, small
        self._config = TINY if small else QWEN3_8B
        self._samples = 1 if small else 30

    def run(self, sections: Sequence[str], write: Callable[[Findings], None]) -> None:
        """Runs these sections. write: called with the findings behind each, so that a cut costs one section at most."""
        begun = time.perf_counter()
        work = {
            "ops": self._ops,
            "text": self._text,
            "step": self._step,
            "products": self._products,
            "other": self._other,
        }
        for name in sections:
            print(f"{name} …", file=sys.stderr, flush=True)
            with self._noting(name):
                work[name]()
            self.findings.total_s = time.perf_counter() - begun
            write(self.findings)

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """An error within the block becomes a fault of the section."""
        try:
            yield
        except FAULTS as error:
            self.findings.faults[name] = error_line(error)

    @cached_property
    def _models(self) -> tuple[Decoder, Decoder]:
        return random_models(self._bench, self._config)

    def _ops(self) -> None:
        bench = self._bench
        self.findings.ops = []
        inputs = ops.Inputs(bench.ops, bench.device, bench.runtime.capture, self._seed)
        cases = ops.all_cases(inputs, self._small)
        checks = ((case.label, partial(ops.examine, case, bench.device)) for case in cases)
        _fill(self.findings.ops, check_cases(checks))

    def _text(self) -> None:
        self.findings.text = []
        tokens, gammas = (12, (4, 16)) if self._small else (96, (1, 4, 7, 15, 16))
        _fill(self.findings.text, check_cases(TextChecks(*self._models, tokens).cases(gammas)))

    def _step(self) -> None:
        found = self.findings.step = StepFindings()
        context, widths = speed.step_context(self._config), (1, NARROW)
        with self._noting("step"):
            found.measured = pass_time.step(self._models, STEP_WIDTHS, context, self._samples)
        with self._noting("step without graphs"):
            samples = 1 if self._small else 5
            _fill(found.eager, speed.eager_passes(self._models, widths, context, samples))
        with self._noting("step without overlap"):
            _fill(found.in_turn, speed.passes_without_overlap(self._models, widths, context, self._samples))

    def _products(self) -> None:
        self.findings.products = []
        copy = partial(stream_bandwidth, self._bench.ops, repeats=3)
        samples = max(1, self._samples // 2)
        _fill(self.findings.products, speed.product_times(self._bench, self._config, PRODUCT_WIDTHS, samples, copy))

    def _other(self) -> None:
        self.findings.other = []
        samples = max(1, self._samples // 2)
        _fill(self.findings.other, speed.other_op_times(self._bench, self._config, (1, NARROW, 16), samples))


def _fill(rows: list[Row], source: Iterable[Row]) -> None:
    """Appends row by row, so that an error of the source costs none of the rows before it."""
    for row in source:
        rows.append(row)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    options = _parse(arguments)
    sections = options.only.split(",")
    if not set(sections) <= set(SECTIONS):
        print(f"--only is {options.only!r}; accepted: {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    try:
        bench = _bench(options.cpu_rehearsal, options.seed)
    except BackendUnavailable as error:
        print(f"nothing can be checked here: {error}", file=sys.stderr)
        return 2

    def write(findings: Findings) -> None:
        options.out.write_text(json.dumps(document(findings, options.cpu_rehearsal), indent=1), encoding="utf-8")

    check = Check(bench, options.seed, options.cpu_rehearsal)
    check.run(sections, write)
    print(table(check.findings, options.cpu_rehearsal))
    return 1 if check.findings.wrong else 0


def _parse(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser("gpu_check", description="Checks the CUDA side of the lab on one GPU: results and speed.")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections, of {','.join(SECTIONS)}")
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(os.urandom(3), "big"), help="of the inputs (default: fresh)"
    )
    parser.add_argument("--cpu-rehearsal", action="store_true", help="tiny shapes on the reference, no speed measured")
    return parser.parse_args(arguments)


def _bench(rehearsal: bool, seed: int) -> Bench:
    """The GPU, or a simulated device in a rehearsal. Raises BackendUnavailable, which says why there is no GPU."""
    if rehearsal:
        device = SimulatedDevice()
        return Bench(device, "cpu", device, seed)
    return Bench(select("triton", "cuda"), "cuda", CudaRuntime(), seed)
