"""No drafter: plain decoding, the baseline that every speedup is measured against."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.drafters.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register
class NoDrafter:
    """Never drafts."""

    name = "none"
    syntax = "none"
    summary = "Drafts nothing: plain decoding."
    needs_hidden = False

    @classmethod
    def from_option(cls, option: str | None) -> Self:
        if option is not None:
            raise ValueError("none takes no option")
        return cls()

    def reset(self, ids: Sequence[int]) -> None:
        pass

    def propose(self, budget: int, hidden: "Tensor | None") -> Draft:
        return Draft([])

    def commit(self, ids: Sequence[int], hidden: "Tensor | None") -> None:
        pass

    def rollback(self, length: int) -> None:
        pass
