"""Long work says what it does, on stderr: a bar on a terminal, plain lines elsewhere, nothing in between.

stdout stays free for results, so that ``--json`` prints one document and nothing else.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def announce(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


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
