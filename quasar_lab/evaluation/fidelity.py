"""How far is a quantized verifier from the BF16 model? Token by token: on real text, and on BF16's own answers.

KL(BF16‖V) in nats says how different the two next-token distributions are; top-1 agreement how often both would say the
same; a *flip* is a position where they would not, and BF16's margin there (top-1 − top-2 logit) says whether it was a
close call. Perplexity says what all this costs on the text itself. Text is cut into windows without overlap, nothing is
prepended, every position counts.

**On somebody's text, or on its own?** A greedy answer is made of the model's own likeliest tokens, so `own_text` lets
BF16 answer and then shows that answer to both models, token by token. Up to the first flip both have read the same, so
*the first flip is where the other model, left to write freely, leaves BF16's text*; `first_difference` lets both write
and finds it there. What comes behind it says nothing more: the two texts are about different things by then.

**Memory.** Logits exist for a chunk of rows at a time, and what is kept does not grow with the text: KL and margins are
counted in bins of equal width on a logarithmic scale (256 to a factor of ten, so a percentile is read to within 1 %;
both spread over many powers of ten, and their tails are what matters), and only the first positions and the first flips
are kept one by one, to be drawn. What is lost: the exact order of all values, which nothing here asks for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import top_rows
from torch import Tensor

from quasar_lab.models.decoder import Decoder, Taps
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.trace import Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import CheckpointError, InputError
from quasar_lab.support.progress import track
from quasar_lab.support.storage import why_unreadable

CHUNK = 64
SERIES = 512
"""Positions, and flips, that are kept one by one."""

FINE = 256
"""Bins to a factor of ten that values are counted in; fewer are reported."""


def read_tokens(model: Decoder, path: Path, skip: int = 0, tokens: int | None = None) -> list[int]:
    """Token ids skip … skip + tokens of a UTF-8 text file, no BOS added. Raises InputError when nothing is left, or the
    file cannot be read."""
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so text cannot be measured on it")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text: {why_unreadable(error)}") from error
    ids = model.tokenizer.encode(text, special=False)[skip:]
    ids = ids if tokens is None else ids[:tokens]
    if len(ids) < 2:
        raise InputError(f"{path} has {len(ids)} tokens behind the first {skip}; accepted: at least 2")
    return ids


def compare(base: Decoder, other: Decoder, ids: Sequence[int], window: int = 512) -> dict[str, Any]:
    """KL, agreement and perplexity of `other` against `base` over windows of `ids`.

    What `Tally.table` gives, and perplexities, and per_layer: for each block, ‖difference‖ / ‖base‖ of the stream it
    leaves, normed (the error as it accumulates). Raises InputError unless 2 ≤ window ≤ the context.
    """
    if not 2 <= window <= min(base.context, other.context):
        raise InputError(f"window is {window}; accepted: 2…{min(base.context, other.context)}")
    tally, errors = Tally(base, other), _LayerErrors(base, other)
    scored, nats = 0, [0.0, 0.0]
    starts = range(0, len(ids), window)
    for begin in track(starts, len(starts), f"Comparing {other.name} with {base.name}"):
        tokens = list(ids[begin : begin + window])
        for start, exact, rounded in _both(base, other, tokens, errors.taps()):
            tally.add(exact, rounded)
            following = torch.tensor(tokens[start + 1 : start + 1 + len(exact)], dtype=torch.int64)
            rows = torch.arange(len(following))
            nats[0] -= float(exact[rows, following].double().sum())
            nats[1] -= float(rounded[rows, following].double().sum())
            scored += len(following)
    return {
        **tally.table(),
        "perplexity_bf16": _perplexity(nats[0], scored),
        "perplexity": _perplexity(nats[1], scored),
        "per_layer": errors.table(),
        "window": window,
    }


@dataclass(frozen=True)
class Difference:
    """The first token in which two greedy texts differ. position: 0 is the first token of the answer. margin: top-1 −
    top-2 logit of the model that was to be matched, there: by how much it preferred its own token."""

    position: int
    expected_id: int
    expected_piece: str
    got_id: int
    got_piece: str
    margin: float


def first_difference(
    base: Verifier, other: Verifier, prompt: Prompt, max_new_tokens: int = 128, raw: bool = False
) -> Difference | None:
    """Where the greedy answer of `other` leaves that of `base`; None when the two are the same to their end.

    Either may be an audited pair. Both draft by n-gram, which changes no token. Raises InputError as `generate` does.
    """
    expected, got = (generate(model, prompt, max_new_tokens=max_new_tokens, raw=raw) for model in (base, other))
    return difference(expected, got)


def difference(expected: Trace, got: Trace) -> Difference | None:
    """The first difference of two greedy runs on the same prompt; None where one is the other, or its beginning.

    Raises InputError on sampled runs, whose texts differ by chance, and on different prompts.
    """
    if any(run.header["sampling"]["temperature"] != 0 for run in (expected, got)):
        raise InputError("a run was sampled; accepted: two greedy runs (temperature 0)")
    if expected.header["prompt_ids"] != got.header["prompt_ids"]:
        raise InputError("the runs are of different prompts; accepted: two of the same")
    rows, theirs = emitted(expected), emitted(got)
    for position, ((token, piece, margin), (other, other_piece, _)) in enumerate(zip(rows, theirs, strict=False)):
        if token != other:
            return Difference(position, token, piece, other, other_piece, margin)
    return None


def emitted(trace: Trace) -> list[tuple[int, str, float]]:
    """(id, piece, margin) of every token of a run's text: the i-th token that a pass leaves comes from its row i."""
    records = [*([trace.prefill] if trace.prefill else []), *(trace.audits if trace.audited else trace.rounds)]
    return [
        row for record in records for row in zip(record.emitted_ids, record.emitted_pieces, record.margin, strict=False)
    ]


