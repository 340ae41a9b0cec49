"""Text to token ids and back, and the text piece of a single token.

## Idea

Every id in a trace carries its piece, so that a trace can be read without a tokenizer. A token is bytes, not
characters. One that holds only part of a UTF-8 character is shown as its bytes, ⟨E2 9C⟩.

## Choice

`Tokenizer` is what the rest of the package sees. Behind it stands one `Codec` per library. Most tokenizers come from
`transformers`. A family that `transformers` does not know (`families.Family.bare_sentencepiece`) is read from its
`tokenizer.model` with `sentencepiece`, without running the code that comes with it.

## What is lost

Chat templates that want more than role and content, such as tools or images.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

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
        """The bytes that one token stands for."""
        ...

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer."""
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

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation put through the model's chat template, ready for the assistant's answer.

        Raises InputError when the model has no template, or the template refuses the messages or fails on them.
        """
        if not self.has_chat_template:
            raise InputError("this model has no chat template; accepted: a raw prompt")
        for message in messages:
            if MESSAGE(message, ""):
                raise InputError(
                    f'message {message!r} is not understood; accepted: {{"role": …, "content": …}} with texts'
                )
        return self._codec.chat(messages)

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
        self.chat_template = tokenizer.chat_template
        self._special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)

    def encode(self, text: str, special: bool) -> list[int]:
        _require_unicode(text)
        return list(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token_bytes(self, token: int) -> bytes:
        text = self._tokenizer.convert_ids_to_tokens(token)
        if text is None:
            return f"<{token}>".encode()
        if token in self._special:
            return text.encode()
        if self._byte_level:
            table = _byte_of_letter()
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        with _rendering():
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.encode(text, special=False)


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

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        from transformers.utils.chat_template_utils import render_jinja_template

        with _rendering():
            rendered = render_jinja_template(
                [messages], chat_template=self.chat_template, add_generation_prompt=True, bos_token="", eos_token=""
            )[0]
        return self.encode(rendered[0], special=True)


@contextmanager
def _rendering() -> Iterator[None]:
    """A chat template is a program that came with the model: whatever it raises becomes one InputError."""
    from jinja2.exceptions import TemplateError

    faults = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
    try:
        yield
    except (*faults, MemoryError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"the model's chat template refuses these messages: {reason}") from error


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
    settings = parse(path.read_text(encoding="utf-8")) if path.exists() else {}
    fault = SETTINGS(settings, path.name)
    if fault:
        raise ValueError(fault)
    return settings


def _tokenizer_class(settings: Json) -> Any:
    """The generic class where the folder names it. AutoTokenizer would choose it too, but needs a second for that."""
    if settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast"):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


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
        library = _tokenizer_class(settings)
        return Tokenizer(_TransformersCodec(library.from_pretrained(str(folder), local_files_only=True)))
    except (OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"the tokenizer in {folder} cannot be read: {first}") from error
