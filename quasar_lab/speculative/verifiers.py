"""Verifiers by name: `bf16`, a recipe of it, or a recipe that the BF16 model audits (`w8a8+bf16`).

This is the one place that knows how such a name is put together. The command line checks names with `check_name` before
a model is loaded, and `verifier` makes what they name.
"""

from quasar_lab.models.decoder import Decoder
from quasar_lab.quantization.recipes import parse_recipe
from quasar_lab.quantization.saved_model import quantize
from quasar_lab.speculative.audit import Audited, audited
from quasar_lab.support.errors import InputError, NotInThisVersion

BF16 = "bf16"
AUDITED_BY_BF16 = f"+{BF16}"


def verifier(model: Decoder, name: str) -> Decoder | Audited:
    """The verifier of that name, made from the BF16 model: the model itself, a recipe of it (prepared with progress
    when it is new), or a recipe that it audits.

    Raises NotInThisVersion, InputError or RecipeError on a name that is not accepted.
    """
    check_name(name)
    if name == BF16:
        return model
    recipe = name.removesuffix(AUDITED_BY_BF16)
    fast = quantize(model, recipe)
    return fast if recipe == name else audited(fast, model)


def one_pass_verifier(model: Decoder, name: str) -> Decoder:
    """As `verifier`, for measurements of single passes: two verifiers that take turns are refused."""
    check_name(name, one_pass=True)
    return model if name == BF16 else quantize(model, name)


def check_name(name: str, one_pass: bool = False) -> None:
    """Refuses names that `verifier` would refuse; one_pass: also those of two verifiers that take turns."""
    if name.partition(":")[0] == "pruned":
        raise NotInThisVersion(f"verifier {name}")
    recipe = name.removesuffix(AUDITED_BY_BF16)
    if "+" in recipe or (recipe == BF16 and name != recipe):
        raise InputError(
            f"verifier {name!r} is no pair of a recipe and its auditor; accepted: a recipe, as in w8a8+bf16"
        )
    if recipe != BF16:
        parse_recipe(recipe)
    if one_pass and recipe != name:
        raise InputError(
            f"verifier {name} is {recipe} and {BF16} taking turns: its passes are theirs and its text is {BF16}'s; "
            "accepted here: one of the two"
        )
