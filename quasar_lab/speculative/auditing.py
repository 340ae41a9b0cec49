"""The audits of a run: what happens between its rounds.

A run asks `audits_of` once, for its verifier. Where nothing audits the verifier, `NoAudits` does nothing at every
question of the loop. Where something does, `Audits` lets tokens wait and has the exact verifier read them (the idea is
in `audit`). The loop itself is the same for both.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from quasar_lab.speculative.audit import Audited, Auditor
from quasar_lab.speculative.clock import Stopwatch
from quasar_lab.speculative.run import Run
from quasar_lab.speculative.trace_records import Audit
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.result import Result


def audits_of(verifier: Verifier) -> "NoAudits | Audits":
    """What a run with this verifier does between its rounds."""
    return NoAudits(verifier) if verifier.auditor is None else Audits(cast(Audited, verifier))


class NoAudits:
    """The tokens of a round stay."""

    def __init__(self, verifier: Verifier):
        self.writer = verifier

    def writers_cache(self, cache: Any) -> Any:
        """The part of the run's cache that rounds read."""
        return cache

    def wait(self, ids: Sequence[int], probs: Tensor | None, width: int) -> None:
        """Takes note of a round: tokens, the rows each was drawn from, width of its pass."""

    def after_round(self, run: Run) -> Iterable[Audit]:
        """The audits that are due."""
        return ()

    def close(self, run: Run) -> None:
        """The run ends here, possibly cut short."""

    def summary(self, run: Run) -> Result:
        """What the summary of the run says of audits."""
        return Result()


@dataclass(frozen=True)
class AuditSummary(Result):
    """What audits add to the summary of a run."""

    audits: int
    flips: int  # audits that refused a token
    flip_rate: float | None  # refused per token looked at; None before the first audit
    audit_length: float | None  # tokens per audit
    audit_planned: int  # the length in force at the end
    retracted: int  # tokens taken back


class Audits:
    """Rounds are the fast verifier's, and the exact one audits their tokens before they count as text."""

    def __init__(self, pair: Audited):
        self._pair = pair
        self.auditor = Auditor(pair)
        self.writer: Verifier = pair.fast

    def writers_cache(self, cache: Any) -> Any:
        """The part of the run's cache that rounds read."""
        return cache.fast

    def wait(self, ids: Sequence[int], probs: Tensor | None, width: int) -> None:
        """The tokens of a round wait for an audit."""
        self.auditor.wait(ids, probs, width)

    def after_round(self, run: Run) -> Iterator[Audit]:
        """The audit that is due, if one is."""
        trigger = self._trigger(run)
        if trigger is not None:
            with run.recorder.working():
                audit = self._audit(trigger, run)
            yield audit

    def _trigger(self, run: Run) -> str | None:
        """Why the pending tokens are audited now: the text may have ended, or enough of them wait; None where nothing
        does."""
        if not self.auditor.pending:
            return None
        if run.text.finish is not None:
            return "limit" if run.text.finish == "length" else run.text.finish
        if run.cancelled:
            return "cancelled"
        return "due" if len(self.auditor.pending) >= self.auditor.length else None

    def _audit(self, trigger: str, run: Run) -> Audit:
        """One pass of the exact verifier over the pending tokens: keeps a prefix, and adds its own token unless the
        text ends."""
        pair, cache, auditor = self._pair, run.cache, self.auditor
        watch = Stopwatch()
        pending = auditor.pending
        planned = auditor.length
        first = len(run.text.ids) - len(pending)
        start = cache.exact.length
        # The row behind the last token is read only where the text may go on: at the end of the context there is none.
        read = pending if run.text.finish is None else pending[:-1]
        last = run.text.ids[first - 1]
        out = pair.exact.forward([last, *read], cache.exact, hidden=run.drafter.needs_hidden)
        watch.lap("verify")
        position = len(run.prompt_ids) + first
        verified = run.verify(out, auditor.draft(), position)
        watch.lap("sample")
        watch.settle(out.seconds)

        kept = verified.acceptance.accepted
        own = verified.acceptance.next_ids
        pair.exact.rollback(cache.exact, start + 1 + min(kept, len(read)))
        pair.follow(cache, start)
        auditor.settle(kept)
        if kept < len(pending):
            run.take_back(first + kept)
        run.hidden = out.hidden[kept : kept + 1] if out.hidden is not None and own else None
        emitted = [*pending[:kept], *run.emit(own, run.hidden)]
        return run.recorder.audit(
            trigger=trigger,
            planned=planned,
            verified=verified,
            position=position,
            emitted=emitted,
            watch=watch,
        )

    def close(self, run: Run) -> None:
        """Where the run was cut short, what no audit has seen is no text, and a provisional end is none."""
        audited = run.recorder.trace.token_ids
        if len(run.text.ids) > len(audited):
            run.text.replace(audited)

    def summary(self, run: Run) -> AuditSummary:
        """What the summary of the run says of audits."""
        audits = run.recorder.trace.audits
        return AuditSummary(
            audits=len(audits),
            flips=self.auditor.seen.refused,
            flip_rate=self.auditor.flip_rate,
            audit_length=sum(audit.length for audit in audits) / len(audits) if audits else None,
            audit_planned=self.auditor.length,
            retracted=sum(audit.length - audit.accepted for audit in audits),
        )
