"""What the rounds of a run cost: by part, by round, by token and by drafted token.

## Idea

A trace holds the milliseconds of every round: draft, verify, sample, host. What a reader asks is a sum over them: which
part takes the time, what a token costs, what one more drafted token would cost.

## What is lost

The pass itself has no clocks inside. Given a profile (`pass_profile`), its time is split by the shares of the nearest
width that was profiled, and that is an estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quasar_lab.evaluation.pass_profile import GROUPS, ProfileResult
from quasar_lab.speculative.trace import Trace

ROUND_PARTS = ("draft", "verify", "sample", "host")
PASS_PARTS = (*GROUPS, "other")


@dataclass(frozen=True)
class RoundTimes:
    """Milliseconds of the rounds of one run."""

    parts: dict[str, list[float]]
    """Part → per round its time, in the order of a round; "verify" or, split, PASS_PARTS in its place."""
    verify: list[float]
    """Per round the time of the pass."""
    rounds: list[float]
    """Per round its whole time."""
    emitted: list[int]
    """Per round the tokens that it gave."""

    @property
    def verify_share(self) -> float:
        """The share of the time that passes take; 0 where there is no time."""
        total = sum(self.rounds)
        return sum(self.verify) / total if total else 0.0

    @property
    def ms_per_round(self) -> float:
        return sum(self.rounds) / len(self.rounds)

    @property
    def ms_per_token(self) -> float:
        return sum(self.rounds) / sum(self.emitted)

    @property
    def tau(self) -> float:
        """Tokens that a round gave on average."""
        return sum(self.emitted) / len(self.emitted)

    def mean(self, part: str) -> float:
        """Milliseconds of a part in the mean round."""
        return sum(self.parts[part]) / len(self.parts[part])


def round_times(trace: Trace, profile: ProfileResult | None = None) -> RoundTimes:
    """The times of a run's rounds; with a profile of its verifier, verify is split among PASS_PARTS.

    Raises InputError where the profile does not hold the verifier.
    """
    spent = {part: [record.ms[part] for record in trace.rounds] for part in ROUND_PARTS}
    verify = spent["verify"]
    passes = {"verify": verify} if profile is None else _split(trace, verify, profile)
    return RoundTimes(
        parts={"draft": spent["draft"], **passes, "sample": spent["sample"], "host": spent["host"]},
        verify=verify,
        rounds=[sum(record.ms.values()) for record in trace.rounds],
        emitted=[len(record.emitted_ids) for record in trace.rounds],
    )


def _split(trace: Trace, verify: Sequence[float], profile: ProfileResult) -> dict[str, list[float]]:
    """Part of a pass → per round its time, by the shares of the nearest width."""
    name = rounds_by(trace)
    profile.shares(name, 1)  # refuses another verifier's profile even where there are no rounds
    shares = [profile.shares(name, len(record.draft_ids) + 1) for record in trace.rounds]
    return {part: [share[part] * ms for share, ms in zip(shares, verify, strict=True)] for part in PASS_PARTS}


def rounds_by(trace: Trace) -> str:
    """The verifier whose passes the rounds were: of an audited run the one that writes, not its auditor."""
    verifier: str = trace.header["verifier"]
    return verifier.removesuffix(f"+{trace.header['auditor']}") if trace.audited else verifier


@dataclass(frozen=True)
class DraftingCosts:
    """What a run paid beside its passes, in milliseconds."""

    per_draft: float
    """Drafting, per drafted token."""
    per_round: float
    """Sampling and the host, per round."""


def drafting_costs(trace: Trace) -> DraftingCosts:
    """The costs of a run; 0 where it has no rounds. What the drafter of a run that drafts nothing spends on looking
    counts to the round."""
    if not trace.rounds:
        return DraftingCosts(0.0, 0.0)
    drafted = sum(len(record.draft_ids) for record in trace.rounds)
    drafting = sum(record.ms["draft"] for record in trace.rounds)
    rest = sum(record.ms["sample"] + record.ms["host"] for record in trace.rounds)
    if not drafted:
        return DraftingCosts(0.0, (rest + drafting) / len(trace.rounds))
    return DraftingCosts(drafting / drafted, rest / len(trace.rounds))


@dataclass(frozen=True)
class JudgedDrafts:
    """The drafts of a run that the verifier looked at: those behind the first refused one of a round are not."""

    accepted: int
    judged: int

    @property
    def share(self) -> float:
        """The share that was accepted."""
        return self.accepted / self.judged


def judged_drafts(trace: Trace) -> JudgedDrafts:
    """Counts the judged drafts of a run."""
    accepted = sum(record.states.count("accepted") for record in trace.rounds)
    refused = sum("rejected" in record.states for record in trace.rounds)
    return JudgedDrafts(accepted, accepted + refused)
