"""The record of a run: the one truth that displays, tests and reports read.

A trace is a header (what ran), the token of the prefill, one record per round (what was drafted, what the target
thought of it, what was kept) and a footer (the summary). Where an exact verifier audits a fast one, its audits stand
between the rounds, in the order they happened, and the text is what they left: a round's tokens are provisional until
then. As JSON lines, ``"schema": "quasar-trace/1"``; every id comes with its text piece, so that a trace can be shown,
replayed and measured without a model or a tokenizer.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quasar_lab.speculative.trace_schema import AUDIT, FOOTER, HEADER, PREFILL, SCHEMA, round_form
from quasar_lab.support import storage
from quasar_lab.support.errors import TraceError
from quasar_lab.support.json_schema import OBJECT, TEXT, Form, fields, numbered_lines, parse


@dataclass
class Round:
    """One draft and its verification.

    position: index in prompt + output of the first token emitted here. q, p, u: per draft. states: "accepted" or
    "rejected" per draft. emitted_states: "accepted", then "corrected", "bonus" or "plain". top: per verified row the
    five likeliest [id, piece, p]; margin: top-1 − top-2 logit per row. ms: draft, verify, sample, host.
    """

    index: int
    position: int
    draft_ids: list[int]
    draft_pieces: list[str]
    parents: list[int] | None
    source: dict[str, Any] | None
    q: list[float]
    p: list[float]
    u: list[float | None]
    states: list[str]
    emitted_ids: list[int]
    emitted_pieces: list[str]
    emitted_states: list[str]
    top: list[list[list[Any]]]
    margin: list[float]
    ms: dict[str, float]
    kind: str = "round"
    other: dict[str, Any] | None = None

    @property
    def accepted(self) -> int:
        return self.states.count("accepted")


@dataclass
class Audit:
    """One pass of the exact verifier over the tokens that rounds have emitted since its last.

    after: rounds before it. position: index in prompt + output of the first token audited. length: tokens audited;
    accepted: of these, kept. planned: the length in force; trigger: why it came ("due", "eos", "stop", "limit",
    "cancelled"). emitted_ids: those kept, and behind them the exact verifier's own token unless the text ends there;
    emitted_states: "accepted", then "corrected" or "bonus". q, p, u: per token audited, as for drafts. top, margin: per
    row, one more than tokens where the text may go on. ms: verify, sample, host.
    """

    index: int
    after: int
    position: int
    length: int
    accepted: int
    planned: int
    trigger: str
    emitted_ids: list[int]
    emitted_pieces: list[str]
    emitted_states: list[str]
    q: list[float]
    p: list[float]
    u: list[float | None]
    top: list[list[list[Any]]]
    margin: list[float]
    ms: dict[str, float]
    kind: str = "audit"


@dataclass
class Prefill:
    """The token sampled from the prompt's last row; it is no round."""

    emitted_ids: list[int]
    emitted_pieces: list[str]
    top: list[list[list[Any]]]
    margin: list[float]
    ms: float
    kind: str = "prefill"


