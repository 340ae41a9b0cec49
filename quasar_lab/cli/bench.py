"""`quasar-lab bench`: how fast, on this machine, beside what is unavoidable."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quasar_lab.cli.common import (
    INTERRUPTED,
    AsJson,
    Backend,
    Device,
    Gamma,
    MaxNewTokens,
    MinP,
    Model,
    RepetitionPenalty,
    Seed,
    Temperature,
    TemplateArguments,
    Threads,
    TopK,
    TopP,
    different,
    load_model,
    options_given,
    percent,
    print_json,
    print_pairs,
    print_table,
    set_threads,
)
from quasar_lab.cli.help_pages import ListingCommand
from quasar_lab.speculative.config import GenerationConfig
from quasar_lab.support.errors import InputError
from quasar_lab.support.readable import readable
from quasar_lab.support.result import Json

if TYPE_CHECKING:
    from quasar_lab.evaluation.decode_speed import DecodeResult
    from quasar_lab.evaluation.pass_time import StepResult, StepRow
    from quasar_lab.evaluation.questions import Question
    from quasar_lab.evaluation.speedup_table import SpeedupRow

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure: verify passes, linears, whole answers.")


def command_line() -> str:
    """The command as it was typed: part of every saved result."""
    return shlex.join(["quasar-lab", *sys.argv[1:]])


@bench.command("step", cls=ListingCommand)
def bench_step(
    verifiers: Annotated[str, typer.Option(help="Comma-separated: bf16 and recipes.")] = "bf16,w8a8",
    widths: Annotated[str, typer.Option(help="Comma-separated widths of the pass.")] = "1,2,4,6,8,16",
    context: Annotated[int, typer.Option(help="Tokens already in the cache.")] = 256,
    samples: Annotated[int, typer.Option(help="Passes timed per verifier and width.")] = 20,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    json_: AsJson = False,
) -> None:
    """Time of one verify pass by verifier and width, beside the floor that reading the weights sets.

    Example: quasar-lab bench step --verifiers bf16,w8a8 --widths 1,4,8
    """
    from quasar_lab.evaluation.pass_time import step
    from quasar_lab.speculative.verifiers import check_name, one_pass_verifier

    names = different("--verifiers", _split(verifiers))
    numbers = _widths(widths)
    for name in names:
        check_name(name, one_pass=True)
    base = load_model(model, device, backend, threads)
    result = step([one_pass_verifier(base, name) for name in names], numbers, context, samples)
    result = replace(result, command=command_line())
    print_json(result.to_json()) if json_ else print_steps(result)


def print_steps(result: "StepResult") -> None:
    """The passes beside their floor and the first verifier's, then where this was measured."""
    print_table([_step_row(result, row) for row in result.steps])
    print("\nfloor: the time to read the bytes at this machine's stream bandwidth\n")
    facts = result.to_json()
    del facts["steps"]
    ceilings = {row["verifier"]: f"{readable(row['gop_s_p50'])} Gop/s" for row in facts.pop("ceilings")}
    print_pairs({"stream_bandwidth_gb_s": facts.pop("bandwidth_gb_s"), "wide product": ceilings, **facts})


def _step_row(result: "StepResult", row: "StepRow") -> dict[str, object]:
    """One width of one verifier for people; the last column is the first verifier's time over its own."""
    first = result.steps[0].verifier
    return {
        "verifier": row.verifier,
        "width": row.width,
        "ms": row.ms_p50,
        "20–80 %": f"{readable(row.ms_p20)}–{readable(row.ms_p80)}",
        "floor ms": row.floor_ms,
        "of floor": percent(row.fraction_of_floor),
        f"× {first}": f"{result.row(first, row.width).ms_p50 / row.ms_p50:.2f}",
    }


@bench.command("kernels", cls=ListingCommand)
def bench_kernels(
    shapes: Annotated[
        str, typer.Option(help='A model of `quasar-lab models`, or "embedded", for its linears.')
    ] = "embedded",
    widths: Annotated[str, typer.Option(help="Comma-separated widths of the pass.")] = "1,2,4,6,8",
    samples: Annotated[int, typer.Option(help="Passes timed per op, shape and width.")] = 15,
    threads: Threads = None,
    json_: AsJson = False,
) -> None:
    """Speed of each linear beside the bandwidth of memory, from weights in no cache, and the cost of a rotation.

    Example: quasar-lab bench kernels --shapes Qwen/Qwen3-8B --widths 1,4
    """
    from quasar_lab.evaluation.catalogue import find
    from quasar_lab.evaluation.kernel_speed import LARGE, shapes_of, time_linears

    entry, numbers = find(shapes), _widths(widths)
    if samples < 1:
        raise InputError(f"--samples is {samples}; accepted: 1 or more")
    set_threads(threads)
    wanted = shapes_of(entry.config)
    wanted = [*wanted, *LARGE] if shapes == "embedded" else wanted
    result = time_linears(wanted, numbers, samples, channels=entry.config.mlp)
    found = replace(result, command=command_line()).to_json()
    if json_:
        print_json(found)
        return
    print_table([_kernel_row(row) for row in found.pop("kernels")])
    print("\nof stream: GB/s beside the bandwidth that was measured next to it\n")
    print_pairs({"stream_bandwidth_gb_s": found.pop("bandwidth_gb_s"), **found})


