"""What the commands share: option types, loading by name, tables and JSON."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from quasar_lab.speculative.config import MAX_GAMMA, GenerationConfig, meaning
from quasar_lab.speculative.drafters.registry import accepted
from quasar_lab.support.errors import InputError, NotInThisVersion
from quasar_lab.support.readable import readable
from quasar_lab.support.result import Json
from quasar_lab.support.storage import why_unreadable

T = TypeVar("T")

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as shells have it."""

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
Model = Annotated[str, typer.Option(help='A folder, a hub id, or "embedded".')]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Backend = Annotated[str, typer.Option(help="auto (the fastest that runs here), or one of the backends below.")]
Threads = Annotated[int | None, typer.Option(help="Threads to compute with (default: all cores).")]


def run_option(name: str, *flags: str, **more: Any) -> Any:
    """A command line option that means what the field of `GenerationConfig` of that name means."""
    return typer.Option(*flags, help=meaning(name), **more)


MaxNewTokens = Annotated[int, run_option("max_new_tokens")]
Temperature = Annotated[float, run_option("temperature")]
TopK = Annotated[int, run_option("top_k")]
TopP = Annotated[float, run_option("top_p")]
MinP = Annotated[float, run_option("min_p")]
RepetitionPenalty = Annotated[float, run_option("repetition_penalty")]
TemplateArguments = Annotated[list[str] | None, run_option("template_args", "--template-arg", metavar="NAME=VALUE")]
Seed = Annotated[int, run_option("seed")]
Raw = Annotated[bool, run_option("raw", "--raw")]
Gamma = Annotated[int, run_option("gamma")]
DrafterName = Annotated[str, typer.Option(help=f"One of the drafters below: {accepted()}.")]


def print_json(document: Any) -> None:
    """One JSON document. Where stdout cannot hold every character, the others are written as JSON's own escapes."""
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    unicode = encoding.lower().replace("-", "") in ("utf8", "utf8sig")
    print(json.dumps(document, ensure_ascii=not unicode, indent=1, allow_nan=False))


def options_given(context: typer.Context) -> Json:
    """The options of a run that the command line holds, checked. What it does not hold is left to the model's own
    settings, or to our defaults."""
    given = {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }
    if "gamma" in given:
        given["gamma"] = _gamma(str(given["gamma"]))
    if "template_arg" in given:
        given["template_args"] = _template_args(given["template_arg"])
    options = {part.name: given[part.name] for part in fields(GenerationConfig) if part.name in given}
    GenerationConfig(**options)
    return options


def _gamma(text: str) -> int:
    if text == "auto":
        raise NotInThisVersion("--gamma auto")
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"--gamma is {text!r}; accepted: 1…{MAX_GAMMA}") from error


def _template_args(pairs: Sequence[str] | None) -> Json | None:
    """NAME=VALUE texts as names and values: a value is JSON (`false`, `3`, `"x"`), else the text as it is."""
    if not pairs:
        return None
    found: Json = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--template-arg is {pair!r}; accepted: NAME=VALUE, such as enable_thinking=false")
        try:
            found[name] = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            found[name] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


def printable(text: str) -> str:
    """Text whose control characters are shown, not obeyed: a token or a file name must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def print_table(rows: Sequence[Mapping[str, Any]], columns: dict[str, str] | None = None) -> None:
    """Rows as an aligned table, no wider than the terminal: longer cells go on in the next line, between words where
    they can. columns: key → heading (default: every key as it is)."""
    from rich.console import Console
    from rich.table import Table

    columns = columns or {key: key.replace("_", " ") for key in rows[0]}
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=any(columns.values()))
    for key, heading in columns.items():
        numbers = heading and all(str(cell(row[key]))[:1] in "–0123456789" for row in rows)
        table.add_column(heading, overflow="fold", justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(cell(row[key]) for key in columns))
    terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
    console = Console(force_terminal=terminal, width=shutil.get_terminal_size().columns)
    with console.capture() as captured:
        console.print(table, markup=False)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def cell(value: Any) -> Any:
    """A value for people: yes and no, three figures, a dash for nothing, a mapping as its pairs."""
    from rich.text import Text

    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return readable(value)
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return Text(", ".join(f"{key} {item}" for key, item in value.items()))
    return Text(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


UNITS = {"_gb_s": "GB/s", "_bytes": "GB"}
"""End of a key → the unit of its value."""


def print_pairs(document: Mapping[str, Any]) -> None:
    """Keys in words beside their values, with units."""
    print_table([_pair(key, value) for key, value in document.items()], {"what": "", "value": ""})


def _pair(key: str, value: Any) -> dict[str, Any]:
    for end, unit in UNITS.items():
        if key.endswith(end) and value is not None:
            number = value / 1e9 if unit == "GB" else value
            return {"what": key.removesuffix(end).replace("_", " "), "value": f"{readable(number)} {unit}"}
    return {"what": key.replace("_", " "), "value": value}


def percent(share: float | None) -> str:
    """A share as a whole percentage."""
    return "–" if share is None else f"{100 * share:.0f} %"


def load_model(model: str, device: str, backend: str, threads: int | None) -> Any:
    """The BF16 decoder, computing with `threads`."""
    import quasar_lab

    if device not in ("cpu", "cuda"):
        raise InputError(f"--device is {device!r}; accepted: cpu, cuda")
    set_threads(threads)
    return quasar_lab.load(model, device, backend)


def set_threads(threads: int | None) -> None:
    """Makes torch and the C++ backend compute with `threads`; None leaves both as they are."""
    if threads is None:
        return
    if not 1 <= threads <= 1024:
        raise InputError(f"--threads is {threads}; accepted: 1…1024")
    import torch
    from quasar_kernels import cpu

    torch.set_num_threads(threads)
    if cpu.unavailable() is None:
        cpu.set_threads(threads)


def different(option: str, values: Sequence[T]) -> list[T]:
    """The values of a comma-separated option. Raises InputError when there is none, or one twice."""
    if not values or len(set(values)) != len(values):
        shown = ",".join(map(str, values))
        raise InputError(f"{option} is {shown!r}; accepted: different values, comma-separated")
    return list(values)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without the byte order mark that some editors put before it. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text: {why_unreadable(error)}") from error
