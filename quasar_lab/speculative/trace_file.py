"""Trace files: JSON lines, one record a line, checked against `trace_schema` when they are read."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quasar_lab.speculative.trace_records import Audit, Prefill, Round
from quasar_lab.speculative.trace_schema import AUDIT, FOOTER, HEADER, PREFILL, SCHEMA, round_schema
from quasar_lab.support import storage
from quasar_lab.support.errors import TraceError
from quasar_lab.support.json_schema import OBJECT, TEXT, Schema, fields, numbered_lines, parse
from quasar_lab.support.result import Json


def write(path: str | Path, records: Iterable[Json]) -> None:
    """Writes one line a record, all or nothing."""
    storage.write_text(Path(path), "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def read(path: str | Path) -> Json:
    """The fields of the `Trace` in a file. Raises TraceError, naming the line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read as a trace: {storage.why_unreadable(error)}") from error
    lines = numbered_lines(text)
    number, line = next(lines, (0, ""))
    if not number:
        raise TraceError(f"{path} is empty; accepted: JSON lines with a {SCHEMA} header")
    header = _record(line, f"line {number} of {path}")
    if header.get("kind") != "header" or header.get("schema") != SCHEMA:
        raise TraceError(f"{path} does not start with a {SCHEMA} header")
    _check(HEADER, header, f"line {number} of {path}")
    reader = _Reader(header)
    for number, line in lines:
        reader.take(line, f"line {number} of {path}")
    return vars(reader.found)


@dataclass
class _Found:
    """The fields of a `Trace`, as far as they have been read."""

    header: Json
    prefill: Prefill | None = None
    rounds: list[Round] = field(default_factory=list)
    footer: Json | None = None
    audits: list[Audit] = field(default_factory=list)


class _Reader:
    """Takes the lines behind the header, in order."""

    def __init__(self, header: Json):
        self.found = _Found(header)
        self._pending: list[int] = []  # tokens of rounds that no audit has seen so far
        self._schemas = {"prefill": PREFILL, "round": round_schema(header["gamma"]), "audit": AUDIT, "footer": FOOTER}

    def take(self, line: str, where: str) -> None:
        """One more line. Raises TraceError, saying where, if it is no record that may stand there."""
        found = self.found
        record = _record(line, where)
        kind = record.pop("kind")
        _check(self._schemas.get(kind, OBJECT), record, where)
        if kind == "prefill":
            found.prefill = Prefill(**record)
        elif kind == "round":
            found.rounds.append(Round(**record))
            self._pending += record["emitted_ids"]
        elif kind == "audit":
            _check(_audit_of(self._pending, len(found.rounds), "auditor" in found.header), record, where)
            found.audits.append(Audit(**record))
            self._pending = []
        elif kind == "footer":
            found.footer = {"kind": kind, **record}


def _record(line: str, where: str) -> Json:
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


def _audit_of(pending: list[int], rounds: int, audited: bool) -> Schema:
    """What an audit must say where it stands in the file: as many tokens as waited for it, and those it kept."""

    def check(record: Any, name: str) -> str | None:
        kept = record["accepted"]
        counts_agree = record["length"] == len(record["p"]) == len(pending)
        facts = {
            "there is no auditor in the header": audited,
            f"after is {record['after']}; accepted: {rounds}, the rounds before it": record["after"] == rounds,
            f"length is {record['length']}; accepted: {len(pending)}, the tokens that waited": counts_agree,
            f"accepted is {kept}; accepted: 0…{len(pending)}": kept <= len(pending),
            "emitted_ids do not start with the tokens kept": record["emitted_ids"][:kept] == pending[:kept],
            "emitted_ids are not those kept and at most one more": kept <= len(record["emitted_ids"]) <= kept + 1,
            "top is not one row per token, or one more": len(pending) <= len(record["top"]) <= len(pending) + 1,
        }
        return next((fault for fault, holds in facts.items() if not holds), None)

    return check


def _check(schema: Schema, record: Any, where: str) -> None:
    fault = schema(record, "")
    if fault:
        raise TraceError(f"{where} is not a trace record: {fault}")
