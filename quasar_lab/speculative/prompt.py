"""From a prompt to token ids: a text, messages, or ids."""

from collections.abc import Sequence

from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import InputError

Prompt = str | Sequence[int] | Sequence[dict[str, str]]
"""A text (one user message), token ids, or messages with "role" and "content"."""


def encode_prompt(verifier: Verifier, prompt: Prompt, raw: bool = False) -> list[int]:
    """Token ids of a prompt: a text (one user message, through the chat template unless `raw`), messages, or ids as
    they are.

    Raises InputError on an empty prompt, one that leaves no room in the context, or text for a model without a
    tokenizer.
    """
    ids = _encode(verifier, prompt, raw)
    if not ids:
        raise InputError("the prompt is empty")
    if len(ids) > verifier.context:
        raise InputError(
            f"the prompt has {len(ids)} tokens; accepted: at most {verifier.context}, the context of this model"
        )
    if min(ids) < 0 or max(ids) >= verifier.vocab:
        raise InputError(f"the prompt has token ids outside the vocabulary; accepted: 0…{verifier.vocab - 1}")
    return ids


def _encode(verifier: Verifier, prompt: Prompt, raw: bool) -> list[int]:
    if not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt):
        return list(prompt)  # type: ignore[arg-type]
    tokenizer = verifier.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer; accepted: a prompt of token ids")
    if not isinstance(prompt, str):
        return tokenizer.chat(list(prompt))  # type: ignore[arg-type]
    if not prompt.strip():
        raise InputError("the prompt is empty")
    if raw or not tokenizer.has_chat_template:
        return tokenizer.encode(prompt)
    return tokenizer.chat([{"role": "user", "content": prompt}])
