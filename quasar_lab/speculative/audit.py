"""An INT8 verifier whose text BF16 audits: fast rounds, and the BF16 model's own output.

## Idea

Rejection sampling is lossless only with respect to the verifier that ran, and W8A8 is not quite the BF16 model. A few
tokens in a hundred come out otherwise, and the text takes another way from there. But what the INT8 verifier writes is
itself a good and long *draft*. So every L tokens one wide BF16 pass reads all that was written since the last one. It
keeps the longest prefix that BF16 would have written too, and adds one token of its own:

    rounds (INT8)   t │ a b │ c d e │ f          pending: provisional, shown ◌
    audit (BF16)    one pass over [t, a … f]     a b c d kept, e refused ⟲, BF16's own token e′ behind d
    rounds go on behind e′

The tokens are judged by the rule that judges drafts (`rejection`). Greedy tokens are kept while they equal BF16's
arg-max. Of a sampled token, q is the whole distribution that the INT8 verifier drew it from, after temperature, top-k
and top-p, and fresh numbers are drawn. The output is BF16's own: bit for bit at temperature 0, in distribution above.

## Choice

Two rules make this true:
- BF16 reads keys and values that BF16 computed, and nothing else, so the prompt goes through it too. The INT8 verifier
  may read BF16's rows (`Decoder.adopt`), and does: it need not read the prompt itself, nor the last token that an audit
  keeps. With BF16's prompt it is also refused less often (with SmoothQuant, on our questions, 4.2 % of tokens instead
  of 5.7 %). Audited rows beyond the prompt change nothing measurable.
- No pending token is dropped before an audit has seen it. Only tokens that stay decide when an audit comes: once L or
  more are pending, and at a provisional end of the text, which is no end until BF16 has agreed.

**How long to wait.** Short audits pay for a BF16 pass often. Long ones lose more when a token is refused, and a wide
pass costs more too. If a token is refused with probability f, an audit of n tokens gives 1 + Σ_{i≤n} (1−f)^i tokens for
n·(time of a pending token) + T_BF16(n+1). An audit that is due waits for its round to end, so n is L and what rounds
add beyond it, on average. L is what gives the most tokens per second. f is the share of refusals so far, counted from
1.5 in 50 as if those had been seen before. Pass times come from `curves` where the caller has measured them
(`benchmark.step`), else from the bytes of the weights and the shape in `SHAPE`. All of this depends on nothing but the
tokens so far, never on a clock of this run, so a seed gives the same run again. At temperature 0 no choice of L changes
the text.

## What is lost

Memory for both sets of weights and two caches. Speed, compared with INT8 alone: where wide BF16 passes are slow (cores
without BF16 products), an audit costs as much as several rounds.

## Source

Drafting with a quantized model and verifying with the original: QuantSpec (arXiv 2502.10424), ML-SpecQD (arXiv
2503.13565). Here both levels are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from quasar_kernels.threads import single_torch_thread
from torch import Tensor

from quasar_lab.models.decoder import Decoder, Output
from quasar_lab.models.generation_defaults import GenerationDefaults
from quasar_lab.models.tokenizer import Tokenizer
from quasar_lab.speculative.config import MAX_GAMMA
from quasar_lab.speculative.drafters import Draft
from quasar_lab.speculative.pass_times import Curves, between, interpolate
from quasar_lab.speculative.verifier import Adopting, Verifier
from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import whole

LONGEST = 48
"""The largest L that is chosen."""

WIDEST_ROUND = MAX_GAMMA + 1
"""Rows of the widest verify pass."""

LARGEST_LENGTH = 256
"""The largest L that a caller may ask for."""

SHAPE = {1: 1.0, 6: 1.2, 7: 1.5, 16: 2.6, 32: 5.0, 64: 10.0}
"""Width → time of a pass over that of width 1, for want of a measured curve: the embedded model in BF16 on two cores of
an EPYC (AVX-512). Memory decides up to width 6, products beyond."""

PRIOR_REFUSED = 1.5
PRIOR_JUDGED = 50.0
"""Refused and judged tokens that count as seen before the first audit."""


@dataclass
class PairedCache:
    """Both verifiers' caches."""

    fast: Any  # audited and pending tokens
    exact: Any  # audited tokens only, all computed by the exact verifier

    @property
    def length(self) -> int:
        """Audited rows."""
        return self.exact.length


