"""Text to token ids and back, and the text piece of a single token.

## Idea

Every id in a trace carries its piece, so that a trace can be read without a tokenizer. A token is bytes, not
characters. One that holds only part of a UTF-8 character is shown as its bytes, ⟨E2 9C⟩.

## Choice

`Tokenizer` is what the rest of the package sees. Behind it stands one `Codec` per library. Most tokenizers come from
`transformers`. A family that `transformers` does not know (`families.Family.bare_sentencepiece`) is read from its
`tokenizer.model` with `sentencepiece`. No code that comes with a model is ever run, and nothing is asked: a tokenizer
whose class is such code is read from its `tokenizer.json`.

A text is what its tokens' bytes say, one after the other. So prompt and answer, put together, are what was written, and
nothing is left out where they meet. (Libraries decode an answer as if it began a text, and then drop its first space.)

## What is lost

Chat templates that want more than role and content, such as tools or images.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from quasar_lab.models.chat_template import render
from quasar_lab.models.families import FAMILIES
from quasar_lab.support.errors import CheckpointError, InputError
from quasar_lab.support.json_schema import BOOLEAN, TEXT, fields, list_of, optional, parse
from quasar_lab.support.result import Json

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a model folder that decide which ids a text or a conversation becomes."""

MESSAGE = fields({"role": TEXT, "content": TEXT})
"""One message of a conversation."""


def _template(value: Any, name: str) -> str | None:
    """One template, or several with names."""
    named = list_of(fields({"name": TEXT, "template": TEXT}))
    return named(value, name) if isinstance(value, list) else TEXT(value, name)


SETTINGS = fields(
    {"chat_template?": optional(_template), "add_bos_token?": optional(BOOLEAN), "tokenizer_class?": optional(TEXT)}
)
"""What tokenizer_config.json may say, of what is read here."""

OURS = ("messages", "add_generation_prompt")
"""Names of a chat template whose values the lab gives."""

GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""The class that reads a tokenizer.json as it is."""


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


class Tokenizer:
    """encode, decode, chat and pieces, over whichever library holds the vocabulary."""

    def __init__(self, codec: Codec):
        self._codec = codec
        self.piece = lru_cache(maxsize=None)(self._piece)

    @property
    def has_chat_template(self) -> bool:
        return self._codec.chat_template is not None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of `text`; special: with the tokens that the model's own tokenizer adds (a BOS, or none). Raises
        InputError on a text that holds half of a character."""
        return self._codec.encode(text, special)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return self._codec.decode(list(ids))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text; a special token: its name."""
        return self._codec.token_bytes(token)

    def is_special(self, token: int) -> bool:
        """Whether the token is no part of the text that people read, such as an end of sequence."""
        return self._codec.is_special(token)

    def ids_without_token(self, vocab: int) -> list[int]:
        """The ids below `vocab` that stand for nothing: rows that a model has beyond its tokens."""
        return sorted(set(range(vocab)) - self._codec.ids())

    def chat(self, messages: Sequence[Mapping[str, str]], values: Mapping[str, Any] | None = None) -> list[int]:
        """Token ids of a conversation put through the model's chat template, ready for the assistant's answer.

        values: what else the template is given, such as {"enable_thinking": False}. Raises InputError when the model
        has no template, or the template refuses the messages or fails on them.
        """
        if not self.has_chat_template:
            raise InputError("this model has no chat template; accepted: a raw prompt")
        for message in messages:
            if MESSAGE(message, ""):
                raise InputError(
                    f'message {message!r} is not understood; accepted: {{"role": …, "content": …}} with texts'
                )
        reserved = [name for name in OURS if name in (values or {})]
        if reserved:
            raise InputError(f"the template argument {reserved[0]} is not for you to give; accepted: other names")
        plain = [dict(message) for message in messages]
        return self._codec.chat({**(values or {}), "messages": plain, "add_generation_prompt": True})

    def _piece(self, token: int) -> str:
        """Text of one token; bytes that are no complete UTF-8 character as ⟨E2 9C⟩."""
        return "".join(_show(part) for part in _utf8_runs(self._codec.token_bytes(token)))


def _utf8_runs(data: bytes) -> list[str | bytes]:
    """Cuts bytes into the parts that decode and the parts that do not."""
    runs: list[str | bytes] = []
    while data:
        try:
            runs.append(data.decode())
            break
        except UnicodeDecodeError as error:
            if error.start:
                runs.append(data[: error.start].decode())
            runs.append(data[error.start : error.end])
            data = data[error.end :]
    return runs


def _show(part: str | bytes) -> str:
    return part if isinstance(part, str) else f"⟨{part.hex(' ').upper()}⟩"


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """The 256 letters that byte-level BPE vocabularies write bytes with (GPT-2): printable ones stand for
    themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    letters.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return letters


class _TransformersCodec:
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
            table = _byte_of_letter()
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


class _SentencePieceCodec:
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


def _settings(folder: Path) -> Json:
    """tokenizer_config.json, or nothing. Raises ValueError on one that is not of the form."""
    path = folder / "tokenizer_config.json"
    settings = parse(path.read_text(encoding="utf-8-sig")) if path.exists() else {}
    fault = SETTINGS(settings, path.name)
    if fault:
        raise ValueError(fault)
    return settings


def _codec_of_library(folder: Path, family: str, settings: Json) -> Codec:
    """The tokenizer as `transformers` reads it, never by code of the model."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    named = settings.get("tokenizer_class")
    if named is None:
        theirs = "auto_map" in settings or FAMILIES[family].bare_sentencepiece
    else:
        theirs = tokenizer_class_from_name(named) is None
    if theirs and not (folder / "tokenizer.json").exists():
        raise ValueError("its class is code of the model, which is never run; accepted: a folder with a tokenizer.json")
    if theirs or named in GENERIC:  # AutoTokenizer would choose the generic class too, but needs a second for that
        return _TransformersCodec(PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True))
    own = {"local_files_only": True, "trust_remote_code": False}
    return _TransformersCodec(AutoTokenizer.from_pretrained(str(folder), **own))


def load_tokenizer(folder: Path, family: str) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder, by the rule of its family (`model_type`); None when the folder has none
    (then prompts are token ids).

    Raises CheckpointError when its files cannot be read.
    """
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    try:
        settings = _settings(folder)
        if FAMILIES[family].bare_sentencepiece and (folder / "tokenizer.model").exists():
            return Tokenizer(_SentencePieceCodec(folder, settings))
        return Tokenizer(_codec_of_library(folder, family, settings))
    except Exception as error:
        if not _is_of_the_files(error):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"the tokenizer in {folder} cannot be read: {first}") from error


def _is_of_the_files(error: Exception) -> bool:
    """Whether an exception says that files are not as the libraries want them. `tokenizers` raises plain `Exception`,
    for a file of a newer format for instance."""
    known = (OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError, ImportError)
    return type(error) is Exception or isinstance(error, known)
