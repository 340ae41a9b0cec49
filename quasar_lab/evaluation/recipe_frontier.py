"""Accuracy against bytes: every recipe on the same text, against the same BF16 model.

## Idea

A decoding step at batch 1 takes as long as reading its weights takes. So the *bytes per step* are the price of a
recipe, and KL(BF16‖V) says how much accuracy it loses. A recipe is on the frontier when no other recipe is nearer to
BF16 with as few bytes.

## Choice

One recipe at a time is held beside the BF16 model, so the memory does not grow with their number.

## What is lost

The KL over a few hundred tokens of our own prompts can rank recipes that differ by a factor. It cannot rank recipes
that differ by a tenth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from quasar_lab.evaluation.fidelity import TextFidelity, compare
from quasar_lab.evaluation.questions import ours
from quasar_lab.models.decoder import Decoder
from quasar_lab.quantization.saved_model import quantize
from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import whole
from quasar_lab.support.result import Result, flat


@dataclass(frozen=True)
class FrontierRow(Result):
    """One recipe: what it reads, and how near it is to the BF16 model."""

    recipe: str
    step_bytes: int
    """Bytes of weights that one step reads."""
    resident_bytes: int
    """Bytes that the model holds in memory."""
    step_bytes_bf16: int
    """Bytes of weights that one step of the BF16 model reads."""
    fidelity: TextFidelity = flat()


def tokens_of_questions(model: Decoder, tokens: int) -> list[int]:
    """The first `tokens` token ids of the project's own questions with their references, categories in turn. No
    calibration reads this text.

    Raises InputError on a model without a tokenizer, and when there are not so many tokens.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so text cannot be measured on it")
    by_category: dict[str, list[str]] = {}
    for question in ours():
        by_category.setdefault(question.category, []).append("\n\n".join((*question.turns, *question.reference)))
    texts = filter(None, chain.from_iterable(zip_longest(*by_category.values())))
    ids = model.tokenizer.encode("\n\n\n".join(texts), special=False)
    return ids[: whole(tokens, "tokens", f"2…{len(ids)}", 2, len(ids))]


def measure_recipes(base: Decoder, recipes: Sequence[str], ids: Sequence[int], window: int = 256) -> list[FrontierRow]:
    """Bytes and fidelity of each recipe, in the order given. A recipe is prepared on its first use.

    Raises InputError without a recipe, and with one named twice.
    """
    if not recipes or len(set(recipes)) != len(recipes):
        raise InputError(f"recipes are {list(recipes)}; accepted: one or more different ones")
    rows = []
    for recipe in recipes:
        verifier = quantize(base, recipe)
        rows.append(
            FrontierRow(
                recipe=recipe,
                step_bytes=verifier.weight_bytes,
                resident_bytes=verifier.resident_bytes,
                step_bytes_bf16=base.weight_bytes,
                fidelity=compare(base, verifier, ids, window),
            )
        )
    return rows
