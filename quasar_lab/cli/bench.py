"""`quasar-lab bench`: how fast, on this machine, beside what is unavoidable."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from quasar_lab.cli.common import (
    Backend,
    Device,
    Json,
    Model,
    Seed,
    Threads,
    check_verifier,
    different,
    load_model,
    make_verifier,
    print_json,
    print_pairs,
    print_table,
    set_threads,
)
from quasar_lab.support.errors import InputError

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure: verify passes, linears, whole answers.")


def command_line() -> str:
    """The command as it was typed: part of every saved result."""
    return shlex.join(["quasar-lab", *sys.argv[1:]])


@bench.command("step")
def bench_step(
    verifiers: Annotated[str, typer.Option(help="Comma-separated: bf16 and recipes.")] = "bf16,w8a8",
    widths: Annotated[str, typer.Option(help="Comma-separated widths of the pass.")] = "1,2,4,6,8,16",
    context: Annotated[int, typer.Option(help="Tokens already in the cache.")] = 256,
    samples: Annotated[int, typer.Option(help="Passes timed per verifier and width.")] = 20,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    json_: Json = False,
) -> None:
    """Time of one verify pass by verifier and width, beside the floor that reading the weights sets.

    Example: quasar-lab bench step --verifiers bf16,w8a8 --widths 1,4,8
    """
    from quasar_lab.evaluation.pass_time import step

    names = different("--verifiers", _split(verifiers))
    numbers = _widths(widths)
    for name in names:
        check_verifier(name, one_pass=True)
    base = load_model(model, device, backend, threads)
    result = step([make_verifier(base, name) for name in names], numbers, context, samples)
    found = replace(result, command=command_line()).to_json()
    if json_:
        print_json(found)
        return
    print_table(found.pop("steps"))
    print_table(found.pop("ceilings"))
    print_pairs(found)


@bench.command("kernels")
def bench_kernels(
    shapes: Annotated[
        str, typer.Option(help='A model of `quasar-lab models`, or "embedded", for its linears.')
    ] = "embedded",
    widths: Annotated[str, typer.Option(help="Comma-separated widths of the pass.")] = "1,2,4,6,8",
    samples: Annotated[int, typer.Option(help="Passes timed per op, shape and width.")] = 15,
    threads: Threads = None,
    json_: Json = False,
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
    print_table([{**row, "shape": " × ".join(map(str, row["shape"]))} for row in found.pop("kernels")])
    print_pairs(found)


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


@bench.command("decode")
def bench_decode(
    prompts: Annotated[
        list[Path] | None, typer.Option(help="Question files, JSON lines (repeatable; default: ours).")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Questions per category (default: all).")] = None,
    verifiers: Annotated[
        str, typer.Option(help="Comma-separated; the first is the baseline. w8a8+bf16: W8A8 audited by BF16.")
    ] = "bf16,w8a8",
    drafters: Annotated[str, typer.Option(help="Comma-separated; must hold none, the baseline.")] = "none,ngram",
    gamma: Annotated[int, typer.Option(help="Drafted tokens a round, 1…16.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens per answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw among the k likeliest (0: all).")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the likeliest that sum to p.")] = 1.0,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Speed of whole answers: every verifier with every drafter, per category, split into its factors.

    Example: quasar-lab bench decode --limit 4 --max-new-tokens 64
    """
    from quasar_lab.evaluation.decode_speed import Settings
    from quasar_lab.evaluation.decode_speed import run as measure
    from quasar_lab.evaluation.questions import ours, read_questions, select
    from quasar_lab.speculative.drafters import make_drafter
    from quasar_lab.speculative.sampling import Sampling

    given = [question for path in prompts or () for question in read_questions(path)]
    questions = select(given, limit) if prompts else ours(limit)
    names = different("--verifiers", _split(verifiers))
    guesses = different("--drafters", _split(drafters))
    for name in names:
        check_verifier(name)
    for guess in guesses:
        make_drafter(guess)
    if "none" not in guesses:
        raise InputError(f"--drafters is {drafters!r}; accepted: a list that holds none, which is the baseline")
    if not questions or not 1 <= gamma <= 16 or max_new_tokens < 1:
        raise InputError("accepted: --limit 1 or more, --gamma 1…16, --max-new-tokens 1 or more")
    Sampling(temperature, top_k, top_p, seed)
    base = load_model(model, device, backend, threads)
    settings = Settings(gamma, max_new_tokens, temperature, top_k, top_p, seed)
    result = measure([make_verifier(base, name) for name in names], guesses, questions, settings)
    found = replace(result, command=command_line()).to_json()
    if json_:
        print_json(found)
    else:
        headings = {
            "verifier": "verifier",
            "drafter": "drafter",
            "category": "category",
            "mean_acceptance_length": "τ",
            "tokens_per_second": "tokens/s",
            "speedup": "speedup",
            "speedup_low": "2.5 %",
            "speedup_high": "97.5 %",
            "predicted_speedup": "predicted",
            "step_factor": "step",
            "acceptance_factor": "acceptance",
            "other_factor": "other",
        }
        if any(row["audits"] for row in found["runs"]):
            headings |= {"audits": "audits", "audit_length": "length", "flip_rate": "flips"}
        print_table(found["runs"], headings)
    if not found["complete"]:
        raise typer.Exit(130)
