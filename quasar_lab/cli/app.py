"""The command line: every view and measurement of the lab without a notebook.

Results go to stdout (a table, or one JSON document with --json), progress to stderr. Exit 0 on success; 2 on bad usage
or input, with one line that says what was wrong and what is accepted; 1 when the fault is ours.
"""

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quasar_lab.cli.bench import bench
from quasar_lab.cli.common import (
    INTERRUPTED,
    AsJson,
    Backend,
    Device,
    Model,
    Threads,
    load_model,
    print_json,
    print_pairs,
    print_table,
    printable,
    read_text,
)
from quasar_lab.cli.generate import generate
from quasar_lab.cli.help_pages import ListingCommand
from quasar_lab.support.errors import InputError, NotInThisVersion, QuasarError
from quasar_lab.support.readable import readable
from quasar_lab.support.result import Json

if TYPE_CHECKING:
    from quasar_lab.evaluation.fidelity import AnswerFlips, TextFidelity

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(bench, name="bench")


def _tell_version(wanted: bool) -> None:
    if wanted:
        from quasar_lab import __version__

        print(f"quasar-lab {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="The version of quasar-lab.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """See, measure and learn how an INT8 verifier speeds up speculative decoding."""


@app.command()
def doctor(json_: AsJson = False) -> None:
    """This machine, the backend in use and why, the embedded model, the cache.

    Example: quasar-lab doctor
    """
    from quasar_lab.cli.doctor import diagnose

    found = diagnose().to_json()
    print_json(found) if json_ else print_pairs(found)


@app.command()
def models(json_: AsJson = False) -> None:
    """Models worth trying, with their bytes in BF16 and W8A8. Any other of a supported family works by hub id or
    folder.

    Example: quasar-lab models
    """
    from quasar_lab.evaluation.catalogue import rows

    found = [row.to_json() for row in rows()]
    if json_:
        print_json(found)
        return
    print_table([_model_row(row) for row in found])
    print("\nGB a step: read by each pass, in BF16 → W8A8; fits: in this machine's memory")


def _model_row(row: Json) -> dict[str, object]:
    """A listed model for people: its sizes beside each other, its family and licence below its name."""
    step, memory = (
        " → ".join(f"{row[f'{what}_bytes_{verifier}'] / 1e9:.2f}" for verifier in ("bf16", "w8a8"))
        for what in ("step", "resident")
    )
    name = row["id"].replace("/", "/\n") if len(row["id"]) > NAME_WIDTH else row["id"]
    return {
        "model": f"{name}\n  {row['family']}, {row['license']}",
        "weights": f"{row['parameters'] / 1e6:.0f} M",
        "GB a step": step,
        "GB in memory": memory,
        "fits": row["fits"],
    }


NAME_WIDTH = 36
"""A longer name of a model goes on in the next line, behind its owner."""


@app.command(cls=ListingCommand)
def prepare(
    recipe: Annotated[str, typer.Option(help="How the verifier is made: one of the recipes below.")] = "w8a8",
    out: Annotated[Path | None, typer.Option(help="Folder to save in (default: the cache).")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Text or JSON lines to calibrate on (default: ours).")
    ] = None,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    json_: AsJson = False,
) -> None:
    """Smooth, quantize and save a verifier; shows the error of every layer, plain and with the recipe.

    Example: quasar-lab prepare --recipe w8a8-smoothquant:0.5
    """
    from quasar_lab.quantization.recipes import parse_recipe
    from quasar_lab.quantization.saved_model import prepare as run
    from quasar_lab.quantization.saved_model import read_record

    parse_recipe(recipe)
    folder = run(load_model(model, device, backend, threads), recipe, calibration, out)
    record = {**read_record(folder).to_json(), "folder": str(folder)}
    if json_:
        print_json(record)
        return
    rows = [{**row, **{key: f"{100 * row[key]:.2f} %" for key in ("error", "error_plain")}} for row in record["errors"]]
    print_table(rows)
    print(f"saved in {folder}")


app.command(cls=ListingCommand)(generate)


@app.command(cls=ListingCommand)
def fidelity(
    text: Annotated[Path, typer.Option(help="A UTF-8 text to measure on.")],
    verifier: Annotated[str, typer.Option(help="One of the recipes below, or bf16.")] = "w8a8",
    window: Annotated[int, typer.Option(help="Tokens per window.")] = 512,
    skip: Annotated[int, typer.Option(help="Tokens to leave out at the start.")] = 0,
    tokens: Annotated[int | None, typer.Option(help="Tokens to measure (default: all).")] = None,
    answers: Annotated[
        int, typer.Option(help="Answers of BF16's own to measure on too, to so many of our questions of each kind.")
    ] = 1,
    answer_tokens: Annotated[int, typer.Option(help="The most tokens of each answer.")] = 64,
    model: Model = "embedded",
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
    json_: AsJson = False,
) -> None:
    """KL, top-1 agreement, flips and perplexity of a verifier against BF16, on a text.

    And on BF16's own greedy answers to our questions: how often the verifier would have written another token, and
    where first.

    Example: quasar-lab fidelity --verifier w8a8 --text book.txt --tokens 4096
    """
    from quasar_lab.evaluation.fidelity import compare, on_own_answers, read_tokens
    from quasar_lab.evaluation.questions import ours
    from quasar_lab.speculative.verifiers import check_name, one_pass_verifier

    if skip < 0 or (tokens is not None and tokens < 2):
        raise InputError(f"--skip is {skip} and --tokens {tokens}; accepted: skip 0 or more, tokens 2 or more")
    if answers < 0 or answer_tokens < 1:
        raise InputError(f"--answers is {answers} and --answer-tokens {answer_tokens}; accepted: 0 and 1 or more")
    check_name(verifier, one_pass=True)
    read_text(text)
    base = load_model(model, device, backend, threads)
    other = one_pass_verifier(base, verifier)
    found = compare(base, other, read_tokens(base, text, skip, tokens), window)
    questions = ours(answers)
    if questions:
        own = on_own_answers(base, other, [question.turns[0] for question in questions], answer_tokens)
        found = replace(found, own_text=own.labelled(questions))
    if json_:
        print_json(found.to_json())
        return
    _print_fidelity(found)


def _print_fidelity(found: "TextFidelity") -> None:
    facts = {key: value for key, value in found.to_json().items() if not isinstance(value, list | dict)}
    print_pairs({**facts, "top1_agreement": f"{100 * found.top1_agreement:.1f} %"})
    own = found.own_text
    if own is None:
        return
    same = sum(answer.first is None for answer in own.answers)
    print(
        f"\non {own.base}'s own greedy answers: {own.flips} of {own.tokens} tokens flip "
        f"({100 * own.flip_rate:.1f} %), KL {readable(own.kl_mean)}\n"
        f"left to write, {own.verifier} gives {same} of {len(own.answers)} answers unchanged\n"
    )
    headings = {
        "question": "question",
        "tokens": "tokens",
        "flips": "flips",
        "position": "first at",
        "expected": own.base,
        "got": own.verifier,
        "margin": f"margin of {own.base}",
    }
    print_table([_answer_row(answer) for answer in own.answers], headings)


def _answer_row(answer: "AnswerFlips") -> dict[str, object]:
    from quasar_lab.cli.print_trace import visible

    first = answer.first
    return {
        "question": f"{answer.category} {answer.question_id}",
        "tokens": answer.tokens,
        "flips": answer.flips,
        "position": first and first.position,
        "expected": first and visible(first.expected_piece),
        "got": first and visible(first.got_piece),
        "margin": first and first.margin,
    }


@app.command(cls=ListingCommand)
def replay(
    trace: Annotated[Path, typer.Argument(help="A trace saved by generate --trace.")],
    verifier: Annotated[str | None, typer.Option(help="Judge the same drafts with this verifier too.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the token strip as a self-contained page.")] = None,
    model: Annotated[str | None, typer.Option(help="The model of the trace (default: the embedded one).")] = None,
    device: Device = "cpu",
    backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Show a saved run token by token, without any model; with --verifier, mark where another verifier decides
    otherwise.

    Example: quasar-lab replay run.trace.jsonl --html run.html
    """
    from quasar_lab.cli.print_trace import print_rounds, visible
    from quasar_lab.evaluation.rescore import rescore
    from quasar_lab.models.embedded import ID
    from quasar_lab.speculative.trace import Trace
    from quasar_lab.speculative.verifiers import check_name
    from quasar_lab.speculative.verifiers import verifier as verifier_of

    found = Trace.load(trace)
    if verifier is not None:
        check_name(verifier)
        if model is None and found.model != ID:
            name = visible(found.model)
            raise InputError(f"this trace is of {name}, which is not embedded; name where that model is with --model")
        base = load_model(model or ID, device, backend, threads)
        found = rescore(found, verifier_of(base, verifier))
    if html is not None:
        from quasar_lab.figures import token_strip
        from quasar_lab.support.storage import write_text

        write_text(html, token_strip(found).page())
        print(f"written to {html}")
        return
    print_rounds(found)


@app.command()
def report(
    notebooks: Annotated[list[str] | None, typer.Argument(help="Names or files (default: all).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("reports"),
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="NAME=VALUE, or NAME VALUE (repeatable).")
    ] = None,
    timeout: Annotated[int, typer.Option(help="Seconds that one notebook may take.")] = 600,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run also what is up to date.")] = False,
) -> None:
    """Run the notebooks headless into a folder of pages; a notebook whose page there is up to date is skipped.

    Example: quasar-lab report 02_acceptance --out reports -p gamma 6
    """
    try:
        from quasar_lab import reports
    except ImportError as error:
        raise InputError(f"{error.name} is not installed; run: pip install 'quasar-lab[lab]'") from error
    if timeout < 1:
        raise InputError(f"--timeout is {timeout}; accepted: 1 or more seconds")
    chosen = reports.find_notebooks(notebooks or [])
    if not reports.build(chosen, out, _parameters(parameter or []), timeout, fresh):
        raise typer.Exit(1)


def _parameters(pairs: list[str]) -> dict[str, str]:
    """NAME=VALUE texts as a dictionary; `reports` gives each value the type that its notebook declares."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"parameter {pair!r} is not understood; accepted: -p NAME VALUE")
        found[name] = value
    return found


@app.command()
def lab(port: Annotated[int, typer.Option(help="Port on localhost.")] = 8888) -> None:
    """JupyterLab on the notebooks (localhost, with its token).

    Example: quasar-lab lab --port 8890
    """
    from quasar_lab.cli.jupyter import start

    try:
        from quasar_lab.reports import notebook_folder
    except ImportError as error:
        raise InputError(f"{error.name} is not installed; run: pip install 'quasar-lab[lab]'") from error
    start(notebook_folder(), port)


INTERNAL, BAD_USAGE = 1, 2
"""Exit statuses beside 0."""

LATER = (["export"],)
"""Documented commands that this version does not have: named as such, and absent from --help."""


def _join_parameters(arguments: list[str]) -> list[str]:
    """`-p NAME VALUE` → `-p NAME=VALUE`: two words after one option is papermill's form, which typer cannot say."""
    joined, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        joined.append(word)
        if word in ("-p", "--parameter") and rest and "=" not in rest[0] and len(rest) > 1:
            joined.append(f"{rest.pop(0)}={rest.pop(0)}")
    return joined


CLICK_ERROR: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""typer carries its own copy of click or uses the installed one, by version; its own exceptions tell which."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns the exit status.

    What a command prints is written when it has ended: all of it or nothing, and a reader that went away is no error.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            status = _dispatch(list(arguments))
    except CLICK_ERROR as error:
        message: str = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message, file=sys.stderr)
            return BAD_USAGE
        return _complain(f"{message.rstrip('.')}; see --help")
    except QuasarError as error:
        return _complain(str(error))
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the last line of defence: say that the fault is ours, and where)
        traceback.print_exc()
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return INTERNAL
    if status == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return _write(output.getvalue()) or status


def _dispatch(words: list[str]) -> int:
    for name in LATER:
        if words[: len(name)] == name:
            raise NotInThisVersion(" ".join(name))
    words = _join_parameters(words) if words[:1] == ["report"] else words
    status = app(words, prog_name="quasar-lab", standalone_mode=False)
    return status if isinstance(status, int) else 0


def _write(text: str) -> int:
    """Writes the output; 0 also when nobody reads it any more, INTERNAL when it cannot be written."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try to flush once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"quasar-lab: the output cannot be written: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERNAL
    return 0


def _complain(message: str) -> int:
    print("quasar-lab: " + printable(" ".join(message.split())), file=sys.stderr)
    return BAD_USAGE


def main() -> None:
    """Entry point of `quasar-lab`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
