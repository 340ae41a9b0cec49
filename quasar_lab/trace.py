"""The record of a run: the one truth that displays, tests and reports read.

A trace is a header (what ran), the token of the prefill, one record per round (what was drafted, what the target
thought of it, what was kept) and a footer (the summary). As JSON lines, ``"schema": "quasar-trace/1"``; every id comes
with its text piece, so that a trace can be shown, replayed and measured without a model or a tokenizer.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quasar_lab import storage
from quasar_lab.errors import TraceError
from quasar_lab.forms import OBJECT, TEXT, Form, fields, numbered_lines, parse
from quasar_lab.trace_forms import FOOTER, HEADER, PREFILL, SCHEMA, round_form


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
    """header and footer as in the JSON lines; footer None while the run goes on."""

    header: dict[str, Any]
    prefill: Prefill | None = None
    rounds: list[Round] = field(default_factory=list)
    footer: dict[str, Any] | None = None

    @property
    def token_ids(self) -> list[int]:
        """All emitted tokens."""
        first = self.prefill.emitted_ids if self.prefill else []
        return [*first, *(token for record in self.rounds for token in record.emitted_ids)]

    @property
    def text(self) -> str:
        """The answer, without special tokens and stop strings; while the run goes on, the pieces so far."""
        if self.footer is not None:
            return self.footer["summary"]["text"]
        first = self.prefill.emitted_pieces if self.prefill else []
        return "".join([*first, *(piece for record in self.rounds for piece in record.emitted_pieces)])

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
        for record in self.rounds:
            line = asdict(record)
            if line["other"] is None:
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
        known = {"prefill": PREFILL, "round": round_form(header["gamma"]), "footer": FOOTER}
        for number, line in lines:
            record = _record(number, line, path)
            kind = record.pop("kind")
            _check(known.get(kind, OBJECT), record, f"line {number} of {path}")
            if kind == "prefill":
                trace.prefill = Prefill(**record)
            elif kind == "round":
                trace.rounds.append(Round(**record))
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
