"""Fidelity: how far a quantized verifier is from the BF16 model, token by token.

## Idea

Both models read the same tokens, and at each position their next-token distributions are compared. KL(BF16‖V), in nats,
says how different the two distributions are. *Top-1 agreement* is the share of positions where both have the same
likeliest token. A *flip* is a position where they have not. The *margin* of BF16 there (top-1 − top-2 logit) says
whether the choice was nearly a tie. Perplexity says what the rounding costs on the text itself.

`compare` reads a given text. The text is cut into windows without overlap, no BOS is added, and every position counts.
`on_own_answers` lets BF16 answer prompts greedily, and then both models read those answers. Up to its first flip the
other model has read the same words, so *at its first flip it would leave BF16's answer, if it wrote by itself*.
`text_difference` lets both models write and finds the same place. Positions after it are counted too, but they describe
BF16's text and not the text that the other model would have written.

## Choice

Logits exist for a chunk of rows at a time, and what is kept does not grow with the text: KL and margins are counted in
histograms. Only the first positions and the first flips are kept one by one, so that a figure can draw them.

## What is lost

The exact values of KL and margins beyond the first positions (see `histogram`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import top_rows
from torch import Tensor

from quasar_lab.evaluation.histogram import Histogram, LogBins
from quasar_lab.evaluation.origin import Origin, origin_of
from quasar_lab.evaluation.questions import Question
from quasar_lab.evaluation.text_difference import Difference, difference, emitted, first_difference
from quasar_lab.models.decoder import Decoder, Taps
from quasar_lab.speculative.config import GREEDY
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import CheckpointError, InputError
from quasar_lab.support.numbers import whole
from quasar_lab.support.progress import track
from quasar_lab.support.result import Result, flat, left_out
from quasar_lab.support.storage import why_unreadable

__all__ = [
    "AnswerFidelity",
    "Difference",
    "Fidelity",
    "Tally",
    "TextFidelity",
    "compare",
    "difference",
    "emitted",
    "first_difference",
    "on_own_answers",
    "read_tokens",
]

CHUNK = 64
"""Rows whose logits exist at the same time."""

SERIES = 512
"""Positions, and flips, that are kept one by one."""


@dataclass(frozen=True)
class MarginHistograms(Result):
    """Margins of BF16 (top-1 − top-2 logit)."""

    all: Histogram
    """At all positions."""
    flips: Histogram
    """At flips only."""


@dataclass(frozen=True)
class Series(Result):
    """The first positions one by one, in the order of the text."""

    kl: list[float]
    margin: list[float]
    expected: list[str]
    """The likeliest token of `base`, as text."""
    got: list[str]
    """The likeliest token of the verifier, as text."""


@dataclass(frozen=True)
class Flip(Result):
    """A position where the two models have different likeliest tokens."""

    position: int
    """Counted over everything that was read."""
    margin: float
    kl: float


@dataclass(frozen=True, kw_only=True)
class Fidelity(Result):
    """How far `verifier` is from `base`, over all positions that were read."""

    tokens: int
    """Positions that were compared."""
    kl_mean: float
    """KL(base‖verifier), in nats a token."""
    kl_p99: float
    """99th percentile of the KL."""
    top1_agreement: float
    """Share of the positions with the same likeliest token."""
    flips: int
    """Positions with another likeliest token."""
    flip_margin_p50: float | None
    """Median margin of `base` at flips. None without flips."""
    margin_p50: float
    """Median margin of `base` at all positions."""
    kl_histogram: Histogram
    margin_histogram: MarginHistograms
    series: Series
    flip_margins: list[Flip]
    """The first flips, in the order of the text."""
    base: str
    """Name of the model that is held to be right."""
    verifier: str
    """Name of the model that is compared with it."""
    origin: Origin = flat()


@dataclass(frozen=True)
class AnswerFlips(Result):
    """One greedy answer of `base`, read by both models."""

    tokens: int
    flips: int
    first: Difference | None
    """The first flip. None: no flip, so the verifier would have given the same answer."""
    question_id: str | None = left_out()
    """Which question was answered, where the prompts are questions of ours."""
    category: str | None = left_out()


@dataclass(frozen=True, kw_only=True)
class AnswerFidelity(Fidelity):
    """Fidelity on greedy answers of `base`. Only the tokens of the answers count."""

    flip_rate: float
    """Share of the tokens that flip."""
    answers: list[AnswerFlips]
    """In the order of the prompts."""

    def labelled(self, questions: Sequence[Question]) -> "AnswerFidelity":
        """The same with the question of each answer. questions: those whose first turns were the prompts, in order."""
        pairs = zip(self.answers, questions, strict=True)
        answers = [replace(answer, question_id=question.id, category=question.category) for answer, question in pairs]
        return replace(self, answers=answers)


@dataclass(frozen=True)
class BlockError(Result):
    """‖difference‖ / ‖base‖ of the normed residual stream behind one block: the error as it accumulates."""

    layer: int
    error: float


@dataclass(frozen=True, kw_only=True)
class TextFidelity(Fidelity):
    """Fidelity on a text."""

    perplexity_bf16: float
    """Perplexity of `base` on the text."""
    perplexity: float
    """Perplexity of the verifier on the text."""
    per_layer: list[BlockError]
    window: int
    """Tokens of a window. Each window is read without the one before."""
    own_text: AnswerFidelity | None = left_out()
    """The same on greedy answers of `base`, where that was measured too."""


def read_tokens(model: Decoder, path: Path, skip: int = 0, tokens: int | None = None) -> list[int]:
    """Token ids skip … skip + tokens of a UTF-8 text file, no BOS added. Raises InputError when fewer than 2 are left,
    and when the file cannot be read."""
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so text cannot be measured on it")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text: {why_unreadable(error)}") from error
    ids = model.tokenizer.encode(text, special=False)[skip:]
    ids = ids if tokens is None else ids[:tokens]
    if len(ids) < 2:
        raise InputError(f"{path} has {len(ids)} tokens behind the first {skip}; accepted: at least 2")
    return ids


def compare(base: Decoder, other: Decoder, ids: Sequence[int], window: int = 512) -> TextFidelity:
    """Fidelity of `other` to `base` over windows of `ids`.

    Raises InputError unless 2 ≤ window ≤ the context of both.
    """
    room = min(base.context, other.context)
    window = whole(window, "window", f"2…{room}", 2, room)
    tally = Tally(base, other)
    errors = _BlockErrors(base, other)
    nats_base = nats_other = 0.0
    scored = 0
    starts = range(0, len(ids), window)
    for begin in track(starts, len(starts), f"Comparing {other.name} with {base.name}"):
        tokens = list(ids[begin : begin + window])
        for start, exact, rounded in _read_by_both(base, other, tokens, errors.taps()):
            tally.add(exact, rounded)
            following = torch.tensor(tokens[start + 1 : start + 1 + len(exact)], dtype=torch.int64)
            nats_base += _nats(exact, following)
            nats_other += _nats(rounded, following)
            scored += len(following)
    return TextFidelity(
        **vars(tally.fidelity()),
        perplexity_bf16=_perplexity(nats_base, scored),
        perplexity=_perplexity(nats_other, scored),
        per_layer=errors.per_layer(),
        window=window,
    )


def _nats(log_probabilities: Tensor, following: Tensor) -> float:
    """−log probability of the tokens that follow, summed. The text's last row has no token that follows."""
    return -float(log_probabilities[torch.arange(len(following)), following].double().sum())


