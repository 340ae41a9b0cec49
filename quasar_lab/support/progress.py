"""Long work says what it does, on stderr: a bar on a terminal, plain lines elsewhere, nothing in between.

stdout stays free for results, so that ``--json`` prints one document and nothing else. Only in a notebook cell, where
stderr is shown as if it were an error, the lines go to stdout. And in a notebook that runs without a person
(QUASAR_HEADLESS=1) there are none: nobody waits, and a report is to show results. A panel that works in a thread of its
own listens instead, and shows the lines beside its button.

A count that goes on is one line: where a person watches, each takes the place of the one before, and what stays is how
it ended. In a log every count is a line.
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


_replaced = 0
"""Length of the line that the next one takes the place of."""


def announce(text: str, passing: bool = False) -> None:
    """One line of progress. passing: the next line takes its place, where a person watches."""
    global _replaced
    listener = _listener.get()
    if listener is not None:
        listener(text)
        return
    stream = _stream()
    watched = stream is not sys.stderr or stream.isatty()
    if stream is not sys.stderr and os.environ.get("QUASAR_HEADLESS") == "1":
        return
    if not watched:
        print(text, file=stream, flush=True)
        return
    begin = "\r" if _replaced else ""
    print(f"{begin}{text.ljust(_replaced)}", end="" if passing else "\n", file=stream, flush=True)
    _replaced = len(text) if passing else 0


@cache
def say_once(text: str | None) -> None:
    """One line about a model or a setting, the first time only; None says nothing."""
    if text is not None:
        announce(text)


def _stream() -> TextIO:
    """stdout when it is a cell's own (not when a command line has redirected it), else stderr."""
    return sys.stdout if type(sys.stdout).__module__ == "ipykernel.iostream" else sys.stderr


def track(items: Iterable[T], total: int, label: str, every: float = 5.0) -> Iterator[T]:
    """Yields `items`, showing how many of `total` are done: on a terminal a bar with the time left, which goes at the
    end; elsewhere a count every `every` seconds, and how it ended where there was one."""
    if _listener.get() is None and sys.stderr.isatty() and _stream() is sys.stderr:
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, description=label, total=total, console=Console(stderr=True), transient=True)
        return
    told = time.monotonic()
    shown, done = False, 0
    try:
        for item in items:
            if time.monotonic() - told > every:
                announce(f"{label}: {done} of {total}", passing=True)
                shown, told = True, time.monotonic()
            yield item
            done += 1
    finally:
        if shown:
            announce(f"{label}: {'stopped at ' if done < total else ''}{done} of {total}")
