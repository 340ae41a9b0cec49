"""From logits to tokens: the target distribution, and the rule that keeps drafts without changing it.

Greedy (temperature 0): a draft is kept while it equals the arg-max. Sampled: draft d, drawn from q, is kept with
probability min(1, p(d)/q(d)); the first one refused is replaced by a draw from the *residual* max(p − q, 0),
normalised; when all are kept, one more token is drawn from p. The text then has exactly the distribution p of plain
decoding, whatever q is (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). A draft chosen without a
draw is the case q(d) = 1: kept with probability p(d), and the residual is p without d.

p is the target *after* temperature, top-k and top-p, the same function for plain and speculative decoding: one more
reason why they agree. "Lossless" here means: with respect to the verifier whose logits these are.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from quasar_lab.support.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """temperature 0: greedy. top_k 0 and top_p 1: off. Raises InputError on values outside what is accepted."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 1e-6 <= self.temperature <= 100:
            raise InputError(f"temperature is {self.temperature}; accepted: 0 (greedy), or 0.000001…100")
        if not -(2**63) <= self.seed < 2**64:
            raise InputError(f"the seed is {self.seed}; accepted: −2⁶³…2⁶⁴−1")
        if self.top_k < 0:
            raise InputError(f"top-k is {self.top_k}; accepted: 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top-p is {self.top_p}; accepted: above 0, at most 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def target(logits: Tensor, sampling: Sampling) -> Tensor:
    """logits f32 [M, V] → probabilities f32 [M, V] after temperature, top-k (ties with the k-th stay), top-p (the
    smallest set reaching p).

    At temperature 0, where nothing is drawn, the plain softmax, for display.
    """
    if sampling.greedy:
        return torch.softmax(logits, dim=-1)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probs = torch.softmax(logits, dim=-1)
    return _nucleus(probs, sampling.top_p) if sampling.top_p < 1 else probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """The smallest set of likeliest tokens that reaches `top_p`, renormalised; f32 [M, V]."""
    size = probs.shape[-1]
    # Nearly always the first few hundred reach p, and sorting all is slow. A GPU sorts faster than the host looks.
    for count in (min(1024, size), size) if probs.device.type == "cpu" else (size,):
        ordered, order = probs.topk(count, dim=-1) if count < size else probs.sort(dim=-1, descending=True)
        before = ordered.double().cumsum(dim=-1) - ordered
        if count == size or bool((before[:, -1] >= top_p).all()):
            break
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    kept = torch.zeros_like(probs).scatter_(1, order, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


def draw(probs: Tensor, generator: Generator) -> int:
    """One token from probabilities [V] (need not sum to 1), by inverting the cumulative sum; one of probability 0 is
    never drawn."""
    cumulative = probs.double().cumsum(dim=0)
    u = torch.rand((), dtype=torch.float64, generator=generator)
    last = int(torch.searchsorted(cumulative, cumulative[-1]))
    return min(int(torch.searchsorted(cumulative, u * cumulative[-1], right=True)), last)


def residual(p: Tensor, token: int, q: Tensor | None) -> Tensor:
    """max(p − q, 0), not normalised, f32 [V]; q None: one-hot at `token`. Falls back to p where rounding leaves
    nothing."""
    if q is None:
        rest = p.clone()
        rest[token] = 0.0
    else:
        rest = (p - q).clamp(min=0.0)
    return rest if float(rest.sum()) > 0 else p
