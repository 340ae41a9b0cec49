"""The inputs of every linear for one text: what the outlier figures look at.

`capture` runs the BF16 model once with taps and keeps each linear's input whole, so that a reader can look at any layer
without running the model again. A hundred tokens cost some 40 MB on the embedded model; calibration, which must see
much more text, keeps running maxima only (`quasar_lab.quantization.calibration`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from quasar_lab.models.decoder import Decoder
from quasar_lab.models.model_config import Key
from quasar_lab.speculative.generation import Prompt, encode_prompt
from quasar_lab.support.errors import InputError

MAX_TOKENS = 256

DEFAULT_TEXT = (
    "A bakery sells rye bread for 4 euros and rolls for 60 cents. On Saturday, Nadia bought two loaves and ten rolls "
    "and paid with a 20 euro note. How much change did she get? Explain every step, then write the sum as one line of "
    "Python: print(20 - (2 * 4 + 10 * 0.6))."
)


@dataclass(frozen=True)
class Activations:
    """inputs: per (layer, projection) the linear's input, f32 [tokens, channels], before any smoothing. pieces: the
    text of each token."""

    identity: dict[str, str]
    pieces: list[str]
    inputs: dict[Key, Tensor]

    def at(self, layer: int, projection: str) -> Tensor:
        """The input of one linear, f32 [M, K]. Raises InputError on a layer the model does not have."""
        if (layer, projection) not in self.inputs:
            last = max(index for index, _ in self.inputs)
            raise InputError(f"layer {layer} has no {projection}; accepted: layers 0…{last}")
        return self.inputs[layer, projection]


def capture(model: Decoder, text: Prompt | Activations | None = None) -> Activations:
    """Runs `model` (the BF16 one) over a prompt, put through its chat template where there is one, at most 256 tokens.

    Activations captured before are returned as they are. Raises InputError on an empty text, or on a quantized model:
    its inputs are already smoothed.
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
