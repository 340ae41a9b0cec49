"""What flows through the linears on real text: streaming statistics in constant memory.

## Idea

A recipe needs, per linear, the range, the centre and the mean square of every input channel. `collect` runs the BF16
model over calibration sequences with taps and keeps running values only, so any amount of text costs the same memory.

## Choice

Every sequence starts at position 0 with the model's real first tokens. The first token is an attention sink whose
down_proj input is hundreds of times larger than any other, and statistics without it are wrong where it matters most.
Means leave position 0 out: one token of another scale is not what a channel is centred on.

Every ninth sequence is held out. Nothing is fitted to it, and choices that could hurt on other text are judged there.

## What is lost

The text is short, about ten thousand tokens, and a quantized model is best on text of its kind.

## Source

Massive activations, arXiv 2402.17762; measured on the embedded model in notebook 01.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quasar_lab.models.decoder import Decoder
from quasar_lab.models.model_config import Key
from quasar_lab.models.tokenizer import MESSAGE
from quasar_lab.support import storage
from quasar_lab.support.errors import CalibrationError, InputError
from quasar_lab.support.json_schema import TEXT, fields, list_of, numbered_lines, optional, parse
from quasar_lab.support.progress import track

WINDOW = 512
"""The longest calibration sequence, in tokens."""
TOKENS = 9728
"""Tokens to fit to, by default."""
HELD_OUT = 1216
"""Tokens held out beside them."""

DOCUMENT = fields({"text?": optional(TEXT), "messages?": optional(list_of(MESSAGE))})
"""One line of a .jsonl calibration file."""


@dataclass(frozen=True)
class Channels:
    """What is known of the input channels of a linear, each f32 [K]."""

    low: Tensor
    """The lowest x over all tokens."""
    high: Tensor
    """The highest x over all tokens."""
    mean: Tensor
    """The mean of x over all tokens but position 0 (over position 0 where there is nothing else)."""
    square: Tensor
    """The mean of x² over the same tokens."""

    @property
    def largest(self) -> Tensor:
        """max|x| over all tokens."""
        return torch.maximum(self.high, -self.low)


@dataclass
class Statistics:
    """What `collect` has seen."""

    tokens: int = 0
    """Number of calibration tokens."""
    channels: dict[Key, Channels] = field(default_factory=dict)
    """The input channels of every linear."""


@dataclass(frozen=True)
class Calibration:
    """A BF16 model with the text it was calibrated on: what a recipe has to go by."""

    decoder: Decoder
    """The BF16 model."""
    fitted: list[list[int]]
    """Token sequences from position 0 that everything is fitted to."""
    held_out: list[list[int]]
    """Token sequences from position 0 that nothing is fitted to."""
    statistics: Statistics
    """Statistics of the model over `fitted`."""


class GramPair(NamedTuple):
    """Gram matrices XᵀX f32 [K, K] of the input of one linear."""

    fitted: Tensor
    """Over the text that is fitted to."""
    held_out: Tensor
    """Over held-out text, position 0 of each sequence left out: one attention sink would outvote all other tokens of a
    decision."""


class LayerGrams(NamedTuple):
    """The Gram matrices of one layer, or of the head."""

    layer: int
    """Its number; for the head, the number of layers."""
    projections: dict[str, GramPair]
    """By projection."""


def calibrate(decoder: Decoder, path: Path | None = None) -> Calibration:
    """Reads the calibration file (ours by default) and runs the model over it. Raises CalibrationError as `sequences`
    and `collect` do."""
    fitted, held_out = split_held_out(sequences(decoder, path))
    return Calibration(decoder, fitted, held_out, collect(decoder, fitted))


def default_file() -> Path:
    """The calibration text that comes with the project."""
    return storage.packaged_folder("data/calibration") / "calibration.jsonl"


def file_hash(path: Path | None) -> str:
    """SHA-256 of a calibration file: part of the identity of a quantized model."""
    return hashlib.sha256(_read(path).encode()).hexdigest()


def _read(path: Path | None) -> str:
    try:
        return (path or default_file()).read_text(encoding="utf-8-sig")
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

    share = 1 / (others or len(token_sequences))

    def tap(layer: int, projection: str, x: Tensor) -> None:
        _check_finite(x, layer, projection)
        counted = x[1:] if others else x
        low, high = x.amin(dim=0), x.amax(dim=0)
        mean = counted.sum(dim=0) * share
        square = counted.square().sum(dim=0) * share
        before = statistics.channels.get((layer, projection))
        if before is not None:
            low, high = torch.minimum(before.low, low), torch.maximum(before.high, high)
            mean, square = before.mean + mean, before.square + square
        statistics.channels[layer, projection] = Channels(low, high, mean, square)

    for sequence in track(token_sequences, len(token_sequences), "Calibrating"):
        decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
        statistics.tokens += len(sequence)
    return statistics


def _check_finite(x: Tensor, layer: int, projection: str) -> None:
    if not bool(torch.isfinite(x).all()):
        raise CalibrationError(f"calibration gives NaN or infinite inputs at layer {layer}, {projection}")


class _GramSums:
    """A tap that sums XᵀX per projection; `skip` rows at the start of each sequence are left out."""

    def __init__(self, skip: int):
        self.skip = skip
        self.sums = dict[str, Tensor]()

    def __call__(self, layer: int, projection: str, x: Tensor) -> None:
        _check_finite(x, layer, projection)
        x = x[self.skip :]
        self.sums[projection] = self.sums.get(projection, torch.zeros(x.shape[1], x.shape[1])).addmm_(x.T, x)


def grams(decoder: Decoder, fitted: Sequence[Sequence[int]], held_out: Sequence[Sequence[int]]) -> Iterator[LayerGrams]:
    """The Gram matrices of every linear, layer by layer, and last the head's.

    A Gram matrix of a large model is hundreds of megabytes, so those of one layer are held at a time. Between layers
    the residual streams of all sequences are kept. Raises CalibrationError, naming the layer, on NaN or infinity.
    """
    streams = [[decoder.embed(sequence) for sequence in part] for part in (fitted, held_out)]
    layers = decoder.config.layers + 1
    for layer in track(range(layers), layers, "Rounding the weights, layer by layer"):
        taps = _GramSums(skip=0), _GramSums(skip=1)
        streams = [[decoder.block(x, layer, tap) for x in part] for part, tap in zip(streams, taps, strict=True)]
        over_fitted, over_held_out = (tap.sums for tap in taps)
        yield LayerGrams(layer, {name: GramPair(gram, over_held_out[name]) for name, gram in over_fitted.items()})