def own_text(
    base: Verifier, other: Verifier, prompts: Sequence[Prompt], max_new_tokens: int = 64, raw: bool = False
) -> dict[str, Any]:
    """`other` against `base` on the greedy answers of `base`: both read them, and each answer token counts once.

    What `Tally.table` gives, and flip_rate, and answers: per prompt {tokens, flips, first}, first the first flip as a
    Difference (None: no flip, so the answer of `other` is the same). Raises InputError on no prompts.
    """
    if not prompts:
        raise InputError("there are no prompts; accepted: one or more")
    tally, answers = Tally(base, other), []
    for prompt in track(prompts, len(prompts), f"{other.name} reads the answers of {base.name}"):
        trace = generate(base, prompt, max_new_tokens=max_new_tokens, raw=raw)
        read = len(trace.header["prompt_ids"]) - 1
        ids = [*trace.header["prompt_ids"], *trace.token_ids[:-1]]
        before, first = tally.flips, None
        for start, exact, rounded in _both(base, other, ids, skip=read):
            found = tally.add(exact, rounded)
            if first is None and found:
                first = asdict(replace(found[0], position=start - read + found[0].position))
        answers.append({"tokens": len(trace.token_ids), "flips": tally.flips - before, "first": first})
    table = tally.table()
    return {**table, "flip_rate": table["flips"] / table["tokens"], "answers": answers}


