"""From logits to a token: the distribution that a verifier draws from, and the draw.

## Idea

The *target* distribution p is what plain decoding would draw the next token from: the softmax of the logits after
temperature, top-k, top-p and min-p. Plain and speculative decoding call the same function for it, which is one reason
why they agree. The rule that keeps drafts without changing p is in `rejection`.

A repetition penalty changes the logits themselves, also at temperature 0 (`penalised`). It depends on what is written
before a row, and behind drafts that includes the drafts. So row i of a pass is penalised as if its i drafts were text,
which they are wherever that row counts.

## Choice

A token is drawn by inverting the cumulative sum of p at one uniform number. The number of random numbers that a text
uses is therefore known, and a run on a device can make the same draws as a run on the CPU.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from quasar_lab.speculative.config import Sampling

__all__ = ["Sampling", "draw", "inverse", "penalised", "target", "uniform"]


def penalised(logits: Tensor, penalty: float, text: Sequence[int], drafts: Sequence[int]) -> Tensor:
    """logits f32 [M, V] of a pass whose row i follows `text` and the first i of `drafts` → a copy where every token
    that is there already is made less likely: a logit above 0 is divided by the penalty, one below 0 multiplied.

    Source: CTRL (arXiv 1909.05858), as `transformers` computes it: each token once, however often it is there.
    """
    found = logits.clone()
    written = set(text)
    if written:
        columns = torch.tensor(sorted(written), device=logits.device)
        found[:, columns] = _less_likely(logits[:, columns], penalty)
    for place, token in enumerate(drafts[: logits.shape[0] - 1]):
        if token not in written:
            written.add(token)
            found[place + 1 :, token] = _less_likely(logits[place + 1 :, token], penalty)
    return found


def _less_likely(logits: Tensor, penalty: float) -> Tensor:
    return torch.where(logits < 0, logits * penalty, logits / penalty)


def target(logits: Tensor, sampling: Sampling) -> Tensor:
    """logits f32 [M, V] → probabilities f32 [M, V] after temperature, top-k (ties with the k-th stay), top-p (the
    smallest set reaching p) and min-p (what is at least so likely as that share of the likeliest).

    At temperature 0, where nothing is drawn, it is the plain softmax, for display.
    """
    if sampling.greedy:
        return torch.softmax(logits, dim=-1)
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    probs = torch.softmax(logits, dim=-1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    return _at_least(probs, sampling.min_p) if sampling.min_p > 0 else probs


def _at_least(probs: Tensor, min_p: float) -> Tensor:
    """The tokens that have at least the share `min_p` of the likeliest one's probability, renormalised; f32 [M, V]."""
    kept = probs.masked_fill(probs < min_p * probs.max(dim=-1, keepdim=True).values, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


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


def uniform(count: int, generator: Generator) -> Tensor:
    """So many numbers in [0, 1), f64: the same ones whether they are drawn together or one by one."""
    return torch.rand(count, dtype=torch.float64, generator=generator)


def inverse(probs: Tensor, u: Tensor) -> Tensor:
    """The token i64 [1] where the cumulative sum of probs [V] (which need not sum to 1) passes the share u f64 [1].

    A token of probability 0 is never found. NaN gives some token of the vocabulary; the caller sees it in the logits.
    """
    cumulative = probs.double().cumsum(0)
    total = cumulative[-1:]
    last = torch.searchsorted(cumulative, total)
    token = torch.searchsorted(cumulative, u * total, right=True)
    return torch.minimum(token, last).clamp(max=probs.shape[0] - 1)


def draw(probs: Tensor, generator: Generator) -> int:
    """One token from probabilities [V], which need not sum to 1."""
    return int(inverse(probs, uniform(1, generator)))
