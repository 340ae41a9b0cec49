"""What differs between tokenizer libraries: the two codecs behind `Tokenizer`.

## Idea

A codec turns text into ids and a token into bytes. Most vocabularies are read by `transformers`; one that it has no
class for is read by `sentencepiece` (`families.Family.bare_sentencepiece`).

## Choice

A token's bytes are worked out from how its vocabulary writes them: byte-level BPE has a letter for each byte, the
SentencePiece family writes a space as ▁ and a lone byte as <0x0A>.

## What is lost

Vocabularies that write bytes in other ways; none of the supported families has one.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from quasar_lab.models.chat_template import render
from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Json


class Codec(Protocol):
    """What differs between tokenizer libraries."""

    chat_template: str | None
    """The model's chat template, None without one."""

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids; special: with the tokens that the model's own tokenizer adds."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Text without special tokens."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for; a special token: its name."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether the token is no part of the text that people read."""
        ...

    def ids(self) -> set[int]:
        """Every id that has a token."""
        ...

    def chat(self, values: Json) -> list[int]:
        """Token ids of what the chat template makes of these values."""
        ...


@lru_cache(maxsize=1)
def byte_of_letter() -> dict[str, int]:
    """The 256 letters that byte-level BPE vocabularies write bytes with (GPT-2): printable ones stand for
    themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    letters.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return letters


class TransformersCodec:
    """A tokenizer that `transformers` knows."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        self.chat_template = template.get("default") if isinstance(template, dict) else template
        added = tokenizer.added_tokens_decoder
        hidden = {token for token, entry in added.items() if getattr(entry, "special", False)}
        self._special = {*tokenizer.all_special_ids, *hidden}
        self._verbatim = {*self._special, *added}  # tokens that stand for their names
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)

    def encode(self, text: str, special: bool) -> list[int]:
        _require_unicode(text)
        ids = list(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
        # A text that begins with the BOS written out has it already.
        twice = special and len(ids) > 1 and ids[0] == ids[1] == self._tokenizer.bos_token_id
        return ids[1:] if twice else ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token_bytes(self, token: int) -> bytes:
        text = self._tokenizer.convert_ids_to_tokens(token)
        if text is None:
            return f"<{token}>".encode()
        if token in self._verbatim:
            return text.encode()
        if self._byte_level:
            table = byte_of_letter()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def is_special(self, token: int) -> bool:
        return token in self._special

    def ids(self) -> set[int]:
        return {*self._tokenizer.get_vocab().values(), *self._verbatim}

    def chat(self, values: Json) -> list[int]:
        named = {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()}
        return self.encode(render(self.chat_template or "", {**named, **values}), special=False)


class SentencePieceCodec:
    """A bare `tokenizer.model` with the settings of its `tokenizer_config.json`."""

    def __init__(self, folder: Path, settings: Json):
        import sentencepiece

        self._model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        self.chat_template = settings.get("chat_template")
        self._add_bos = settings.get("add_bos_token", True)

    def encode(self, text: str, special: bool) -> list[int]:
        _require_unicode(text)
        return self._model.encode(text, add_bos=special and self._add_bos)

    def decode(self, ids: list[int]) -> str:
        return self._model.decode([token for token in ids if not self._model.is_control(token)])

    def token_bytes(self, token: int) -> bytes:
        if token >= self._model.get_piece_size():
            return f"<{token}>".encode()
        piece = self._model.id_to_piece(token)
        if self._model.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    def is_special(self, token: int) -> bool:
        return token >= self._model.get_piece_size() or self._model.is_control(token)

    def ids(self) -> set[int]:
        return set(range(self._model.get_piece_size()))

    def chat(self, values: Json) -> list[int]:
        text = render(self.chat_template or "", {"bos_token": "", "eos_token": "", **values})
        return self.encode(text, special=True)


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start + 1} of the text is half of a surrogate pair; accepted: Unicode text"
        ) from error
