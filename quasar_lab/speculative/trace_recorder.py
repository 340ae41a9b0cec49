"""Writes the trace of a run: it is told of every step, and turns numbers into records with text pieces.

The loop tells it what happened and when; it decides what a record says. So the loop reads as the algorithm, and what a
trace holds is in one file.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from quasar_lab.speculative.clock import Stopwatch
from quasar_lab.speculative.config import GenerationConfig, Sampling
from quasar_lab.speculative.drafters import Draft
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.trace import (
    SCHEMA,
    AcceptanceRates,
    Audit,
    Likeliest,
    Prefill,
    Round,
    Trace,
    acceptance,
)
from quasar_lab.speculative.verification import Verification
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.speculative.written_text import WrittenText, pieces_of
from quasar_lab.support.machine import versions
from quasar_lab.support.result import Json, Result, left_out

NOT_A_SPEED = "reference backend: not a speed measurement"


@dataclass(frozen=True)
class Summary(Result):
    """What a run comes to: the JSON of `quasar-lab generate` (meanings: notebooks/README.md)."""

    text: str  # the answer, without special tokens and stop strings
    token_ids: list[int]
    prompt_tokens: int
    new_tokens: int
    finish_reason: str  # eos, stop, length or cancelled
    verifier: str
    drafter: str
    gamma: int
    rounds: int
    mean_acceptance_length: float | None  # τ; None without a round
    drafts: AcceptanceRates = field(metadata={"flat": True})
    audits: Result = field(metadata={"flat": True})  # what an audited run adds; nothing otherwise
    seconds: dict[str, float]  # prefill, draft, verify, sample, host, total
    tokens_per_second: float | None  # behind the prefill
    device: str
    backend: str
    model: str
    versions: dict[str, str]
    note: str | None = left_out()  # where times are no measurement of speed


class TraceRecorder:
    """The trace of one run, and the times that its summary adds up."""

    def __init__(
        self, verifier: Verifier, drafter: str, config: GenerationConfig, prompt_ids: list[int], text: WrittenText
    ):
        self._text = text
        self._seconds = {"prefill": 0.0, "draft": 0.0, "verify": 0.0, "sample": 0.0, "total": 0.0}
        if verifier.auditor is not None:
            self._seconds["audit"] = 0.0
        self.trace = Trace(_header(verifier, drafter, config, prompt_ids))

    @contextmanager
    def working(self, part: str | None = None) -> Iterator[None]:
        """What the block takes is the run's time, and that of this part of it. What the consumer does with a record is
        not."""
        begun = time.perf_counter()
        yield
        spent = time.perf_counter() - begun
        self._seconds["total"] += spent
        if part is not None:
            self._seconds[part] += spent

    # --- what happened ------------------------------------------------------------------------------------------------

    def prefill(self, verified: Verification, emitted: list[int], watch: Stopwatch) -> None:
        """The prompt has been read, and the first token written."""
        watch.lap("prefill")
        self.trace.prefill = Prefill(
            emitted_ids=emitted,
            emitted_pieces=self._text.pieces(emitted),
            top=self._top(verified),
            margin=verified.margins,
            ms=watch.ms["prefill"],
        )

    def round(self, draft: Draft, verified: Verification, position: int, emitted: list[int], watch: Stopwatch) -> Round:
        """A draft has been verified, and its tokens written at `position`."""
        found = verified.acceptance
        kept: list[str] = [TokenState.ACCEPTED] * found.accepted
        refused: list[str] = [TokenState.REJECTED] * (len(draft.ids) - found.accepted)
        pieces = self._text.pieces(draft.ids)
        emitted_pieces = self._text.pieces(emitted)
        top = self._top(verified)
        watch.lap("host")
        spent = watch.seconds
        for name in ("draft", "verify", "sample"):
            self._seconds[name] += spent[name]
        record = Round(
            index=len(self.trace.rounds),
            position=position,
            draft_ids=draft.ids,
            draft_pieces=pieces,
            parents=draft.parents,
            source=draft.source,
            q=found.q,
            p=found.p,
            u=found.u,
            states=[*kept, *refused],
            emitted_ids=emitted,
            emitted_pieces=emitted_pieces,
            emitted_states=[*kept, *found.next_states][: len(emitted)],
            top=top,
            margin=verified.margins,
            ms=watch.ms,
        )
        self.trace.rounds.append(record)
        return record

    def audit(
        self,
        trigger: str,
        planned: int,
        verified: Verification,
        position: int,
        emitted: list[int],
        watch: Stopwatch,
    ) -> Audit:
        """The tokens from `position` on have been audited; `emitted` are those kept, and the exact verifier's own.

        trigger: why the audit came. planned: how many tokens were meant to wait for it.
        """
        found = verified.acceptance
        emitted_pieces = self._text.pieces(emitted)
        top = self._top(verified)
        watch.lap("host")
        self._seconds["audit"] += watch.total
        record = Audit(
            index=len(self.trace.audits),
            after=len(self.trace.rounds),
            position=position,
            length=len(found.p),
            accepted=found.accepted,
            planned=planned,
            trigger=trigger,
            emitted_ids=emitted,
            emitted_pieces=emitted_pieces,
            emitted_states=[*[TokenState.ACCEPTED] * found.accepted, *found.next_states],
            q=found.q,
            p=found.p,
            u=found.u,
            top=top,
            margin=verified.margins,
            ms=watch.ms,
        )
        self.trace.audits.append(record)
        return record

    def close(self, audits: Result) -> None:
        """The run has ended; audits: what its auditor adds to the summary."""
        self.trace.footer = {"kind": "footer", "summary": self._summary(audits).to_json()}

    def _summary(self, audits: Result) -> Summary:
        trace, header = self.trace, self.trace.header
        seconds = dict(self._seconds)
        seconds["host"] = seconds["total"] - sum(spent for name, spent in seconds.items() if name != "total")
        decode = seconds["total"] - seconds["prefill"]
        new = len(self._text.ids)
        return Summary(
            text=self._text.answer(),
            token_ids=list(self._text.ids),
            prompt_tokens=len(trace.prompt_ids),
            new_tokens=new,
            finish_reason=self._text.finish or "cancelled",
            verifier=trace.verifier,
            drafter=trace.drafter,
            gamma=trace.gamma,
            rounds=len(trace.rounds),
            mean_acceptance_length=(new - 1) / len(trace.rounds) if trace.rounds else None,
            drafts=acceptance(trace.rounds, trace.gamma),
            audits=audits,
            seconds=seconds,
            tokens_per_second=(new - 1) / decode if decode > 0 else None,
            device=header["device"],
            backend=header["backend"],
            model=trace.model,
            versions=header["versions"],
            note=NOT_A_SPEED if header["backend"] == "reference" else None,
        )

    def _top(self, verified: Verification) -> list[Likeliest]:
        piece = self._text.piece
        return [[[token, piece(token), p] for token, p in row] for row in verified.likeliest]


def _sampling(sampling: Sampling) -> Json:
    """How tokens are drawn. The two options that came later are named only where they do something, so that a version
    without them reads every other trace."""
    later = {"min_p": sampling.min_p > 0, "repetition_penalty": sampling.repetition_penalty != 1}
    return {name: value for name, value in asdict(sampling).items() if later.get(name, True)}


def _header(verifier: Verifier, drafter: str, config: GenerationConfig, prompt_ids: list[int]) -> Json:
    tokenizer = verifier.tokenizer
    return {
        "schema": SCHEMA,
        "kind": "header",
        **verifier.identity,
        "verifier": verifier.name,
        **({} if verifier.auditor is None else {"auditor": verifier.auditor.name}),
        "drafter": drafter,
        "gamma": config.gamma,
        "sampling": _sampling(config.sampling),
        "versions": versions(),
        "prompt_ids": prompt_ids,
        "prompt_pieces": [*map(pieces_of(tokenizer), prompt_ids)],
        "prompt_text": None if tokenizer is None else tokenizer.decode(prompt_ids),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
