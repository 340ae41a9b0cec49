"""How long panels and their threads live: no longer than somebody sees or uses them.

## Idea

A panel holds models of gigabytes, and ipywidgets holds every widget until it is closed. So closing a panel closes its
parts and lets go of its models, and a panel closes by itself when its cell runs again.

A thread is known here only while it runs. A daemon thread inside a torch op when the interpreter ends would abort the
process: the threads that still run then are told to stop, and waited for.
"""

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import ipywidgets as w
from IPython.core.getipython import get_ipython

_running: dict[threading.Thread, Callable[[], None]] = {}
"""Thread → what asks it to stop."""

_shown: dict[str, tuple[int, list[weakref.ref["Closable"]]]] = {}
"""Cell → the run of it that made panels, and these panels."""

PATIENCE = 10.0
"""Seconds that the end of the interpreter waits for one thread."""


class Closable(Protocol):
    """What can be closed: widgets, and panels that are made of them."""

    def close(self) -> None: ...


def start_thread(work: Callable[[], None], stop: Callable[[], None] = lambda: None) -> threading.Thread:
    """Runs `work` in a daemon thread. stop: asks it to end soon."""

    def run() -> None:
        try:
            work()
        finally:
            _running.pop(thread, None)

    thread = threading.Thread(target=run, daemon=True)
    _running[thread] = stop
    thread.start()
    return thread


@atexit.register
def _end_threads() -> None:
    for thread, stop in list(_running.items()):
        stop()
        thread.join(PATIENCE)


def close_all(*widgets: w.Widget) -> None:
    """Closes widgets with all that is in them."""
    for widget in widgets:
        close_all(*getattr(widget, "children", ()))
        w.Widget.close(widget)


def one_run_of_a_cell(panel: Closable) -> None:
    """Closes the panels that earlier runs of the running cell made. Where cells have no names, does nothing."""
    shell = get_ipython()
    parent = shell.get_parent() if shell is not None and hasattr(shell, "get_parent") else {}
    cell = parent.get("metadata", {}).get("cellId")
    if shell is None or cell is None:
        return
    run, panels = _shown.get(cell, (shell.execution_count, []))
    if run != shell.execution_count:
        for earlier in (reference() for reference in panels):
            if earlier is not None:
                earlier.close()
        panels = []
    _shown[cell] = (shell.execution_count, [*panels, weakref.ref(panel)])
