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
    logsumexp: list[float]  # [M]: log Σ exp of each row's logits
    probs: Tensor | None  # f32 [M, V]: the target distribution; None at temperature 0, where nothing is drawn

    def probability(self, row: int, token: int) -> float:
        """Target probability of a token (at temperature 0 by the plain softmax)."""
        if self.probs is not None:
            return float(self.probs[row, token])
        known = self.best_ids[row]
        logit = self.best_logits[row][known.index(token)] if token in known else float(self.logits[row, token])
        return exp(logit - self.logsumexp[row])

    @property
    def finite(self) -> bool:
        """Whether no row has NaN or infinity for its largest logit."""
        return all(isfinite(values[0]) for values in self.best_logits)

    def likeliest(self) -> list[list[tuple[int, float]]]:
        """Per row the likeliest (token, target probability)."""
        return [[(token, self.probability(row, token)) for token in ids] for row, ids in enumerate(self.best_ids)]

    def margins(self) -> list[float]:
        """Per row the first logit less the second."""
        return [values[0] - values[min(1, len(values) - 1)] for values in self.best_logits]


def read_rows(logits: Tensor, sampling: Sampling, best: int = TOP) -> VerifiedRows:
    """Rows of logits f32 [M, V] with the `best` likeliest tokens of each; of equal ones the lowest id comes first."""
    values, ids, logsumexp = top_rows(logits, min(best, logits.shape[-1]))
    return VerifiedRows(
        logits=logits,
        best_ids=ids.tolist(),
        best_logits=values.tolist(),
        logsumexp=logsumexp.tolist(),
        probs=None if sampling.greedy else target(logits, sampling),
    )
