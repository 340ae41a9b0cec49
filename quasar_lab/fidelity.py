"""How far is a quantized verifier from the BF16 model? Token by token, on real text.

KL(BF16‖V) in nats says how different the two next-token distributions are; top-1 agreement how often both would say the
same; a *flip* is a position where they would not, and BF16's margin there (top-1 − top-2 logit) says whether it was a
close call. Perplexity says what all this costs on the text itself. Text is cut into windows without overlap, nothing is
prepended, every position counts; logits exist for a chunk of rows at a time, so memory does not grow with the text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quasar_lab.decoder import Decoder, Taps
from quasar_lab.errors import InputError
from quasar_lab.progress import track
from quasar_lab.storage import why_unreadable

CHUNK = 64


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

    per_layer: for each block, ‖difference‖ / ‖base‖ of the stream it leaves, normed (the error as it accumulates).
    flip_margins: position, BF16 margin and KL of every flip. Raises InputError unless 2 ≤ window ≤ the context.
    """
    if not 2 <= window <= min(base.context, other.context):
        raise InputError(f"window is {window}; accepted: 2…{min(base.context, other.context)}")
    divergence: list[Tensor] = []
    flips: list[dict[str, Any]] = []
    positions, scored, nats = 0, 0, [0.0, 0.0]
    windows = [list(ids[start : start + window]) for start in range(0, len(ids), window)]
    errors = _LayerErrors(base, other)
    for number, tokens in enumerate(track(windows, len(windows), f"Comparing {other.name} with {base.name}")):
        caches = base.new_cache(len(tokens)), other.new_cache(len(tokens))
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            exact, rounded = (
                torch.log_softmax(model.forward(chunk, cache, taps=tap).logits, dim=-1)
                for model, cache, tap in zip((base, other), caches, errors.taps(), strict=True)
            )
            kl = (exact.exp() * (exact - rounded)).sum(dim=-1).clamp(min=0.0)
            divergence.append(kl)
            best, second = exact.topk(2, dim=-1).values.unbind(dim=-1)
            differs = (exact.argmax(dim=-1) != rounded.argmax(dim=-1)).nonzero()[:, 0].tolist()
            flips += [
                {
                    "position": number * window + start + row,
                    "margin": float(best[row] - second[row]),
                    "kl": float(kl[row]),
                }
                for row in differs
            ]
            following = torch.tensor(tokens[start + 1 : start + 1 + len(chunk)], dtype=torch.int64)
            rows = torch.arange(len(following))
            nats[0] -= float(exact[rows, following].double().sum())
            nats[1] -= float(rounded[rows, following].double().sum())
            positions, scored = positions + len(chunk), scored + len(following)
    kl = torch.cat(divergence)
    return {
        "tokens": positions,
        "kl_mean": float(kl.double().mean()),
        "kl_p99": float(kl.sort().values[min(int(0.99 * positions), positions - 1)]),
        "top1_agreement": 1 - len(flips) / positions,
        "flips": len(flips),
        "perplexity_bf16": _perplexity(nats[0], scored),
        "perplexity": _perplexity(nats[1], scored),
        "per_layer": errors.table(),
        "flip_margins": flips,
        "verifier": other.name,
        "window": window,
        **{key: other.identity[key] for key in ("model", "device", "backend")},
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