def _both(
    base: Verifier, other: Verifier, ids: list[int], taps: "tuple[Taps, Taps] | None" = None, skip: int = 0
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(index of the first row, log-probabilities of `base`, of `other`; f32 [rows, vocab]) for every row behind the
    first `skip`."""
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
    """Counts rows of two models' log-probabilities; memory does not grow with their number."""

    def __init__(self, base: Verifier, other: Verifier):
        self._base, self._other = base, other
        self.tokens = self.flips = 0
        self._nats = 0.0
        self._divergence, self._margins, self._flipped = LogBins(-9, 2, 8), LogBins(-3, 2, 4), LogBins(-3, 2, 4)
        self._series: dict[str, list[Any]] = {name: [] for name in ("kl", "margin", "expected", "got")}
        self._examples: list[dict[str, Any]] = []

    def add(self, exact: Tensor, rounded: Tensor) -> list[Difference]:
        """Takes rows f32 [M, vocab]; returns the flips among them, position being the row.

        Raises CheckpointError on a row that is no distribution.
        """
        kl = (exact.exp() * (exact - rounded)).sum(dim=-1).clamp(min=0.0)
        if not bool(kl.isfinite().all()):
            names = f"{self._base.name} or {self._other.name}"
            raise CheckpointError(f"{names} gives NaN or infinite logits; its weights are unusable")
        (values, ids, _), (_, others, _) = top_rows(exact, 2), top_rows(rounded, 1)
        margins, wanted, said = values[:, 0] - values[:, 1], ids[:, 0], others[:, 0]
        differs = wanted != said
        self._nats += float(kl.double().sum())
        self._divergence.add(kl)
        self._margins.add(margins)
        self._flipped.add(margins[differs])
        room = max(0, SERIES - self.tokens)
        self._series["kl"] += kl[:room].tolist()
        self._series["margin"] += margins[:room].tolist()
        self._series["expected"] += map(self._piece, wanted[:room].tolist())
        self._series["got"] += map(self._piece, said[:room].tolist())
        found = []
        for row in differs.nonzero()[:, 0].tolist():
            expected, got, margin = int(wanted[row]), int(said[row]), float(margins[row])
            found.append(Difference(row, expected, self._piece(expected), got, self._piece(got), margin))
            if len(self._examples) < SERIES:
                self._examples.append({"position": self.tokens + row, "margin": margin, "kl": float(kl[row])})
        self.tokens, self.flips = self.tokens + len(kl), self.flips + len(found)
        return found

    def _piece(self, token: int) -> str:
        tokenizer = self._base.tokenizer
        return f"<{token}>" if tokenizer is None else tokenizer.piece(token)

    def table(self) -> dict[str, Any]:
        """tokens, kl_mean, kl_p99, top1_agreement, flips; and to draw: kl_histogram, margin_histogram (of all positions
        and of flips), as `LogBins.table` has them; series: of the first positions KL, margin and both models' likeliest
        token; flip_margins: position, margin and KL of the first flips."""
        tokens = max(self.tokens, 1)
        return {
            "tokens": self.tokens,
            "kl_mean": self._nats / tokens,
            "kl_p99": self._divergence.quantile(0.99),
            "top1_agreement": 1 - self.flips / tokens,
            "flips": self.flips,
            "flip_margin_p50": self._flipped.quantile(0.5),
            "margin_p50": self._margins.quantile(0.5),
            "kl_histogram": self._divergence.table(),
            "margin_histogram": {"all": self._margins.table(), "flips": self._flipped.table()},
            "series": self._series,
            "flip_margins": self._examples,
            "base": self._base.name,
            "verifier": self._other.name,
            **{key: self._other.identity[key] for key in ("model", "device", "backend")},
        }


class LogBins:
    """Counts of values from 10^low to 10^high, in bins of equal width on a logarithmic scale; beside them, those below
    and above. reported: bins to a factor of ten that `table` gives."""

    def __init__(self, low: int, high: int, reported: int):
        self._low, self._high, self._reported = low, high, reported
        self._counts = torch.zeros((high - low) * FINE + 2, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Counts values f32 [n], all at least 0."""
        places = ((values.double().log10() - self._low) * FINE).floor().clamp(-1, len(self._counts) - 2).long() + 1
        self._counts += torch.bincount(places, minlength=len(self._counts))

    def quantile(self, share: float) -> float | None:
        """The value of rank share·n, as the middle of its bin; 0 below the lowest bin, None of nothing."""
        total = int(self._counts.sum())
        if not total:
            return None
        rank = min(int(share * total), total - 1)
        place = int((self._counts.cumsum(0) > rank).nonzero()[0])
        return 10 ** min(self._low + (place - 0.5) / FINE, self._high) if place else 0.0

    def table(self) -> dict[str, Any]:
        """edges (n + 1, in wider bins), counts (n), below, above."""
        steps = (self._high - self._low) * self._reported
        return {
            "edges": [10 ** (self._low + step / self._reported) for step in range(steps + 1)],
            "counts": self._counts[1:-1].reshape(steps, -1).sum(dim=1).tolist(),
            "below": int(self._counts[0]),
            "above": int(self._counts[-1]),
        }


def _perplexity(nats: float, tokens: int) -> float:
    return float(torch.tensor(nats / max(tokens, 1), dtype=torch.float64).exp())


class _LayerErrors:
    """Error of what each block leaves behind, as the next norm shows it: taps of both models on the same rows."""

    def __init__(self, base: Decoder, other: Decoder):
        self._models = base, other
        self._layers = base.config.layers
        self._exact: dict[int, Tensor] = {}
        self._difference, self._size = [0.0] * self._layers, [0.0] * self._layers

    def taps(self) -> tuple[Taps, Taps]:
        """Taps for `base`, which must run first, and `other`."""

        def keep(layer: int, projection: str, x: Tensor) -> None:
            if self._follows_block(layer, projection):
                self._exact[layer] = x

        def compare_with_kept(layer: int, projection: str, x: Tensor) -> None:
            if not self._follows_block(layer, projection):
                return
            mapping = self._models[1].mappings.get((layer, projection))
            if mapping is not None and projection != "lm_head":
                x = x * mapping.factors  # folded into the norm, so what flows here is x / s
            exact = self._exact.pop(layer)
            self._difference[layer - 1] += float((x - exact).double().square().sum())
            self._size[layer - 1] += float(exact.double().square().sum())

        return keep, compare_with_kept

    def _follows_block(self, layer: int, projection: str) -> bool:
        return projection == "lm_head" or (projection == "qkv_proj" and layer > 0)

    def table(self) -> list[dict[str, float]]:
        return [
            {"layer": layer, "error": (difference / size) ** 0.5 if size else 0.0}
            for layer, (difference, size) in enumerate(zip(self._difference, self._size, strict=True))
        ]
