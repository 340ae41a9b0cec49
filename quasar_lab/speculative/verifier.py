"""What every verifier offers: it scores tokens, and can forget them again.

The loop (`speculative`), replays and benchmarks know a verifier by these names only. So a decoder in BF16 or INT8, a
pair of them (`audit`) and a toy of twelve tokens in the tests are the same thing to them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from quasar_lab.models.decoder import Output
from quasar_lab.models.tokenizer import Tokenizer


class Verifier(Protocol):
    """Whatever can score tokens: a Decoder, or something that behaves like one. `identity`: model, checksum, recipe,
    device, backend."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def context(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def identity(self) -> dict[str, str]: ...
    def new_cache(self, capacity: int | None = None) -> Any: ...
    def rollback(self, cache: Any, length: int) -> None: ...
    def forward(self, ids: Sequence[int], cache: Any, *, logits: str = "all", hidden: bool = False) -> Output: ...


class Adopting(Verifier, Protocol):
    """A verifier whose cache can take over rows that the BF16 model computed."""

    def adopt(self, cache: Any, other: Any, start: int, stop: int) -> None: ...