@dataclass(frozen=True, repr=False)
class Audited:
    """A verifier made of two: `fast` writes, `exact` audits. Usable wherever a verifier is.

    `forward` and `rollback`, for everything that is no generation, are the exact verifier's, with the fast one
    following.
    """

    fast: Adopting  # makes the rounds
    exact: Verifier  # audits them: the text is its own
    length: int | None = None  # L, or None to let it adapt
    curves: Curves = field(default_factory=dict)  # measured pass times to adapt by; empty: from the bytes of weights

    def __repr__(self) -> str:
        return f"<Audited {self.name} of {self.identity['model']}>"

    @property
    def name(self) -> str:
        return f"{self.fast.name}+{self.exact.name}"

    @property
    def auditor(self) -> Verifier:
        """The verifier whose text this is."""
        return self.exact

    @property
    def passes(self) -> tuple[Verifier, ...]:
        """The verifiers that its passes are made by: the exact one, then the fast one."""
        return (self.exact, self.fast)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.exact.tokenizer

    @property
    def context(self) -> int:
        return min(self.fast.context, self.exact.context)

    @property
    def vocab(self) -> int:
        return self.exact.vocab

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.exact.eos_ids

    @property
    def generation_defaults(self) -> GenerationDefaults:
        return self.exact.generation_defaults

    @property
    def identity(self) -> dict[str, str]:
        return {**self.exact.identity, "recipe": self.name}

    @property
    def device(self) -> str:
        return self.identity["device"]

    @property
    def backend(self) -> str:
        return self.identity["backend"]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a round reads; an audit reads `exact.weight_bytes`."""
        return self.fast.weight_bytes

    def new_cache(self, capacity: int | None = None) -> PairedCache:
        """Empty caches of `capacity` rows each (default: the whole context)."""
        return PairedCache(self.fast.new_cache(capacity), self.exact.new_cache(capacity))

    def rollback(self, cache: PairedCache, length: int) -> None:
        """Forgets every row from `length` on, and pending ones, in both caches."""
        self.exact.rollback(cache.exact, length)
        self.fast.rollback(cache.fast, length)

    def forward(self, ids: Sequence[int], cache: PairedCache, *, logits: str = "all", hidden: bool = False) -> Output:
        """The exact verifier's pass over `ids`, behind the audited rows; the fast one adopts its rows."""
        start = cache.exact.length
        out = self.exact.forward(ids, cache.exact, logits=logits, hidden=hidden)
        self.follow(cache, start)
        return out

    def follow(self, cache: PairedCache, start: int) -> None:
        """From `start` on, the fast verifier goes on from the exact one's rows."""
        with single_torch_thread():
            self.fast.adopt(cache.fast, cache.exact, start, cache.exact.length)

    def costs(self, verifier: Verifier) -> list[float]:
        """Time of a pass of width 0, 1, … in a unit of its own, the same for both verifiers."""
        curve = self.curves.get(verifier.name, SHAPE)
        unit = 1 if self.curves else verifier.weight_bytes
        return [unit * interpolate(curve, width) for width in range(LONGEST + WIDEST_ROUND + 2)]


def audited(fast: Adopting, exact: Verifier, length: int | None = None, curves: Curves | None = None) -> Audited:
    """`fast`, an INT8 verifier, audited by `exact`, the BF16 model it was made from.

    length: tokens that wait for an audit, 1…256 (default: adapts). curves: verifier → width → pass time to adapt by, as
    `benchmark.step` measures them. Raises InputError unless the two are such a pair, on another length, and on curves
    that lack one of the two.
    """
    theirs, ours = fast.identity, exact.identity
    if (theirs["model"], theirs["checksum"]) != (ours["model"], ours["checksum"]):
        raise InputError(
            f"the verifiers are of {theirs['model']!r} and {ours['model']!r}; accepted: two of the same weights"
        )
    if isinstance(exact, Decoder) and exact.name != "bf16":
        raise InputError(f"the auditor is {exact.name}; accepted: the BF16 model")
    if fast.name == exact.name or not hasattr(fast, "adopt"):
        raise InputError(f"{fast.name} cannot be audited by {exact.name}; accepted: a recipe, and the BF16 model")
    if length is not None:
        length = whole(length, "the audit length", f"1…{LARGEST_LENGTH}, or None to let it adapt", 1, LARGEST_LENGTH)
    if curves and not all(curves.get(name) for name in (fast.name, exact.name)):
        raise InputError(f"curves are of {', '.join(curves)}; accepted: of {fast.name} and {exact.name}")
    return Audited(fast, exact, length, curves or {})


