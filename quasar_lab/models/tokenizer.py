"""Text to token ids and back, and the text piece of a single token.

## Idea

Every id in a trace carries its piece, so that a trace can be read without a tokenizer. A token is bytes, not
characters. One that holds only part of a UTF-8 character is shown as its bytes, ⟨E2 9C⟩.

## Choice

`Tokenizer` is what the rest of the package sees. Behind it stands one codec per library (`tokenizer_codecs`). No code
that comes with a model is ever run, and nothing is asked: a tokenizer whose class is such code is read from its
`tokenizer.json`.

A text is what its tokens' bytes say, one after the other. So prompt and answer, put together, are what was written, and
nothing is left out where they meet. (Libraries decode an answer as if it began a text, and then drop its first space.)

## What is lost

Chat templates that want more than role and content, such as tools or images.
"""

import codecs
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from quasar_lab.models.families import FAMILIES
from quasar_lab.models.tokenizer_codecs import Codec, SentencePieceCodec, TransformersCodec
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
        return TransformersCodec(PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True))
    own = {"local_files_only": True, "trust_remote_code": False}
    return TransformersCodec(AutoTokenizer.from_pretrained(str(folder), **own))


@contextmanager
def _without_marks(folder: Path) -> Iterator[Path]:
    """The folder, or a copy of its files where one begins with a byte order mark, which the libraries refuse."""
    files = [path for name in ("config.json", *FILES) if (path := folder / name).is_file()]
    texts = [path for path in files if path.suffix != ".model"]
    if not any(_begins_with_mark(path) for path in texts):
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        for path in files:
            (Path(copy) / path.name).write_bytes(path.read_bytes().removeprefix(codecs.BOM_UTF8))
        yield Path(copy)


def _begins_with_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


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
            return Tokenizer(SentencePieceCodec(folder, settings))
        with _without_marks(folder) as readable:
            return Tokenizer(_codec_of_library(readable, family, settings))
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
