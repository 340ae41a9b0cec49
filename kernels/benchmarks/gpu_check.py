"""One check of everything that needs a GPU: is it right, and is it as fast as memory allows?

    python kernels/benchmarks/gpu_check.py --out gpu_check.json          # about 4 minutes on one H100 or H200
    python kernels/benchmarks/gpu_check.py --only ops,text               # some sections
    python kernels/benchmarks/gpu_check.py --cpu-rehearsal               # its logic, on tiny shapes, without a GPU

It runs from the checkout as it is, with what the core needs (torch, triton, safetensors, filelock). Sections:

- ops: every op against the reference, at widths 1…17 (`gpu_check_ops`);
- text: greedy speculative text equals plain text and audited text equals BF16's, in BF16 and in W8A8, whatever is
  drafted; a row of logits has the same bits at every width;
- step: a verify pass in BF16 and W8A8 at widths 1…16 beside the floor that a copy's bandwidth sets, and without graphs;
- products, other: each op alone (`gpu_check_speed`).

Prints a short table and writes one JSON. Exit status 1 when a result is wrong; a goal that is missed is said, and is no
error. Where an op cannot run at all, what it said is in the report, and the other sections go on.
"""

import json
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "kernels")]

import gpu_check_ops as op_checks  # noqa: E402
import gpu_check_speed as speed  # noqa: E402
import torch  # noqa: E402
from quasar_kernels import BackendUnavailable, select  # noqa: E402
from quasar_kernels.stand_in import StandIn  # noqa: E402

import quasar_lab as ql  # noqa: E402
from quasar_lab import benchmark  # noqa: E402
from quasar_lab.decoder import Decoder  # noqa: E402
from quasar_lab.drafting import Draft  # noqa: E402
from quasar_lab.errors import QuasarError  # noqa: E402
from quasar_lab.graphs import CudaRuntime  # noqa: E402

SECTIONS = ("ops", "text", "step", "products", "other")
STEP_WIDTHS = (1, 2, 4, 6, 8, 16)
SPEED_KEYS = ("gb_s", "share", "us_", "ms_", "fraction", "floor", "gop_s", "tokens_per_second", "seconds")
FAULTS: tuple[type[Exception], ...] = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, QuasarError)
try:
    from triton.errors import TritonError
except ImportError:
    pass
else:
    FAULTS += (TritonError,)


class Oracle:
    """Drafts the true text with a wrong token at every `spoil`-th place, so that rounds end at every length."""

    name, needs_hidden = "oracle", False

    def __init__(self, text: list[int], prompt: int, spoil: int, vocab: int):
        self._text, self._prompt, self._spoil, self._vocab, self._held = text, prompt, spoil, vocab, 0

    def reset(self, ids: Sequence[int]) -> None:
        self._held = len(ids)

    def propose(self, budget: int, hidden: Any) -> Draft:
        first = self._held - self._prompt
        wanted = self._text[first : first + budget]
        places = range(first, first + len(wanted))
        wrong = [
            (token + (place % self._spoil == 0)) % self._vocab for token, place in zip(wanted, places, strict=True)
        ]
        return Draft(wrong)

    def commit(self, ids: Sequence[int], hidden: Any) -> None:
        self._held += len(ids)

    def rollback(self, length: int) -> None:
        self._held = length


def check_ops(bench: speed.Bench, seed: int, small: bool) -> list[dict[str, Any]]:
    """{"case", "fault"}: what is wrong with each op, or None."""
    rows = []
    for case in op_checks.all_cases(op_checks.Inputs(bench.ops, bench.device, seed), small):
        try:
            fault = op_checks.examine(case, bench.device)
        except FAULTS as error:
            fault = told(error)
        rows.append({"case": case.label, "fault": fault})
    return rows


def check_text(bf16: Decoder, w8a8: Decoder, tokens: int, gammas: Sequence[int]) -> list[dict[str, Any]]:
    """{"case", "fault"}: bits at every width, and speculative against plain text."""
    rows, vocab = [], bf16.vocab
    prompt = [(37 * place + 11) % vocab for place in range(40)]

    def note(case: str, right: bool, fault: str = "they differ") -> None:
        rows.append({"case": case, "fault": None if right else fault})

    texts = {}
    for verifier in (bf16, w8a8):
        whole = verifier.forward(prompt, verifier.new_cache(64)).logits
        for widths in ([1] * 40, [5] * 8, [16, 16, 8], [17, 1, 22]):
            cache, start, parts = verifier.new_cache(64), 0, []
            for width in widths:
                parts.append(verifier.forward(prompt[start : start + width], cache).logits)
                start += width
            note(f"{verifier.name}: bits of 40 tokens in passes of {widths[0]}…", torch.equal(torch.cat(parts), whole))
        plain = ql.generate(verifier, prompt, drafter="none", max_new_tokens=tokens).token_ids
        texts[verifier.name] = plain
        for gamma in gammas:
            for spoil in (3, tokens + 1):
                oracle = Oracle(plain, len(prompt), spoil, vocab)
                run = ql.generate(verifier, prompt, drafter=oracle, gamma=gamma, max_new_tokens=tokens)
                note(f"{verifier.name}: text at γ {gamma}, a draft wrong every {spoil}", run.token_ids == plain)
        run = ql.generate(verifier, prompt, gamma=4, max_new_tokens=tokens)
        note(f"{verifier.name}: text with n-gram drafts", run.token_ids == plain)
        options = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "max_new_tokens": tokens}
        run = ql.generate(verifier, prompt, gamma=4, seed=1, **options)
        note(
            f"{verifier.name}: a sampled text runs to its end",
            run.summary()["finish_reason"] == "length",
            "it does not",
        )
    apart = (w8a8.forward(prompt, w8a8.new_cache(64)).logits - whole_logits(bf16, prompt)).norm()
    apart = float(apart / whole_logits(bf16, prompt).norm())
    note("w8a8 is near bf16", apart < 0.3, f"relative distance of the logits {apart:.2f}, accepted 0.3")
    run = ql.generate(ql.audited(w8a8, bf16, 5), prompt, gamma=4, max_new_tokens=tokens)
    note("w8a8+bf16: text equals bf16's", run.token_ids == texts["bf16"])
    return rows