@dataclass
class Seen:
    """What rounds and audits have shown. The sums over rounds start as if one plain round had been seen, so that there
    is an L before the first."""

    judged: int = 0  # tokens that audits have looked at, up to the first one refused in each
    refused: int = 0  # of these, the ones refused
    rounds: int = 1
    widths: int = 1  # rows of the rounds' passes
    tokens: int = 1  # emitted by rounds
    squares: int = 1  # of the tokens of each round, summed

    def round(self, tokens: int, width: int) -> None:
        """Counts a round of this width that gave so many tokens."""
        self.rounds += 1
        self.widths += width
        self.tokens += tokens
        self.squares += tokens**2

    def audit(self, accepted: int, length: int) -> None:
        """Counts an audit of so many tokens."""
        refused = accepted < length
        self.judged += accepted + refused
        self.refused += refused

    @property
    def refusal(self) -> float:
        """The probability that a token is refused; a few refusals were seen before."""
        return (self.refused + PRIOR_REFUSED) / (self.judged + PRIOR_JUDGED)

    def time_per_token(self, fast: Sequence[float], exact: Sequence[float], length: int, refusal: float) -> float:
        """Time of passes per token that stays, when audits wait for `length` tokens; fast, exact: `Audited.costs`."""
        pending = between(fast, self.widths / self.rounds) * self.rounds / self.tokens
        # A round of k tokens that passes L ends (k − 1) / 2 beyond it on average, and long rounds pass L more often.
        waiting = length + (self.squares / self.tokens - 1) / 2
        kept = (1 - (1 - refusal) ** (waiting + 1)) / refusal if refusal else waiting + 1
        return (waiting * pending + between(exact, waiting + 1)) / kept


class Auditor:
    """What one run knows of its audits: the tokens that wait for one, and how long to let them wait."""

    def __init__(self, verifier: Audited):
        self.verifier = verifier
        self.pending: list[int] = []  # tokens that no audit has seen
        self.seen = Seen()  # what rounds and audits have shown so far
        self._drawn_from: list[Tensor] = []  # per round f32 [tokens, vocab]: what each pending token was drawn from
        self._costs = verifier.costs(verifier.fast), verifier.costs(verifier.exact)

    def wait(self, ids: Sequence[int], probs: Tensor | None, width: int) -> None:
        """Takes the tokens of a round of this width; probs f32 [≥ len(ids), vocab], the rows each was drawn from (None:
        greedy)."""
        self.pending += ids
        if probs is not None:
            self._drawn_from.append(probs[: len(ids)])
        self.seen.round(len(ids), width)

    def draft(self) -> Draft:
        """The pending tokens as a draft for the exact verifier."""
        with single_torch_thread():
            return Draft(list(self.pending), None, torch.cat(self._drawn_from) if self._drawn_from else None)

    def settle(self, accepted: int) -> None:
        """Notes an audit of the pending tokens; nothing is pending then."""
        self.seen.audit(accepted, len(self.pending))
        self.pending, self._drawn_from = [], []

    @property
    def flip_rate(self) -> float | None:
        """The share of judged tokens that were refused; None before the first audit."""
        return self.seen.refused / self.seen.judged if self.seen.judged else None

    @property
    def length(self) -> int:
        """L: how many tokens to let wait, from what has been seen so far."""
        if self.verifier.length is not None:
            return self.verifier.length
        seen, refusal = self.seen, self.seen.refusal
        return min(range(1, LONGEST + 1), key=lambda length: seen.time_per_token(*self._costs, length, refusal))