@dataclass
class Trace:
    """header and footer as in the JSON lines; footer None while the run goes on. audits: empty unless an exact verifier
    audits the one that wrote."""

    header: dict[str, Any]
    prefill: Prefill | None = None
    rounds: list[Round] = field(default_factory=list)
    footer: dict[str, Any] | None = None
    audits: list[Audit] = field(default_factory=list)

    @property
    def audited(self) -> bool:
        """Whether rounds are provisional here until an audit."""
        return "auditor" in self.header

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
                states[index][place] = "retracted"
            seen += audit.length
        for index, place in places[seen:]:
            states[index][place] = "provisional"
        return states

    @property
    def token_ids(self) -> list[int]:
        """All emitted tokens; of an audited run, those that audits have left."""
        return [token for record in self._settled() for token in record.emitted_ids]

    def _settled(self) -> "Iterator[Prefill | Round | Audit]":
        if self.prefill is not None:
            yield self.prefill
        yield from self.audits if self.audited else self.rounds

    @property
    def text(self) -> str:
        """The answer, without special tokens and stop strings; while the run goes on, the pieces so far."""
        if self.footer is not None:
            return self.footer["summary"]["text"]
        return "".join(piece for record in self._settled() for piece in record.emitted_pieces)

    def summary(self) -> dict[str, Any]:
        """The JSON of `quasar-lab generate`. Raises TraceError while the run goes on."""
        if self.footer is None:
            raise TraceError("this run has not ended, so it has no summary yet")
        return self.footer["summary"]

    def records(self) -> Iterator[dict[str, Any]]:
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
        storage.write_text(
            Path(path), "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in self.records())
        )

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Reads JSON lines; records of kinds that this version does not know are left out.

        Raises TraceError, naming the line, on a file that is no trace of this schema, or that a display could not show.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TraceError(f"{path} cannot be read as a trace: {storage.why_unreadable(error)}") from error
        lines = numbered_lines(text)
        first, line = next(lines, (0, ""))
        if not first:
            raise TraceError(f"{path} is empty; accepted: JSON lines with a {SCHEMA} header")
        header = _record(first, line, path)
        if header.get("kind") != "header" or header.get("schema") != SCHEMA:
            raise TraceError(f"{path} does not start with a {SCHEMA} header")
        _check(HEADER, header, f"line {first} of {path}")
        trace = cls(header)
        known = {"prefill": PREFILL, "round": round_form(header["gamma"]), "audit": AUDIT, "footer": FOOTER}
        pending: list[int] = []
        for number, line in lines:
            record = _record(number, line, path)
            kind = record.pop("kind")
            _check(known.get(kind, OBJECT), record, f"line {number} of {path}")
            if kind == "prefill":
                trace.prefill = Prefill(**record)
            elif kind == "round":
                trace.rounds.append(Round(**record))
                pending += record["emitted_ids"]
            elif kind == "audit":
                _check(_audit_of(pending, len(trace.rounds), trace.audited), record, f"line {number} of {path}")
                trace.audits.append(Audit(**record))
                pending = []
            elif kind == "footer":
                trace.footer = {"kind": kind, **record}
        return trace


def _record(number: int, line: str, path: str | Path) -> dict[str, Any]:
    where = f"line {number} of {path}"
    try:
        record = parse(line)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{where} is not a trace record: it is not JSON; accepted: what generate --trace saves"
        ) from error
    except ValueError as error:
        raise TraceError(f"{where} is not a trace record: {error}") from error
    _check(fields({"kind": TEXT}), record, where)
    return record


def _audit_of(pending: list[int], rounds: int, audited: bool) -> Form:
    """What an audit must say where it stands in the file: as many tokens as waited for it, and those it kept."""

    def check(record: Any, name: str) -> str | None:
        kept = record["accepted"]
        facts = {
            "there is no auditor in the header": audited,
            f"after is {record['after']}; accepted: {rounds}, the rounds before it": record["after"] == rounds,
            f"length is {record['length']}; accepted: {len(pending)}, the tokens that waited": record["length"]
            == len(record["p"])
            == len(pending),
            f"accepted is {kept}; accepted: 0…{len(pending)}": kept <= len(pending),
            "emitted_ids do not start with the tokens kept": record["emitted_ids"][:kept] == pending[:kept],
            "emitted_ids are not those kept and at most one more": kept <= len(record["emitted_ids"]) <= kept + 1,
            "top is not one row per token, or one more": len(pending) <= len(record["top"]) <= len(pending) + 1,
        }
        return next((fault for fault, holds in facts.items() if not holds), None)

    return check


def _check(form: Form, record: Any, where: str) -> None:
    fault = form(record, "")
    if fault:
        raise TraceError(f"{where} is not a trace record: {fault}")


def acceptance(rounds: list[Round], gamma: int) -> dict[str, Any]:
    """Draft acceptance rate, histogram and survival over rounds (meanings: README, "Words").

    survival[i − 1]: of the rounds that drafted at least i tokens, the share whose i-th was kept; None where no round
    drafted so many.
    """
    drafted, accepted = sum(len(r.draft_ids) for r in rounds), sum(r.accepted for r in rounds)
    histogram = [0] * (gamma + 1)
    for record in rounds:
        histogram[record.accepted] += 1
    survival: list[float | None] = []
    for place in range(1, gamma + 1):
        reached = [r for r in rounds if len(r.draft_ids) >= place]
        survival.append(sum(r.accepted >= place for r in reached) / len(reached) if reached else None)
    return {
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": histogram,
        "survival": survival,
    }
