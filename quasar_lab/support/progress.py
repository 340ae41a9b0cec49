"""Long work says what it does, on stderr: a bar on a terminal, plain lines elsewhere, nothing in between.

stdout stays free for results, so that ``--json`` prints one document and nothing else. Only in a notebook cell, where
stderr is shown as if it were an error, the lines go to stdout. And in a notebook that runs without a person
(QUASAR_HEADLESS=1) there are none: nobody waits, and a report is to show results. A panel that works in a thread of its
own listens instead, and shows the lines beside its button.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TextIO, TypeVar

T = TypeVar("T")

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Gives every line that this thread announces in the block to `listener`; nothing is printed."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def announce(text: str) -> None:
    """One line of progress."""
    listener = _listener.get()
    if listener is not None:
        listener(text)
        return
    stream = _stream()
    if stream is sys.stderr or os.environ.get("QUASAR_HEADLESS") != "1":
        print(text, file=stream, flush=True)


@cache
def say_once(text: str | None) -> None:
    """One line about a model or a setting, the first time only; None says nothing."""
    if text is not None:
        announce(text)


def _stream() -> TextIO:
    """stdout when it is a cell's own (not when a command line has redirected it), else stderr."""
    return sys.stdout if type(sys.stdout).__module__ == "ipykernel.iostream" else sys.stderr


def track(items: Iterable[T], total: int, label: str, every: float = 5.0) -> Iterator[T]:
    """Yields `items`, showing how many of `total` are done; on a terminal a bar with the time left, elsewhere a line
    every `every` seconds."""
    if _listener.get() is None and sys.stderr.isatty():
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