def whole_logits(verifier: Decoder, ids: list[int]) -> torch.Tensor:
    return verifier.forward(ids, verifier.new_cache(64)).logits


def reach(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The goals, with what was measured: {"goal", "value", "limit", "met"}; met None where nothing was measured."""
    rows = []

    def add(goal: str, value: float | None, limit: float, at_least: bool) -> None:
        met = None if value is None else value >= limit if at_least else value <= limit
        rows.append({"goal": goal, "value": value, "limit": limit, "met": met})

    shares = (
        [byte_weighted(found["products"], "linear_w8a8", width) for width in range(1, 17)]
        if "products" in found
        else []
    )
    share = min(shares, default=None) if None not in shares else None
    add("W8A8 products, share of the copy bandwidth, worst of widths 1…16", share, 0.75, True)
    steps = {(row["verifier"], row["width"]): row for row in found.get("step", {}).get("steps", [])}
    narrow = [width for width in STEP_WIDTHS if width <= 8]
    ratios = [steps["w8a8", w]["ms_p50"] / steps["bf16", w]["ms_p50"] for w in narrow] if steps else []
    add("W8A8 step / BF16 step, worst of widths 1…8", max(ratios, default=None), 0.60, False)
    floors = [1 / steps["bf16", w]["fraction_of_floor"] for w in narrow] if steps else []
    add("BF16 step / its floor, worst of widths 1…8", max(floors, default=None), 1.25, False)
    return rows


def byte_weighted(rows: list[dict[str, Any]], op: str, width: int) -> float | None:
    """Of all products of a step: bytes over the time that a copy would take, divided by the time they take."""
    here = [row for row in rows if row["op"] == op and row["width"] == width]
    copy = sum(row["count"] * row["us_p50"] * row["share_of_copy"] for row in here)
    return copy / sum(row["count"] * row["us_p50"] for row in here) if here else None


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
    """All sections, each written when it is done."""
    begun, config = time.perf_counter(), speed.TINY if small else speed.QWEN3_8B
    samples, tokens = (1, 12) if small else (30, 96)
    gammas = (4, 16) if small else (1, 4, 7, 15, 16)
    found: dict[str, Any] = {"gpu": benchmark.gpu_name(), "seed": seed, "faults": {}, **benchmark.stamp()}
    built: list[tuple[Decoder, Decoder]] = []

    def pair() -> tuple[Decoder, Decoder]:
        if not built:
            built.append(speed.models(bench, config))
        return built[0]

    def stream() -> float:
        return benchmark.stream_bandwidth(bench.ops, repeats=3)

    def step() -> dict[str, Any]:
        context = config.context // 32
        timed = benchmark.step(pair(), STEP_WIDTHS, context, samples)
        return {**timed, "eager": speed.eager(pair(), (1, 8), context, 1 if small else 5)}

    work: dict[str, Callable[[], Any]] = {
        "ops": lambda: check_ops(bench, seed, small),
        "text": lambda: check_text(*pair(), tokens, gammas),
        "step": step,
        "products": lambda: speed.products(bench, config, range(1, 17), samples // 2 or 1, stream),
        "other": lambda: speed.other_ops(bench, config, (1, 8, 16), samples // 2 or 1),
    }
    for name in sections:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found[name] = work[name]()
        except FAULTS as error:
            found["faults"][name] = told(error)
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
        rows = found.get(name, [])
        lines.append(f"{name}: {sum(row['fault'] is None for row in rows)} of {len(rows)} right")
    lines += [f"  WRONG {line}" for line in wrong(found)]
    if "step" in found:
        lines.append(f"copy {shown(found['step']['bandwidth_gb_s'])} GB/s; ms per step (÷ floor):")
    for width in STEP_WIDTHS if "step" in found else ():
        here = [row for row in found["step"]["steps"] if row["width"] == width]
        cells = [
            f"{row['verifier']} {shown(row['ms_p50'])} ({shown(inverse(row['fraction_of_floor']))})" for row in here
        ]
        lines.append(f"  width {width:2}  {'   '.join(cells)}")
    for row in found.get("step", {}).get("eager", []):
        lines.append(f"  without graphs, {row['verifier']} at width {row['width']}: {shown(row['ms_p50'])} ms")
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
