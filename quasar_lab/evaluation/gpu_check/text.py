"""Is the text that an engine writes right, whatever its passes look like?

## Idea

A row of logits has the same bits at every width of the pass, and without overlap of kernels. Therefore greedy
speculative text equals plain text, whatever is drafted, and audited text equals BF16's.

## Choice

Each comparison is a case of its own, so that one that cannot run costs no other. Two cases cannot be exact: sampled
text has only to run to its end, and the INT8 logits have only to be near BF16's.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from quasar_kernels.agreement import equal, near
from torch import Tensor

from quasar_lab.evaluation.gpu_check.speed import without_overlap
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.audit import audited
from quasar_lab.speculative.drafters import Draft
from quasar_lab.speculative.generation import generate

PROMPT = 40
"""Tokens of the prompt."""
CAPACITY = 64
"""Rows of the KV cache that the prompt is scored in."""
WIDTHS = ([1] * 40, [5] * 8, [16, 16, 8], [17, 1, 22])
"""Ways to cut the prompt into passes."""

NamedCheck = tuple[str, Callable[[], str | None]]
"""What is checked, and a call that returns what is wrong with it, or None."""


class FaultyDrafter:
    """Drafts the true text with a wrong token at every `period`-th place, so that rounds end at every length.

    text: the true one, which follows a prompt of `prompt` tokens.
    """

    name, needs_hidden = "faulty", False

    def __init__(self, text: list[int], prompt: int, period: int, vocab: int):
        self._text, self._prompt, self._period, self._vocab = text, prompt, period, vocab
        self._held = 0

    def reset(self, ids: Sequence[int]) -> None:
        self._held = len(ids)

    def propose(self, budget: int, hidden: Any) -> Draft:
        first = self._held - self._prompt
        return Draft(
            [
                (token + (place % self._period == 0)) % self._vocab
                for place, token in enumerate(self._text[first : first + budget], first)
            ]
        )

    def commit(self, ids: Sequence[int], hidden: Any) -> None:
        self._held += len(ids)

    def rollback(self, length: int) -> None:
        self._held = length


class TextChecks:
    """The checks of a pair of verifiers of one model. tokens: the length of each text."""

    def __init__(self, bf16: Decoder, w8a8: Decoder, tokens: int):
        self._bf16, self._w8a8, self._tokens = bf16, w8a8, tokens
        self._prompt = [(37 * place + 11) % bf16.vocab for place in range(PROMPT)]
        self._plain = {verifier.name: cache(partial(self._text, verifier, drafter="none")) for verifier in (bf16, w8a8)}

    def cases(self, gammas: Sequence[int]) -> Iterator[NamedCheck]:
        """Every check; drafts have the lengths `gammas`."""
        for verifier in (self._bf16, self._w8a8):
            yield from self._cases_of(verifier, gammas)
        yield "w8a8 is near bf16", lambda: near(0.3)(self._logits(self._w8a8), self._logits(self._bf16))
        pair = audited(self._w8a8, self._bf16, 5)
        yield "w8a8+bf16: text equals bf16's", lambda: self._same(pair, self._plain["bf16"], gamma=4)

    def _cases_of(self, verifier: Decoder, gammas: Sequence[int]) -> Iterator[NamedCheck]:
        name = verifier.name
        for widths in WIDTHS:
            yield f"{name}: bits of {PROMPT} tokens in passes of {widths[0]}…", partial(self._bits, verifier, widths)
        for widths in WIDTHS[:3]:
            case = f"{name}: bits without overlap, in passes of {widths[0]}…"
            yield case, partial(self._bits_without_overlap, verifier, widths)
        for gamma in gammas:
            for period in (3, self._tokens + 1):
                case = f"{name}: text at γ {gamma}, a draft wrong every {period}"
                yield case, partial(self._drafted, verifier, gamma, period)
        yield f"{name}: text with n-gram drafts", partial(self._same, verifier, self._plain[name], gamma=4)
        yield f"{name}: a sampled text runs to its end", partial(self._sampled, verifier)

    def _logits(self, verifier: Decoder, widths: Sequence[int] = (PROMPT,)) -> Tensor:
        """Those of the prompt, in passes of these widths."""
        cache, start, parts = verifier.new_cache(CAPACITY), 0, []
        for width in widths:
            parts.append(verifier.forward(self._prompt[start : start + width], cache).logits)
            start += width
        return torch.cat(parts)

    def _text(self, verifier: Any, **options: Any) -> list[int]:
        return generate(verifier, self._prompt, max_new_tokens=self._tokens, **options).token_ids

    def _bits(self, verifier: Decoder, widths: Sequence[int]) -> str | None:
        return equal(self._logits(verifier, widths), self._logits(verifier))

    def _bits_without_overlap(self, verifier: Decoder, widths: Sequence[int]) -> str | None:
        with without_overlap(verifier) as other:
            wanted = self._logits(other, widths)
        return equal(self._logits(verifier, widths), wanted)

    def _same(self, verifier: Any, wanted: Callable[[], list[int]], **options: Any) -> str | None:
        return None if self._text(verifier, **options) == wanted() else "they differ"

    def _drafted(self, verifier: Decoder, gamma: int, period: int) -> str | None:
        wanted = self._plain[verifier.name]
        return self._same(
            verifier, wanted, drafter=FaultyDrafter(wanted(), PROMPT, period, verifier.vocab), gamma=gamma
        )

    def _sampled(self, verifier: Decoder) -> str | None:
        run = generate(
            verifier,
            self._prompt,
            gamma=4,
            max_new_tokens=self._tokens,
            temperature=0.8,
            top_k=50,
            top_p=0.9,
            seed=1,
        )
        return None if run.summary()["finish_reason"] == "length" else "it does not"
