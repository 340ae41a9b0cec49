"""The record of a run: the one truth that displays, tests and reports read.

## Idea

A trace is a header (what ran), the token of the prefill, one record per round (what was drafted, what the target
thought of it, what was kept) and a footer (the summary). Where an exact verifier audits a fast one, the audits stand
between the rounds in the order in which they happened, and the text is what they left: a round's tokens are provisional
until then.

## Choice

A file is JSON lines, ``"schema": "quasar-trace/1"`` (`trace_file`). Every id comes with its text piece, so a trace can
be shown, replayed and measured without a model or a tokenizer.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from quasar_lab.speculative import trace_file
from quasar_lab.speculative.config import Sampling
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.trace_records import Audit, Likeliest, Prefill, Round
from quasar_lab.speculative.trace_schema import SCHEMA
from quasar_lab.support.errors import TraceError
from quasar_lab.support.result import Json, Result

__all__ = ["SCHEMA", "AcceptanceRates", "Audit", "Likeliest", "Prefill", "Round", "Trace", "acceptance"]


@dataclass
class Trace:
    """A run, finished or not. `header` and `footer` are the JSON objects of the file; properties read them."""

    header: Json  # what ran, on what, with which options
    prefill: Prefill | None = None  # None before the prompt has been read
    rounds: list[Round] = field(default_factory=list)  # in order
    footer: Json | None = None  # None while the run goes on
    audits: list[Audit] = field(default_factory=list)  # in order; empty unless the verifier has an auditor

    # --- what the header says -----------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.header["model"]

    @property
    def verifier(self) -> str:
        """The verifier that ran, with its auditor: `w8a8+bf16`."""
        return self.header["verifier"]

    @property
    def auditor(self) -> str | None:
        """The verifier that audited the text; None where the text is the verifier's own."""
        return self.header.get("auditor")

    @property
    def writer(self) -> str:
        """The verifier whose rounds these are: without its auditor."""
        return self.verifier if self.auditor is None else self.verifier.removesuffix(f"+{self.auditor}")

    @property
    def drafter(self) -> str:
        """The drafter's name."""
        return self.header["drafter"]

    @property
    def gamma(self) -> int:
        """The most tokens that a round drafted."""
        return self.header["gamma"]

    @property
    def sampling(self) -> Sampling:
        """How tokens were drawn."""
        return Sampling(**self.header["sampling"])

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens."""
        return self.header["prompt_ids"]

    @property
    def audited(self) -> bool:
        """Whether rounds are provisional here until an audit."""
        return self.auditor is not None

    # --- what happened ------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Round | Audit]:
        """Rounds and audits in the order they happened."""
        audits = iter(self.audits)
        audit = next(audits, None)
        for done in range(len(self.rounds) + 1):
            while audit is not None and audit.after <= done:
                yield audit
                audit = next(audits, None)
            yield from self.rounds[done : done + 1]

    def audit_states(self) -> list[list[str]]:
        """Per round the state of every emitted token as of now: "retracted" where an audit refused it or one before it,
        "provisional" where none has seen it, else the round's own.

        Without audits, every round's own states.
        """
        states = [list(record.emitted_states) for record in self.rounds]
        if not self.audited:
            return states
        places = [(index, place) for index, row in enumerate(states) for place in range(len(row))]
        seen = 0
        for audit in self.audits:
            for index, place in places[seen + audit.accepted : seen + audit.length]:
                states[index][place] = TokenState.RETRACTED
            seen += audit.length
        for index, place in places[seen:]:
            states[index][place] = TokenState.PROVISIONAL
        return states

    def settled(self) -> Iterator[Prefill | Round | Audit]:
        """The records whose emitted tokens are the text: the prefill, and the rounds or the audits."""
        if self.prefill is not None:
            yield self.prefill
        yield from self.audits if self.audited else self.rounds

    @property
    def token_ids(self) -> list[int]:
        """All emitted tokens; of an audited run, those that audits have left."""
        return [token for record in self.settled() for token in record.emitted_ids]

    @property
    def text(self) -> str:
        """The answer, without special tokens and stop strings; while the run goes on, the pieces so far."""
        if self.footer is not None:
            return self.footer["summary"]["text"]
        return "".join(piece for record in self.settled() for piece in record.emitted_pieces)

    @property
    def tau(self) -> float | None:
        """τ, the mean acceptance length: tokens behind the prefill's, per round; None without a round."""
        written = len(self.token_ids) - (self.prefill is not None)
        return written / len(self.rounds) if self.rounds else None

    def summary(self) -> Json:
        """The JSON of `quasar-lab generate`. Raises TraceError while the run goes on."""
        if self.footer is None:
            raise TraceError("this run has not ended, so it has no summary yet")
        return self.footer["summary"]

    # --- files --------------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Json]:
        """The JSON lines, as dictionaries."""
        yield self.header
        if self.prefill is not None:
            yield asdict(self.prefill)
        for record in self.steps():
            line = asdict(record)
            if isinstance(record, Round) and record.other is None:
                del line["other"]
            yield line
        if self.footer is not None:
            yield self.footer

    def save(self, path: str | Path) -> None:
        """Writes JSON lines, all or nothing."""
        trace_file.write(path, self.records())

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Reads JSON lines; records of kinds that this version does not know are left out.

        Raises TraceError, naming the line, on a file that is no trace of this schema, or that a display could not show.
        """
        return cls(**trace_file.read(path))


@dataclass(frozen=True)
class AcceptanceRates(Result):
    """How many drafts rounds kept."""

    draft_acceptance_rate: float | None  # kept / drafted; None where nothing was drafted
    acceptance_histogram: list[int]  # [i]: rounds that kept i drafts
    survival: list[float | None]  # [i − 1]: of the rounds that drafted at least i, the share that kept the i-th


def acceptance(rounds: list[Round], gamma: int) -> AcceptanceRates:
    """Draft acceptance rate, histogram and survival over rounds (meanings: notebooks/README.md).

    The survival is None in a place that no round drafted.
    """
    drafted = sum(len(record.draft_ids) for record in rounds)
    kept = sum(record.accepted for record in rounds)
    histogram = [0] * (gamma + 1)
    for record in rounds:
        histogram[record.accepted] += 1
    survival: list[float | None] = []
    for place in range(1, gamma + 1):
        reached = [record for record in rounds if len(record.draft_ids) >= place]
        survival.append(sum(record.accepted >= place for record in reached) / len(reached) if reached else None)
    return AcceptanceRates(
        draft_acceptance_rate=kept / drafted if drafted else None,
        acceptance_histogram=histogram,
        survival=survival,
    )
