"""What a verify pass says, row by row, as plain lists.

Row i of a pass follows i drafts: it tells how likely every token is in the place of draft i, and the last row tells it
for the token behind all drafts.

A round needs few numbers of each row: the likeliest tokens for the trace, and the probability of the draft. They are
read once into Python lists. The pass has just swept the caches, so a tensor operation here costs tens of microseconds,
and a handful of them would be a tenth of the step.
"""

from dataclasses import dataclass
from math import exp, isfinite

from quasar_kernels import top_rows
from torch import Tensor

from quasar_lab.models.cuda_graphs import TOP
from quasar_lab.speculative.sampling import Sampling, target


@dataclass(frozen=True)
class VerifiedRows:
    """What a pass of M rows says."""

    logits: Tensor  # f32 [M, V]
    best_ids: list[list[int]]  # [M][k]: the likeliest tokens of each row, the likeliest first
    best_logits: list[list[float]]  # [M][k]: their logits
    best_probs: list[list[float]]  # [M][k]: their target probabilities
    logsumexp: list[float]  # [M]: log Σ exp of each row's logits
    probs: Tensor | None  # f32 [M, V]: the target distribution; None at temperature 0, where nothing is drawn

    def probability(self, row: int, token: int) -> float:
        """Target probability of a token (at temperature 0 by the plain softmax)."""
        if token in self.best_ids[row]:
            return self.best_probs[row][self.best_ids[row].index(token)]
        if self.probs is not None:
            return float(self.probs[row, token])
        return exp(float(self.logits[row, token]) - self.logsumexp[row])

    @property
    def finite(self) -> bool:
        """Whether no row has NaN or infinity for its largest logit."""
        return all(isfinite(values[0]) for values in self.best_logits)

    def likeliest(self) -> list[list[tuple[int, float]]]:
        """Per row the likeliest (token, target probability)."""
        return [[*zip(ids, probs, strict=True)] for ids, probs in zip(self.best_ids, self.best_probs, strict=True)]

    def margins(self) -> list[float]:
        """Per row the first logit less the second."""
        return [values[0] - values[min(1, len(values) - 1)] for values in self.best_logits]


def read_rows(logits: Tensor, sampling: Sampling, best: int = TOP) -> VerifiedRows:
    """Rows of logits f32 [M, V] with the `best` likeliest tokens of each; of equal ones the lowest id comes first."""
    values, ids, logsumexp = top_rows(logits, min(best, logits.shape[-1]))
    probs = None if sampling.greedy else target(logits, sampling)
    best_logits = values.tolist()
    totals = logsumexp.tolist()
    return VerifiedRows(
        logits=logits,
        best_ids=ids.tolist(),
        best_logits=best_logits,
        best_probs=softmax_of(best_logits, totals) if probs is None else probs.gather(1, ids).tolist(),
        logsumexp=totals,
        probs=probs,
    )


def softmax_of(logits: list[list[float]], logsumexp: list[float]) -> list[list[float]]:
    """Probabilities of some logits of each row, from log Σ exp of the whole row."""
    return [[exp(logit - total) for logit in row] for row, total in zip(logits, logsumexp, strict=True)]
