"""The inputs of every linear for one text, which the outlier figures look at.

## Idea

`capture` runs the BF16 model once over a text, with taps, and keeps the input of each linear. A reader can then look at
any layer without running the model again.

## Choice

Inputs are kept whole, because a figure shows single tokens. A hundred tokens cost some 40 MB on the embedded model.
Calibration must see much more text and keeps only running maxima (`quasar_lab.quantization.calibration`).

## What is lost

Tokens after the first 256 are not looked at.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_lab.models.decoder import Decoder
from quasar_lab.models.model_config import Key
from quasar_lab.speculative.generation import Prompt, encode_prompt
from quasar_lab.support.errors import InputError

MAX_TOKENS = 256
"""Longest text that `capture` keeps."""

DEFAULT_TEXT = (
    "A bakery sells rye bread for 4 euros and rolls for 60 cents. On Saturday, Nadia bought two loaves and ten rolls "
    "and paid with a 20 euro note. How much change did she get? Explain every step, then write the sum as one line of "
    "Python: print(20 - (2 * 4 + 10 * 0.6))."
)


@dataclass(frozen=True)
class Activations:
    """The inputs of every linear of a model for one text."""

    identity: dict[str, str]
    """The model, device and backend that the inputs come from."""

    pieces: list[str]
    """The text of each token."""

    inputs: dict[Key, Tensor]
    """The input of the linear of each (layer, projection), f32 [tokens, channels], before any smoothing."""

    def at(self, layer: int, projection: str) -> Tensor:
        """The input of one linear, f32 [M, K]. Raises InputError on a layer the model does not have."""
        if (layer, projection) not in self.inputs:
            last = max(index for index, _ in self.inputs)
            raise InputError(f"layer {layer} has no {projection}; accepted: layers 0…{last}")
        return self.inputs[layer, projection]


def capture(model: Decoder, text: Prompt | Activations | None = None) -> Activations:
    """The inputs of all linears of `model`, which must be the BF16 model, for a prompt of at most 256 tokens.

    The prompt goes through the model's chat template where there is one. Activations that were captured before are
    returned as they are. Raises InputError on an empty text, and on a quantized model, whose inputs are already
    smoothed.
    """
    if isinstance(text, Activations):
        return text
    if model.name != "bf16":
        raise InputError(f"activations of {model.name!r} are already smoothed and rounded; accepted: the BF16 model")
    ids = encode_prompt(model, DEFAULT_TEXT if text is None else text)[:MAX_TOKENS]
    inputs: dict[Key, Tensor] = {}

    def tap(layer: int, projection: str, x: Tensor) -> None:
        if projection != "lm_head":
            inputs[layer, projection] = x.detach().to("cpu", torch.float32)

    model.forward(ids, model.new_cache(len(ids)), logits="last", taps=tap)
    tokenizer = model.tokenizer
    pieces = [f"<{token}>" if tokenizer is None else tokenizer.piece(token) for token in ids]
    return Activations(model.identity, pieces, inputs)
