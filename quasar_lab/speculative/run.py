"""The state of one run, which the loop and the audits share."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quasar_lab.models.decoder import Output
from quasar_lab.speculative.config import Sampling
from quasar_lab.speculative.drafters import Draft, Drafter
from quasar_lab.speculative.trace_recorder import TraceRecorder
from quasar_lab.speculative.verification import Verification, verify
from quasar_lab.speculative.written_text import WrittenText


@dataclass
class Run:
    """What a run is made of, and how far it has come."""

    verifier: str  # its name, for errors
    prompt_ids: list[int]
    text: WrittenText  # what has been written behind the prompt
    drafter: Drafter
    sampling: Sampling
    recorder: TraceRecorder  # writes the trace
    generator: torch.Generator  # every draw of the run comes from it
    cache: Any = None  # the verifier's, from the prefill on
    hidden: Tensor | None = None  # f32 [1, hidden] of the last verified row, where the drafter wants it
    cancelled: bool = False  # set from any thread

    @property
    def going_on(self) -> bool:
        """Whether there is another round."""
        return self.text.finish is None and not self.cancelled

    @property
    def position(self) -> int:
        """Index in prompt + text of the next token."""
        return len(self.prompt_ids) + len(self.text.ids)

    def verify(self, out: Output, draft: Draft, position: int) -> Verification:
        """What a pass over `draft` says, and which drafts are kept; position: of the token that its first row is
        about."""
        text: list[int] = []
        if self.sampling.repetition_penalty != 1:  # nothing else asks for it
            text = [*self.prompt_ids, *self.text.ids[: position - len(self.prompt_ids)]]
        return verify(out, draft, self.sampling, self.generator, self.verifier, text)

    def emit(self, ids: list[int], hidden: Tensor | None) -> list[int]:
        """Appends tokens up to the end of the text, if it lies among them; returns those appended.

        hidden: f32 [len(ids), hidden] of the rows that predicted them.
        """
        emitted = self.text.write(ids)
        self.drafter.commit(emitted, None if hidden is None else hidden[: len(emitted)])
        return emitted

    def take_back(self, length: int) -> None:
        """Forgets every written token from `length` on."""
        self.text.take_back(length)
        self.drafter.rollback(self.position)
