"""`quasar-lab generate`: one answer, with speculative decoding."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quasar_lab.cli.common import (
    INTERRUPTED,
    AsJson,
    Backend,
    Device,
    DrafterName,
    MaxNewTokens,
    Model,
    Raw,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    load_model,
    print_json,
    print_pairs,
    printable,
    read_text,
    run_option,
)
from quasar_lab.speculative.config import MAX_GAMMA, GenerationConfig
from quasar_lab.speculative.drafters.registry import DEFAULT, make_drafter
from quasar_lab.support.errors import InputError, NotInThisVersion
from quasar_lab.support.result import Json
from quasar_lab.support.storage import check_writable

if TYPE_CHECKING:
    from quasar_lab.speculative.generation import Generation

PromptText = Annotated[str | None, typer.Option(help="One user message (through the chat template, unless --raw).")]
PromptFile = Annotated[Path | None, typer.Option(help="The same, from a file.")]
Messages = Annotated[Path | None, typer.Option(help='A JSON list of {"role", "content"}.')]
VerifierName = Annotated[str, typer.Option(help="bf16, a recipe, or RECIPE+bf16 (audited: BF16's text).")]
GammaText = Annotated[str, run_option("gamma", metavar="N")]
Stops = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A text that ends the answer (repeatable).")]
TraceFile = Annotated[Path | None, typer.Option(help="Save the trace as JSON lines.")]


def generate(
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    messages: Messages = None,
    raw: Raw = GenerationConfig.raw,
    verifier: VerifierName = "w8a8",
    drafter: DrafterName = DEFAULT,
    gamma: GammaText = str(GenerationConfig.gamma),
    max_new_tokens: MaxNewTokens = GenerationConfig.max_new_tokens,
    temperature: Temperature = GenerationConfig.temperature,
    top_k: TopK = GenerationConfig.top_k,
    top_p: TopP = GenerationConfig.top_p,
    stop: Stops = None,
    trace: TraceFile = None,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    seed: Seed = GenerationConfig.seed,
    json_: AsJson = False,
) -> None:
    """Answer a prompt with speculative decoding.

    With --verifier w8a8+bf16 INT8 writes and BF16 audits: the text is the BF16 model's own.

    Example: quasar-lab generate --prompt "Why is the sky blue?" --verifier w8a8 --drafter ngram
    """
    from quasar_lab.speculative import verifiers
    from quasar_lab.speculative.generation import Generation

    # Everything that can be wrong is looked at before a model loads.
    what = _prompt(prompt, prompt_file, messages, raw)
    verifiers.check_name(verifier)
    guesses = make_drafter(drafter)
    sampling: Json = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    config = GenerationConfig(_gamma(gamma), max_new_tokens, **sampling, stop=stop, raw=raw)
    base = load_model(model, device, backend, threads)
    run = Generation(verifiers.verifier(base, verifier), what, drafter=guesses, **asdict(config))
    _answer(run, trace, json_)


def _answer(run: "Generation", trace: Path | None, as_json: bool) -> None:
    """Runs to the end, or until Ctrl-C; saves the trace, prints the summary."""
    if trace is not None:
        check_writable(trace)
    interrupted = False
    try:
        for _ in run:
            pass
    except KeyboardInterrupt:
        interrupted = True
    if trace is not None:
        run.trace.save(trace)
    summary = run.trace.summary()
    if as_json:
        print_json(summary)
    else:
        _print_answer(summary)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _print_answer(summary: Json) -> None:
    print(printable(summary["text"]), end="\n\n")
    shown = ("finish_reason", "verifier", "drafter", "gamma", "new_tokens", "rounds", "mean_acceptance_length")
    audits = ("audits", "flip_rate", "audit_length", "audit_planned", "retracted")
    more = ("draft_acceptance_rate", *audits, "tokens_per_second", "device", "backend", "note")
    print_pairs({key: summary[key] for key in shown + more if key in summary})


def _gamma(text: str) -> int:
    if text == "auto":
        raise NotInThisVersion("--gamma auto")
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"--gamma is {text!r}; accepted: 1…{MAX_GAMMA}") from error


def _prompt(prompt: str | None, prompt_file: Path | None, messages: Path | None, raw: bool) -> Any:
    given = [option for option in (prompt, prompt_file, messages) if option is not None]
    if len(given) != 1:
        raise InputError(f"{len(given)} prompts were given; accepted: one of --prompt, --prompt-file, --messages")
    if messages is None:
        text = prompt if prompt is not None else read_text(prompt_file)  # type: ignore[arg-type]
        if not text.strip():
            raise InputError("the prompt is empty")
        return text
    if raw:
        raise InputError("--raw goes with --prompt or --prompt-file, not with --messages")
    try:
        found = json.loads(read_text(messages))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{messages} is not JSON: {error}") from error
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise InputError(f'{messages} is no list of messages; accepted: [{{"role": …, "content": …}}, …]')
    return found
