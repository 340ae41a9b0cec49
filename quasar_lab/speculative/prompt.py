"""From a prompt to token ids: a text, messages, or ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from quasar_lab.models.tokenizer import Tokenizer
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import whole_numbers
from quasar_lab.support.progress import say_once

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""A text (one user message), token ids, or messages with "role" and "content"."""


def encode_prompt(
    verifier: Verifier, prompt: Prompt, raw: bool = False, template_args: Mapping[str, Any] | None = None
) -> list[int]:
    """Token ids of a prompt: a text (one user message, through the chat template unless `raw`), messages, or ids as
    they are. template_args: names and values for the template.

    Raises InputError on an empty prompt, one that leaves no room in the context, one of another kind, or text for a
    model without a tokenizer.
    """
    ids = _encode(verifier, prompt, raw, template_args or {})
    if not ids:
        raise InputError("the prompt is empty")
    if len(ids) > verifier.context:
        raise InputError(
            f"the prompt has {len(ids)} tokens; accepted: at most {verifier.context}, the context of this model"
        )
    if min(ids) < 0 or max(ids) >= verifier.vocab:
        raise InputError(f"the prompt has token ids outside the vocabulary; accepted: 0…{verifier.vocab - 1}")
    return ids


def _encode(verifier: Verifier, prompt: Prompt, raw: bool, template_args: Mapping[str, Any]) -> list[int]:
    if isinstance(prompt, str):
        return _encode_text(_tokenizer(verifier), prompt, raw, template_args)
    try:
        items = list(prompt)
    except TypeError as error:  # None, a number, a tensor without dimensions
        raise InputError(f"the prompt is {prompt!r}; accepted: a text, messages, or token ids") from error
    if any(isinstance(item, Mapping) for item in items):
        return _tokenizer(verifier).chat(items, template_args)  # type: ignore[arg-type]
    return whole_numbers(items, "the prompt")


def _tokenizer(verifier: Verifier) -> Tokenizer:
    if verifier.tokenizer is None:
        raise InputError("this model has no tokenizer; accepted: a prompt of token ids")
    return verifier.tokenizer


def _encode_text(tokenizer: Tokenizer, text: str, raw: bool, template_args: Mapping[str, Any]) -> list[int]:
    if not text.strip():
        raise InputError("the prompt is empty")
    if raw:
        return tokenizer.encode(text)
    if tokenizer.has_chat_template:
        return tokenizer.chat([{"role": "user", "content": text}], template_args)
    if template_args:
        raise InputError("this model has no chat template; accepted: no template arguments")
    say_once("this model has no chat template: the prompt is taken as it is, as with raw")
    return tokenizer.encode(text)