def _kernel_row(row: Json) -> dict[str, object]:
    """One op, shape and width for people."""
    return {
        "op": row["op"],
        "shape": "×".join(map(str, row["shape"])),
        "width": row["width"],
        "µs": row["us_p50"],
        "20–80 %": f"{readable(row['us_p20'])}–{readable(row['us_p80'])}",
        "GB/s": row["gb_s"],
        "of stream": percent(row["fraction_of_stream"]),
    }


def _split(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _widths(text: str) -> list[int]:
    try:
        widths = [int(width) for width in text.split(",")]
    except ValueError as error:
        raise InputError(f"--widths is {text!r}; accepted: comma-separated numbers in 1…64") from error
    if min(widths) < 1 or max(widths) > 64:
        raise InputError(f"--widths is {text!r}; accepted: numbers in 1…64")
    return different("--widths", widths)


QuestionFiles = Annotated[
    list[Path] | None, typer.Option(help="Question files, JSON lines (repeatable; default: ours).")
]
PerCategory = Annotated[int | None, typer.Option(help="Questions per category (default: all).")]
Verifiers = Annotated[
    str, typer.Option(help="Comma-separated; the first is the baseline. w8a8+bf16: W8A8 audited by BF16.")
]
Drafters = Annotated[str, typer.Option(help="Comma-separated; must hold none, the baseline.")]


@bench.command("decode", cls=ListingCommand)
def bench_decode(
    context: typer.Context,
    prompts: QuestionFiles = None,
    limit: PerCategory = None,
    verifiers: Verifiers = "bf16,w8a8",
    drafters: Drafters = "none,ngram",
    gamma: Gamma = GenerationConfig.gamma,
    max_new_tokens: MaxNewTokens = GenerationConfig.max_new_tokens,
    temperature: Temperature = GenerationConfig.temperature,
    top_k: TopK = GenerationConfig.top_k,
    top_p: TopP = GenerationConfig.top_p,
    min_p: MinP = GenerationConfig.min_p,
    repetition_penalty: RepetitionPenalty = GenerationConfig.repetition_penalty,
    template_arg: TemplateArguments = None,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    seed: Seed = GenerationConfig.seed,
    json_: AsJson = False,
) -> None:
    """Speed of whole answers: every verifier with every drafter, per category, split into its factors.

    Example: quasar-lab bench decode --limit 4 --max-new-tokens 64
    """
    from quasar_lab.evaluation import decode_speed
    from quasar_lab.speculative.verifiers import check_name, verifier

    questions = _questions(prompts, limit)
    names = different("--verifiers", _split(verifiers))
    for name in names:
        check_name(name)
    guesses = _drafters(drafters)
    if not questions:
        raise InputError(f"--limit is {limit}; accepted: 1 or more")
    config = GenerationConfig(**options_given(context))
    base = load_model(model, device, backend, threads)
    result = decode_speed.run([verifier(base, name) for name in names], guesses, questions, config)
    result = replace(result, command=command_line())
    if json_:
        print_json(result.to_json())
    else:
        print_speedups(result)
    if not result.complete:
        raise typer.Exit(INTERRUPTED)


def _questions(files: Sequence[Path] | None, limit: int | None) -> "list[Question]":
    """Those of the files, or our own; at most `limit` of each category."""
    from quasar_lab.evaluation.questions import ours, read_questions, select

    if not files:
        return ours(limit)
    return select([question for path in files for question in read_questions(path)], limit)


def _drafters(text: str) -> list[str]:
    """The drafters that `--drafters` names. Raises InputError on an unknown one, and on a list without the baseline."""
    from quasar_lab.speculative.drafters import make_drafter

    names = different("--drafters", _split(text))
    for name in names:
        make_drafter(name)
    if "none" not in names:
        raise InputError(f"--drafters is {text!r}; accepted: a list that holds none, which is the baseline")
    return names


def print_speedups(result: "DecodeResult") -> None:
    """A table per arm; columns of audits only where there were some."""
    for arm in result.arms:
        rows = [row for row in result.runs if row.arm == arm]
        print(f"{arm.verifier}, {'plain' if arm.drafter == 'none' else f'drafts by {arm.drafter}'}")
        print_table([_speedup_row(row) for row in rows])
        if any(row.audits for row in rows):
            print_table([_audit_row(row) for row in rows])
        print()
    print(f"speedup: over {result.baseline.verifier} plain, with its 95 % interval over questions")
    print("speedup = step × acceptance × other; forecast: from pass times measured apart")


def _speedup_row(row: "SpeedupRow") -> dict[str, object]:
    """A row of the table for people: every number with two decimals, the interval beside its speedup."""
    interval = "" if row.speedup is None else f" ({row.speedup_low:.2f}–{row.speedup_high:.2f})"
    return {
        "category": row.label,
        "τ": _ratio(row.tau),
        "tok/s": "–" if row.tokens_per_second is None else f"{row.tokens_per_second:.0f}",
        "speedup": _ratio(row.speedup) + interval,
        "step": _ratio(row.step_factor),
        "acceptance": _ratio(row.acceptance_factor),
        "other": _ratio(row.other_factor),
        "forecast": _ratio(row.predicted_speedup),
    }


def _audit_row(row: "SpeedupRow") -> dict[str, object]:
    rate = "–" if row.flip_rate is None else f"{100 * row.flip_rate:.1f} %"
    return {"category": row.label, "audits": row.audits, "tokens each": row.audit_length, "flip rate": rate}


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
