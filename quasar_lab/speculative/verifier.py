"""What every verifier offers: it scores tokens, and it can forget them again.

## Idea

The loop, replays and benchmarks know a verifier by the names in this file only. A decoder in BF16, a decoder in INT8, a
pair of the two (`audit`) and a toy of twelve tokens in the tests are therefore the same thing to them.

## Choice

A verifier says what it is made of. `auditor` is the verifier that checks its text, or None. `passes` are the verifiers
whose passes it is made of. So nobody has to take a verifier's name apart, and nobody has to ask for its class.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from quasar_lab.models.decoder import Output
from quasar_lab.models.generation_defaults import GenerationDefaults
from quasar_lab.models.tokenizer import Tokenizer


class Verifier(Protocol):
    """Whatever can score tokens: a Decoder, or something that behaves like one."""

    @property
    def name(self) -> str:
        """How commands, traces and tables call it: `bf16`, a recipe, or `w8a8+bf16`."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where the model has none; prompts are then token ids."""

    @property
    def context(self) -> int:
        """The most tokens that it can read."""

    @property
    def vocab(self) -> int:
        """The number of token ids."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""

    @property
    def generation_defaults(self) -> GenerationDefaults:
        """Options of a run that hold where the caller says nothing."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one pass of a round reads."""

    @property
    def identity(self) -> dict[str, str]:
        """model, checksum, recipe, device, backend: what a trace says of it."""

    @property
    def auditor(self) -> "Verifier | None":
        """The verifier that audits its text; None where its text is its own."""

    @property
    def passes(self) -> "tuple[Verifier, ...]":
        """The verifiers that its passes are made by. A decoder: itself. An audited pair: the exact one, then the fast
        one."""

    def new_cache(self, capacity: int | None = None) -> Any:
        """An empty cache of so many rows (default: the whole context)."""

    def rollback(self, cache: Any, length: int) -> None:
        """Forgets every row of `cache` from `length` on."""

    def forward(self, ids: Sequence[int], cache: Any, *, logits: str = "all", hidden: bool = False) -> Output:
        """One pass over `ids` behind the rows of `cache`, which it extends."""


class Adopting(Verifier, Protocol):
    """A verifier whose cache can take over rows that the BF16 model computed."""

    def adopt(self, cache: Any, other: Any, start: int, stop: int) -> None:
        """Rows start…stop − 1 of `other`, a cache of the BF16 model, become rows of `cache`."""
