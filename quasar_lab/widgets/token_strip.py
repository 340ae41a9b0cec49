"""The token strip as a widget: the drawing of the report, which gets new rounds while the model runs.

The run has a thread of its own, so that Stop and the rest of the notebook stay responsive. Each round is one message to
the front end, and so is each audit. A view that opens late asks for everything that was sent so far.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from quasar_lab.figures.strip import script, stylesheet, token_strip, whole_characters
from quasar_lab.speculative.generation import Generation
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError, QuasarError
from quasar_lab.support.result import Json
from quasar_lab.widgets.lifetime import start_thread
from quasar_lab.widgets.mode import with_static_view


class TokenStrip(anywidget.AnyWidget):
    """A strip that shows a saved trace, or a run while it happens (`run`, `stop`)."""

    _esm = script() + (files("quasar_lab.widgets") / "token_strip.js").read_text(encoding="utf-8")
    _css = stylesheet()

    records: Any = traitlets.List().tag(sync=True)
    running = traitlets.Bool(False).tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)

    def __init__(self, trace: Trace | None = None, **traits: Any):
        self._lock = threading.RLock()
        self._said: list[Json] = [] if trace is None else whole_characters(list(trace.records()))
        self._generation: Generation | None = None
        self._thread: threading.Thread | None = None
        self.trace = trace
        super().__init__(records=self._said, **traits)
        self.on_msg(self._heard)

    def run(self, generation: Generation, done: Callable[[Trace], None] | None = None) -> None:
        """Starts `generation` in a thread of its own and shows its rounds. done: called with the trace, in that thread.

        Raises InputError while another run goes on.
        """
        if self.running:
            raise InputError("a run is going on here; accepted: stop it first")
        self._generation, self.trace = generation, generation.trace
        self.running, self.status = True, "reading the prompt …"
        self._thread = start_thread(lambda: self._work(generation, done), stop=generation.cancel)

    def show(self, trace: Trace) -> None:
        """Shows a trace in place of what was there.

        Raises InputError while a run goes on.
        """
        if self.running:
            raise InputError("a run is going on here; accepted: stop it first")
        self.trace = trace
        self._say(list(trace.records()), afresh=True)
        self.records = self._said

    def stop(self) -> None:
        """Ends the run within one round."""
        if self._generation is not None:
            self._generation.cancel()

    def wait(self) -> None:
        """Returns when the run has ended."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Ends the run and takes the strip off the page."""
        self.stop()
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> tuple[Json, Json]:
        live, about = super()._repr_mimebundle_(**options) or ({}, {})
        return with_static_view(live, "Token strip", "" if self.trace is None else token_strip(self.trace).html), about

    def _work(self, generation: Generation, done: Callable[[Trace], None] | None) -> None:
        trace, outcome = generation.trace, ""
        try:
            self._say([trace.header], afresh=True)
            for place, record in enumerate(generation):
                opening = [asdict(trace.prefill)] if place == 0 and trace.prefill else []
                self._say([*opening, asdict(record)])
                self.status = f"{len(trace.token_ids)} tokens"
            opening = [asdict(trace.prefill)] if not trace.rounds and trace.prefill else []
            self._say([*opening, *([trace.footer] if trace.footer else [])])
            if done is not None:
                done(trace)
        except QuasarError as error:
            outcome = str(error)
        finally:
            self._generation = None  # it holds the models
            self.records = self._said  # what a saved notebook keeps
            self.running, self.status = False, outcome

    def _say(self, records: list[Json], afresh: bool = False) -> None:
        records = whole_characters(records)
        with self._lock:
            self._said = records if afresh else [*self._said, *records]
            self.send({"records": records})

    def _heard(self, widget: Any, content: Json, buffers: Any) -> None:
        if content.get("type") == "stop":
            self.stop()
        elif content.get("type") == "ready":
            with self._lock:
                if self.running and self._said:
                    self.send({"records": self._said})