def _perplexity(nats: float, tokens: int) -> float:
    return float(torch.tensor(nats / max(tokens, 1), dtype=torch.float64).exp())


def on_own_answers(
    base: Verifier, other: Verifier, prompts: Sequence[Prompt], max_new_tokens: int = 64, raw: bool = False
) -> AnswerFidelity:
    """Fidelity of `other` to `base` on the greedy answers of `base`. Both models read them, each answer token counts
    once.

    Raises InputError without prompts.
    """
    if not prompts:
        raise InputError("there are no prompts; accepted: one or more")
    tally = Tally(base, other)
    answers = []
    for prompt in track(prompts, len(prompts), f"{other.name} reads the answers of {base.name}"):
        trace = generate(base, prompt, max_new_tokens=max_new_tokens, raw=raw, **GREEDY)
        read = len(trace.prompt_ids) - 1
        ids = [*trace.prompt_ids, *trace.token_ids[:-1]]
        before = tally.flips
        first = None
        for start, exact, rounded in _read_by_both(base, other, ids, skip=read):
            found = tally.add(exact, rounded)
            if first is None and found:
                first = replace(found[0], position=start - read + found[0].position)
        answers.append(AnswerFlips(tokens=len(trace.token_ids), flips=tally.flips - before, first=first))
    total = tally.fidelity()
    return AnswerFidelity(**vars(total), flip_rate=total.flips / total.tokens, answers=answers)


