"""The records of a run, as dataclasses: one per step, with a comment for every field.

A field's name is its key in a trace file. States are the words of `TokenState`.
"""

from dataclasses import dataclass

from quasar_lab.speculative.token_states import TokenState
from quasar_lab.support.result import Json

Likeliest = list[list[int | str | float]]
"""The likeliest tokens of one row, the likeliest first, each as [id, piece, p]."""


@dataclass
class Prefill:
    """The token sampled from the prompt's last row. It is no round."""

    emitted_ids: list[int]  # that token
    emitted_pieces: list[str]  # its text
    top: list[Likeliest]  # of the prompt's last row
    margin: list[float]  # its first logit less the second
    ms: float  # time of the prefill
    kind: str = "prefill"


@dataclass
class Round:
    """One draft and its verification."""

    index: int  # from 0
    position: int  # index in prompt + output of the first token emitted here
    draft_ids: list[int]  # drafted tokens, possibly none
    draft_pieces: list[str]  # their texts
    parents: list[int] | None  # of a tree draft: what each token continues; None: a chain
    source: Json | None  # where the draft came from, as the drafter says it
    q: list[float]  # per draft: the probability with which it was drafted, 1 without a draw
    p: list[float]  # per draft: its target probability
    u: list[float | None]  # per draft: the number drawn for it; None where none was
    states: list[str]  # per draft: accepted or rejected
    emitted_ids: list[int]  # the tokens that the text got
    emitted_pieces: list[str]  # their texts
    emitted_states: list[str]  # accepted, then corrected, bonus or plain
    top: list[Likeliest]  # per verified row
    margin: list[float]  # per verified row: its first logit less the second
    ms: dict[str, float]  # draft, verify, sample, host
    kind: str = "round"
    other: Json | None = None  # what another verifier says of the same drafts (`evaluation.rescore`)

    @property
    def accepted(self) -> int:
        """Drafts kept."""
        return self.states.count(TokenState.ACCEPTED)

    @property
    def width(self) -> int:
        """Rows of the verify pass."""
        return len(self.draft_ids) + 1


@dataclass
class Audit:
    """One pass of the exact verifier over the tokens that rounds have emitted since its last."""

    index: int  # from 0
    after: int  # rounds before it
    position: int  # index in prompt + output of the first token audited
    length: int  # tokens audited
    accepted: int  # of these, kept
    planned: int  # how many were meant to wait
    trigger: str  # why it came: due, eos, stop, limit, cancelled
    emitted_ids: list[int]  # the tokens kept, and the exact verifier's own behind them unless the text ends there
    emitted_pieces: list[str]  # their texts
    emitted_states: list[str]  # accepted, then corrected or bonus
    q: list[float]  # per token audited: the probability with which the fast verifier drew it
    p: list[float]  # per token audited: its probability with the exact verifier
    u: list[float | None]  # per token audited: the number drawn for it; None where none was
    top: list[Likeliest]  # per row: one more than tokens where the text may go on
    margin: list[float]  # per row: its first logit less the second
    ms: dict[str, float]  # verify, sample, host
    kind: str = "audit"

    @property
    def refused(self) -> bool:
        """Whether it took tokens back."""
        return self.accepted < self.length

    @property
    def width(self) -> int:
        """Rows of the pass."""
        return len(self.top)
