"""`quasar-lab generate`: one answer, with speculative decoding.

The answer goes to stdout, and what is told about it to stderr: `> answer.txt` holds the answer and nothing else.
"""

import json
import sys
from contextlib import redirect_stdout
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
    MinP,
    Model,
    Raw,
    RepetitionPenalty,
    Seed,
    Temperature,
    TemplateArguments,
    Threads,
    TopK,
    TopP,
    load_model,
    options_given,
    print_json,
    print_pairs,
    printable,
    read_text,
    run_option,
)
from quasar_lab.speculative.config import GenerationConfig
from quasar_lab.speculative.drafters.registry import DEFAULT, make_drafter
from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Json
from quasar_lab.support.storage import check_writable

if TYPE_CHECKING:
    from quasar_lab.speculative.generation import Generation

PromptText = Annotated[
    str | None, typer.Option(help="One user message (through the chat template, unless --raw); - reads it from stdin.")
]
PromptFile = Annotated[Path | None, typer.Option(help="The same, from a file, or from stdin (-).")]
Messages = Annotated[Path | None, typer.Option(help='A JSON list of {"role", "content"}, in a file or on stdin (-).')]
VerifierName = Annotated[str, typer.Option(help="bf16, a recipe, or RECIPE+bf16 (audited: BF16's text).")]
GammaText = Annotated[str, run_option("gamma", metavar="N")]
Stops = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="A text that ends the answer (repeatable).")]
TraceFile = Annotated[Path | None, typer.Option(help="Save the trace as JSON lines.")]


def generate(
    context: typer.Context,
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
    min_p: MinP = GenerationConfig.min_p,
    repetition_penalty: RepetitionPenalty = GenerationConfig.repetition_penalty,
    stop: Stops = None,
    template_arg: TemplateArguments = None,
    trace: TraceFile = None,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    seed: Seed = GenerationConfig.seed,
    json_: AsJson = False,
) -> None:
    """Answer a prompt with speculative decoding.

    An option that is not given is the model's own, where its generation_config.json names it. With --verifier w8a8+bf16
    INT8 writes and BF16 audits: the text is the BF16 model's own.

    Example: quasar-lab generate --prompt "Copy the following list: 1. Boil the water. 2. Put the tea into the pot."
    """
    from quasar_lab.speculative import verifiers
    from quasar_lab.speculative.generation import Generation

    # Everything that can be wrong is looked at before a model loads.
    what = _prompt(prompt, prompt_file, messages, raw)
    verifiers.check_name(verifier)
    options = options_given(context)
    guesses = make_drafter(drafter)
    base = load_model(model, device, backend, threads)
    _answer(Generation(verifiers.verifier(base, verifier), what, drafter=guesses, **options), trace, json_)


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
    terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
    print(printable(summary["text"]) if terminal else summary["text"])
    shown = ("finish_reason", "verifier", "drafter", "gamma", "new_tokens", "rounds", "mean_acceptance_length")
    audits = ("audits", "flip_rate", "audit_length", "audit_planned", "retracted")
    more = ("draft_acceptance_rate", *audits, "tokens_per_second", "device", "backend", "note")
    with redirect_stdout(sys.stderr):
        print()
        print_pairs({key: summary[key] for key in shown + more if key in summary})


def _text_of(path: Path) -> str:
    """The text of a file, or of stdin for "-"; without a byte order mark."""
    if str(path) != "-":
        return read_text(path)
    if sys.stdin is None:
        raise InputError("stdin is closed; accepted: a prompt in a pipe")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError("stdin is not UTF-8 text; accepted: a prompt in UTF-8") from error


def _prompt_text(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt as it is given, or from stdin or a file, whose last line's newline is no part of it."""
    source = Path("-") if prompt == "-" else prompt_file
    return (prompt or "").removeprefix("\ufeff") if source is None else _text_of(source).removesuffix("\n")


def _prompt(prompt: str | None, prompt_file: Path | None, messages: Path | None, raw: bool) -> Any:
    given = [option for option in (prompt, prompt_file, messages) if option is not None]
    if len(given) != 1:
        raise InputError(f"{len(given)} prompts were given; accepted: one of --prompt, --prompt-file, --messages")
    if messages is None:
        text = _prompt_text(prompt, prompt_file)
        if not text.strip():
            raise InputError("the prompt is empty")
        return text
    if raw:
        raise InputError("--raw goes with --prompt or --prompt-file, not with --messages")
    try:
        found = json.loads(_text_of(messages))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{messages} is not JSON: {error}") from error
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise InputError(f'{messages} is no list of messages; accepted: [{{"role": …, "content": …}}, …]')
    return found