def _read_by_both(
    base: Verifier, other: Verifier, ids: list[int], taps: "tuple[Taps, Taps] | None" = None, skip: int = 0
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(index of the first row, log-probabilities of `base`, of `other`; f32 [rows, vocab]) for every row behind the
    first `skip`. Each chunk is read by `base` first."""
    models = base, other
    caches = [model.new_cache(len(ids)) for model in models]
    if skip:
        for model, cache in zip(models, caches, strict=True):
            model.forward(ids[:skip], cache, logits="last")
    for start in range(skip, len(ids), CHUNK):
        tapped: list[dict[str, Any]] = [{"taps": tap} for tap in taps] if taps else [{}, {}]
        exact, rounded = (
            torch.log_softmax(model.forward(ids[start : start + CHUNK], cache, **options).logits.cpu(), dim=-1)
            for model, cache, options in zip(models, caches, tapped, strict=True)
        )
        yield start, exact, rounded


class Tally:
    """Counts rows of two models' log-probabilities. Its memory does not grow with their number."""

    def __init__(self, base: Verifier, other: Verifier):
        self._base = base
        self._other = other
        self.tokens = 0
        self.flips = 0
        self._nats = 0.0
        self._divergence = LogBins(-9, 2, reported=8)
        self._margins = LogBins(-3, 2, reported=4)
        self._flip_margins = LogBins(-3, 2, reported=4)
        self._series = Series(kl=[], margin=[], expected=[], got=[])
        self._flips: list[Flip] = []

    def add(self, exact: Tensor, rounded: Tensor) -> list[Difference]:
        """Takes rows f32 [M, vocab] of `base` and of `other`. Returns the flips among them, `position` being the row.

        Raises CheckpointError on a row that is no distribution.
        """
        kl = (exact.exp() * (exact - rounded)).sum(dim=-1).clamp(min=0.0)
        if not bool(kl.isfinite().all()):
            names = f"{self._base.name} or {self._other.name}"
            raise CheckpointError(f"{names} gives NaN or infinite logits; its weights are unusable")
        (values, ids, _), (_, others, _) = top_rows(exact, 2), top_rows(rounded, 1)
        margins = values[:, 0] - values[:, 1]
        expected = ids[:, 0]
        got = others[:, 0]
        flips = expected != got
        self._nats += float(kl.double().sum())
        self._divergence.add(kl)
        self._margins.add(margins)
        self._flip_margins.add(margins[flips])
        self._keep_first_positions(kl, margins, expected, got)
        rows = flips.nonzero()[:, 0].tolist()
        for row in rows[: SERIES - len(self._flips)]:
            self._flips.append(Flip(self.tokens + row, float(margins[row]), float(kl[row])))
        self.tokens += len(kl)
        self.flips += len(rows)
        return [self._difference(row, int(expected[row]), int(got[row]), float(margins[row])) for row in rows]

    def _keep_first_positions(self, kl: Tensor, margins: Tensor, expected: Tensor, got: Tensor) -> None:
        room = max(0, SERIES - self.tokens)
        self._series.kl.extend(kl[:room].tolist())
        self._series.margin.extend(margins[:room].tolist())
        self._series.expected.extend(map(self._piece, expected[:room].tolist()))
        self._series.got.extend(map(self._piece, got[:room].tolist()))

    def _difference(self, row: int, expected: int, got: int, margin: float) -> Difference:
        return Difference(
            position=row,
            expected_id=expected,
            expected_piece=self._piece(expected),
            got_id=got,
            got_piece=self._piece(got),
            margin=margin,
        )

    def _piece(self, token: int) -> str:
        tokenizer = self._base.tokenizer
        return f"<{token}>" if tokenizer is None else tokenizer.piece(token)

    def fidelity(self) -> Fidelity:
        """What was counted so far."""
        tokens = max(self.tokens, 1)
        return Fidelity(
            tokens=self.tokens,
            kl_mean=self._nats / tokens,
            kl_p99=self._divergence.quantile(0.99) or 0.0,
            top1_agreement=1 - self.flips / tokens,
            flips=self.flips,
            flip_margin_p50=self._flip_margins.quantile(0.5),
            margin_p50=self._margins.quantile(0.5) or 0.0,
            kl_histogram=self._divergence.histogram(),
            margin_histogram=MarginHistograms(all=self._margins.histogram(), flips=self._flip_margins.histogram()),
            series=Series(**{name: [*values] for name, values in vars(self._series).items()}),
            flip_margins=[*self._flips],
            base=self._base.name,
            verifier=self._other.name,
            origin=origin_of(self._other),
        )


class _BlockErrors:
    """The error that each block leaves behind, read where the next norm gives its output: taps of both models on the
    same rows."""

    def __init__(self, base: Decoder, other: Decoder):
        self._other = other
        self._exact: dict[int, Tensor] = {}
        self._squared_difference = [0.0] * base.config.layers
        self._squared_size = [0.0] * base.config.layers

    def taps(self) -> tuple[Taps, Taps]:
        """Taps for `base`, which must run first, and for `other`."""

        def keep(layer: int, projection: str, x: Tensor) -> None:
            if self._follows_block(layer, projection):
                self._exact[layer] = x

        def compare_with_kept(layer: int, projection: str, x: Tensor) -> None:
            if not self._follows_block(layer, projection):
                return
            mapping = self._other.mappings.get((layer, projection))
            if mapping is not None and projection != "lm_head":
                x = x * mapping.factors  # the factors are folded into the norm, so what flows here is x / s
            exact = self._exact.pop(layer)
            self._squared_difference[layer - 1] += float((x - exact).double().square().sum())
            self._squared_size[layer - 1] += float(exact.double().square().sum())

        return keep, compare_with_kept

    def _follows_block(self, layer: int, projection: str) -> bool:
        """Whether the input of this projection is the normed stream that the block before it left."""
        return projection == "lm_head" or (projection == "qkv_proj" and layer > 0)

    def per_layer(self) -> list[BlockError]:
        """The relative error of every block, over all rows so far."""
        sums = zip(self._squared_difference, self._squared_size, strict=True)
        return [
            BlockError(layer=layer, error=(error / size) ** 0.5 if size else 0.0)
            for layer, (error, size) in enumerate(sums)
        ]
