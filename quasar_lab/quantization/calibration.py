"""What flows through the linears on real text: streaming statistics in constant memory.

Smoothing needs, per linear, the range, centre and mean square of every input channel. `collect` runs the BF16 model
over calibration sequences with taps and keeps running values only, so any amount of text costs the same memory. Every
sequence starts at position 0 with the model's real first tokens: the first token is an attention sink whose down_proj
input is hundreds of times larger than any other, and statistics without it are wrong where it matters most.

Source of the observation: massive activations, arXiv 2402.17762; measured on the embedded model in notebook 01.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from quasar_lab.models.checkpoint import Key
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.tokenizer import MESSAGE
from quasar_lab.support import storage
from quasar_lab.support.errors import CalibrationError, InputError
from quasar_lab.support.json_schema import TEXT, fields, list_of, numbered_lines, optional, parse
from quasar_lab.support.progress import track

WINDOW = 512
TOKENS = 9728
HELD_OUT = 1216

DOCUMENT = fields({"text?": optional(TEXT), "messages?": optional(list_of(MESSAGE))})


@dataclass(frozen=True)
class Channels:
    """Per input channel of a linear, each f32 [K]: lowest and highest x over all tokens; mean of x and of x² over all
    but position 0 (over position 0 where there is nothing else)."""

    low: Tensor
    high: Tensor
    mean: Tensor
    square: Tensor

    @property
    def largest(self) -> Tensor:
        """max|x| over all tokens."""
        return torch.maximum(self.high, -self.low)


@dataclass
class Statistics:
    """What `collect` has seen: the channels of every linear's input."""

    tokens: int = 0
    channels: dict[Key, Channels] = field(default_factory=dict)


def default_file() -> Path:
    """The calibration text that comes with the project."""
    return storage.packaged_folder("data/calibration") / "calibration.jsonl"


def file_hash(path: Path | None) -> str:
    """SHA-256 of a calibration file: part of the identity of a quantized model."""
    return hashlib.sha256(_read(path).encode()).hexdigest()


def _read(path: Path | None) -> str:
    try:
        return (path or default_file()).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CalibrationError(
            f"calibration file {path} is missing; accepted: a UTF-8 text, or JSON lines with text or messages"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"calibration file {path} cannot be read as UTF-8 text: {error}") from error


def sequences(decoder: Decoder, path: Path | None = None, tokens: int = TOKENS + HELD_OUT) -> list[list[int]]:
    """Calibration sequences of at most 512 tokens, together about `tokens`.

    A .jsonl file holds one document a line, {"text": …} or {"messages": […]} (put through the chat template where there
    is one); any other file is one text, cut into windows. Raises CalibrationError on a file that gives no tokens.
    """
    tokenizer = decoder.tokenizer
    if tokenizer is None:
        raise CalibrationError("this model has no tokenizer; accepted: calibration sequences as token ids")
    text = _read(path)
    window = min(WINDOW, decoder.context)
    if (path or default_file()).suffix == ".jsonl":
        documents = [_encode_document(decoder, line, number)[:window] for number, line in numbered_lines(text)]
    else:
        ids = tokenizer.encode(text)
        documents = [ids[start : start + window] for start in range(0, len(ids), window)]
    chosen: list[list[int]] = []
    for document in documents:
        if document and sum(map(len, chosen)) < tokens:
            chosen.append(document)
    if not chosen:
        raise CalibrationError(f"calibration file {path} holds no text")
    return chosen


def _encode_document(decoder: Decoder, line: str, number: int) -> list[int]:
    assert decoder.tokenizer is not None
    where = f"line {number} of the calibration file"
    try:
        document = parse(line)
    except ValueError as error:
        raise CalibrationError(f"{where} is not JSON: {error}") from error
    fault = DOCUMENT(document, "")
    if fault:
        raise CalibrationError(f'{where} is no document with "text" or "messages": {fault}')
    messages, text = document.get("messages"), document.get("text")
    if messages and decoder.tokenizer.has_chat_template:
        try:
            return decoder.tokenizer.chat(messages)
        except InputError as error:
            raise CalibrationError(f"{where}: {error}") from error
    if messages:
        text = "\n".join(message["content"] for message in messages)
    if text is None:
        raise CalibrationError(f'{where} has neither "text" nor "messages"')
    return decoder.tokenizer.encode(text)


def split_held_out(all_sequences: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """(fitting, held-out): every ninth sequence is held out for the error table; with too few, both are the same."""
    held = [sequence for place, sequence in enumerate(all_sequences) if place % 9 == 8]
    fitted = [sequence for place, sequence in enumerate(all_sequences) if place % 9 != 8]
    return (fitted, held) if held else (list(all_sequences), list(all_sequences))


def collect(decoder: Decoder, token_sequences: Sequence[Sequence[int]]) -> Statistics:
    """Statistics of `decoder` over sequences that each start at position 0. Memory does not grow with the text.

    Raises CalibrationError, naming the layer, when an activation is NaN or infinite.
    """
    statistics = Statistics()
    others = sum(len(sequence) - 1 for sequence in token_sequences)

    def tap(layer: int, projection: str, x: Tensor) -> None:
        _check_finite(x, layer, projection)
        key, counted, share = (layer, projection), x[1:] if others else x, 1 / (others or len(token_sequences))
        low, high, mean, square = x.amin(dim=0), x.amax(dim=0), counted.sum(dim=0) * share, counted.square().sum(dim=0)
        square *= share
        before = statistics.channels.get(key)
        if before is not None:
            low, high = torch.minimum(before.low, low), torch.maximum(before.high, high)
            mean, square = before.mean + mean, before.square + square
        statistics.channels[key] = Channels(low, high, mean, square)

    for sequence in track(token_sequences, len(token_sequences), "Calibrating"):
        decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
        statistics.tokens += len(sequence)
    return statistics


def _check_finite(x: Tensor, layer: int, projection: str) -> None:
    if not bool(torch.isfinite(x).all()):
        raise CalibrationError(f"calibration gives NaN or infinite inputs at layer {layer}, {projection}")


class _Grams:
    """A tap that sums XᵀX per projection; `skip` rows at the start of each sequence are left out."""

    def __init__(self, skip: int):
        self.skip, self.sums = skip, dict[str, Tensor]()

    def __call__(self, layer: int, projection: str, x: Tensor) -> None:
        _check_finite(x, layer, projection)
        x = x[self.skip :]
        self.sums[projection] = self.sums.get(projection, torch.zeros(x.shape[1], x.shape[1])).addmm_(x.T, x)


def grams(
    decoder: Decoder, fitted: Sequence[Sequence[int]], held_out: Sequence[Sequence[int]]
) -> Iterator[tuple[int, dict[str, tuple[Tensor, Tensor]]]]:
    """Layer by layer, and last the head: projection → (XᵀX over fitted text, the same over held-out text), f32 [K, K].
    Position 0 is left out of the second: one attention sink would outvote all other tokens of a decision.

    A Gram matrix of a large model is hundreds of megabytes, so there are those of one layer at a time; between layers
    the residual streams of all sequences are kept. Raises CalibrationError, naming the layer, on NaN or infinity.
    """
    streams = [[decoder.embed(sequence) for sequence in part] for part in (fitted, held_out)]
    layers = decoder.config.layers + 1
    for layer in track(range(layers), layers, "Rounding the weights, layer by layer"):
        taps = _Grams(skip=0), _Grams(skip=1)
        streams = [[decoder.block(x, layer, tap) for x in part] for part, tap in zip(streams, taps, strict=True)]
        yield layer, {projection: (gram, taps[1].sums[projection]) for projection, gram in taps[0].sums.items()}
