"""Is what an engine writes right, whatever its passes look like?

Each case is a call of its own, so that one that cannot run costs no other: a row of logits has the same bits at every
width, and without overlap; greedy speculative text equals plain text, whatever is drafted; sampled text runs to its
end; the INT8 logits are near BF16's, and audited text equals BF16's.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from gpu_check_ops import equal, near
from gpu_check_speed import without_overlap
from torch import Tensor

import quasar_lab as ql
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.drafters import Draft

PROMPT, ROOM = 40, 64
WIDTHS = ([1] * 40, [5] * 8, [16, 16, 8], [17, 1, 22])


class Oracle:
    """Drafts the true text with a wrong token at every `spoil`-th place, so that rounds end at every length."""

    name, needs_hidden = "oracle", False

    def __init__(self, text: list[int], prompt: int, spoil: int, vocab: int):
        self._text, self._prompt, self._spoil, self._vocab, self._held = text, prompt, spoil, vocab, 0

    def reset(self, ids: Sequence[int]) -> None:
        self._held = len(ids)

    def propose(self, budget: int, hidden: Any) -> Draft:
        first = self._held - self._prompt
        wanted = self._text[first : first + budget]
        places = range(first, first + len(wanted))
        wrong = [
            (token + (place % self._spoil == 0)) % self._vocab for token, place in zip(wanted, places, strict=True)
        ]
        return Draft(wrong)

    def commit(self, ids: Sequence[int], hidden: Any) -> None:
        self._held += len(ids)

    def rollback(self, length: int) -> None:
        self._held = length


def logits(verifier: Decoder, prompt: list[int], widths: Sequence[int] = (PROMPT,)) -> Tensor:
    """Of the prompt, in passes of these widths."""
    cache, start, parts = verifier.new_cache(ROOM), 0, []
    for width in widths:
        parts.append(verifier.forward(prompt[start : start + width], cache).logits)
        start += width
    return torch.cat(parts)


def all_cases(
    bf16: Decoder, w8a8: Decoder, tokens: int, gammas: Sequence[int]
) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """(what is checked, a call that returns what is wrong with it, or None)."""
    prompt = [(37 * place + 11) % bf16.vocab for place in range(PROMPT)]

    def text(verifier: Any, **options: Any) -> list[int]:
        return ql.generate(verifier, prompt, max_new_tokens=tokens, **options).token_ids

    plain = {verifier.name: cache(partial(text, verifier, drafter="none")) for verifier in (bf16, w8a8)}

    def bits(verifier: Decoder, widths: Sequence[int]) -> str | None:
        return equal(logits(verifier, prompt, widths), logits(verifier, prompt))

    def overlap(verifier: Decoder, widths: Sequence[int]) -> str | None:
        with without_overlap(verifier) as other:
            wanted = logits(other, prompt, widths)
        return equal(logits(verifier, prompt, widths), wanted)

    def same(verifier: Any, wanted: Callable[[], list[int]], **options: Any) -> str | None:
        return None if text(verifier, **options) == wanted() else "they differ"

    def drafted(verifier: Decoder, gamma: int, spoil: int) -> str | None:
        wanted = plain[verifier.name]
        return same(verifier, wanted, drafter=Oracle(wanted(), PROMPT, spoil, bf16.vocab), gamma=gamma)

    def sampled(verifier: Decoder) -> str | None:
        options = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "max_new_tokens": tokens}
        run = ql.generate(verifier, prompt, gamma=4, seed=1, **options)
        return None if run.summary()["finish_reason"] == "length" else "it does not"

    for verifier in (bf16, w8a8):
        name = verifier.name
        for widths in WIDTHS:
            yield f"{name}: bits of {PROMPT} tokens in passes of {widths[0]}…", partial(bits, verifier, widths)
        for widths in WIDTHS[:3]:
            yield f"{name}: bits without overlap, in passes of {widths[0]}…", partial(overlap, verifier, widths)
        for gamma in gammas:
            for spoil in (3, tokens + 1):
                case = f"{name}: text at γ {gamma}, a draft wrong every {spoil}"
                yield case, partial(drafted, verifier, gamma, spoil)
        yield f"{name}: text with n-gram drafts", partial(same, verifier, plain[name], gamma=4)
        yield f"{name}: a sampled text runs to its end", partial(sampled, verifier)
    yield "w8a8 is near bf16", lambda: near(0.3)(logits(w8a8, prompt), logits(bf16, prompt))
    yield "w8a8+bf16: text equals bf16's", lambda: same(ql.audited(w8a8, bf16, 5), plain["bf16"], gamma=4)
