"""Long work says what it does, on stderr: a bar on a terminal, plain lines elsewhere, nothing in between.

stdout stays free for results, so that ``--json`` prints one document and nothing else. Only in a notebook cell, where
stderr is shown as if it were an error, the lines go to stdout.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar("T")


def announce(text: str) -> None:
    """One line of progress."""
    print(text, file=_stream(), flush=True)


def _stream() -> TextIO:
    """stdout when it is a cell's own (not when a command line has redirected it), else stderr."""
    return sys.stdout if type(sys.stdout).__module__ == "ipykernel.iostream" else sys.stderr


def track(items: Iterable[T], total: int, label: str, every: float = 5.0) -> Iterator[T]:
    """Yields `items`, showing how many of `total` are done; on a terminal a bar with the time left, elsewhere a line
    every `every` seconds."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, description=label, total=total, console=Console(stderr=True), transient=True)
        return
    shown = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - shown > every:
            announce(f"{label}: {done} of {total}")
            shown = time.monotonic()
        yield item
