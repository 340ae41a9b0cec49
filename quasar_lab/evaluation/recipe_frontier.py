"""What accuracy do how many bytes buy? Every recipe on one text, against the same BF16 model.

A step at batch 1 costs what it reads, so *bytes per step* is the price and KL(BF16‖V) is what is paid with. A recipe is
on the frontier when no other is nearer to BF16 at as few bytes. One recipe at a time is held beside the BF16 model, so
memory does not grow with their number.

What is lost: a KL over a few hundred tokens of our own prompts ranks recipes that differ by a factor, not by a tenth.
"""

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

from quasar_lab.evaluation.fidelity import compare
from quasar_lab.evaluation.questions import ours
from quasar_lab.models.decoder import Decoder
from quasar_lab.quantization.saved_model import quantize
from quasar_lab.support.errors import InputError


def own_text(model: Decoder, tokens: int) -> list[int]:
    """The first `tokens` ids of the project's prompts with their references, kinds in turn; no calibration sees them.

    Raises InputError on a model without a tokenizer, or where there are not so many.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so text cannot be measured on it")
    by_kind: dict[str, list[str]] = {}
    for question in ours():
        by_kind.setdefault(question.category, []).append("\n\n".join((*question.turns, *question.reference)))
    texts = filter(None, chain.from_iterable(zip_longest(*by_kind.values())))
    ids = model.tokenizer.encode("\n\n\n".join(texts), special=False)
    if not 2 <= tokens <= len(ids):
        raise InputError(f"tokens is {tokens}; accepted: 2…{len(ids)}")
    return ids[:tokens]


def measure(base: Decoder, recipes: Sequence[str], ids: Sequence[int], window: int = 256) -> list[dict[str, Any]]:
    """Per recipe what `fidelity.compare` finds, with step_bytes and resident_bytes; prepares recipes on first use.

    Raises InputError without a recipe, or with one named twice.
    """
    if not recipes or len(set(recipes)) != len(recipes):
        raise InputError(f"recipes are {list(recipes)}; accepted: one or more different ones")
    rows = []
    for recipe in recipes:
        verifier = quantize(base, recipe)
        rows.append(
            {
                "recipe": recipe,
                "step_bytes": verifier.weight_bytes,
                "resident_bytes": verifier.resident_bytes,
                "step_bytes_bf16": base.weight_bytes,
                **compare(base, verifier, ids, window),
            }
        )
    return rows
