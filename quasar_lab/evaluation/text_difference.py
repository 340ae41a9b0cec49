"""Where the text of one verifier leaves the text of another.

## Idea

Two verifiers answer the same prompt greedily. Their texts are equal up to some token, and from there on they are
different texts. So the only thing to compare is the first difference: which token each of them wrote there, and by what
margin the first model preferred its own. A small margin means that the choice was nearly a tie.

## What is lost

Everything after the first difference. The two models read different words by then, so their later tokens say nothing
about how alike they are.
"""

from dataclasses import dataclass

from quasar_lab.speculative.config import GREEDY
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.trace import Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Result


@dataclass(frozen=True)
class Difference(Result):
    """The first token in which two greedy texts differ."""

    position: int
    """0 is the first token of the answer."""
    expected_id: int
    """The token of the model that was to be matched."""
    expected_piece: str
    got_id: int
    """The token of the other model."""
    got_piece: str
    margin: float
    """Top-1 − top-2 logit, at this position, of the model that was to be matched."""


def first_difference(
    base: Verifier, other: Verifier, prompt: Prompt, max_new_tokens: int = 128, raw: bool = False
) -> Difference | None:
    """Where the greedy answer of `other` leaves that of `base`. None when the two are equal to their end.

    Either may be an audited pair. Both draft by n-gram, which changes no token. Raises InputError as `generate` does.
    """
    options = {"max_new_tokens": max_new_tokens, "raw": raw, **GREEDY}
    expected, got = (generate(model, prompt, **options) for model in (base, other))
    return difference(expected, got)


def difference(expected: Trace, got: Trace) -> Difference | None:
    """The first difference of two greedy runs on the same prompt. None where one text is the other, or its beginning.

    Raises InputError on sampled runs, whose texts differ by chance, and on runs of different prompts.
    """
    if any(run.sampling.temperature != 0 for run in (expected, got)):
        raise InputError("a run was sampled; accepted: two greedy runs (temperature 0)")
    if expected.prompt_ids != got.prompt_ids:
        raise InputError("the runs are of different prompts; accepted: two of the same")
    ours, theirs = emitted(expected), emitted(got)
    for position, ((token, piece, margin), (other, other_piece, _)) in enumerate(zip(ours, theirs, strict=False)):
        if token != other:
            return Difference(
                position=position,
                expected_id=token,
                expected_piece=piece,
                got_id=other,
                got_piece=other_piece,
                margin=margin,
            )
    return None


def emitted(trace: Trace) -> list[tuple[int, str, float]]:
    """(id, piece, margin) of every token of a run's text. The i-th token that a pass leaves comes from its row i."""
    return [
        row
        for record in trace.settled()
        for row in zip(record.emitted_ids, record.emitted_pieces, record.margin, strict=False)
    ]


def taken_back(trace: Trace) -> dict[int, int]:
    """Position in the answer → how many tokens an audit took back there. Empty for a run without audits.

    The token at such a position is the auditor's own.
    """
    prompt = len(trace.prompt_ids)
    return {
        audit.position + audit.accepted - prompt: audit.length - audit.accepted
        for audit in trace.audits
        if audit.refused
    }
