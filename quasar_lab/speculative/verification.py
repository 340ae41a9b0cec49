"""What a verify pass says, and what the accept rule makes of it, wherever the pass ran."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quasar_kernels.threads import single_torch_thread
from torch import Generator

from quasar_lab.models.decoder import Output
from quasar_lab.speculative.config import Sampling
from quasar_lab.speculative.device_rejection import accept_on_device
from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.rejection import Acceptance, accept
from quasar_lab.speculative.sampling import penalised
from quasar_lab.speculative.verified_rows import VerifiedRows, read_rows
from quasar_lab.support.errors import CheckpointError


@dataclass(frozen=True)
class Verification:
    """A pass over drafts, read and judged."""

    rows: VerifiedRows  # what the pass says
    acceptance: Acceptance  # which drafts are kept, and what follows them
    likeliest: list[list[tuple[int, float]]]  # per row the likeliest (token, target probability), for the trace
    margins: list[float]  # per row the first logit less the second


def verify(
    out: Output, draft: Draft, sampling: Sampling, generator: Generator, verifier: str, text: Sequence[int]
) -> Verification:
    """Reads the pass `out` over a draft and applies the accept rule. text: prompt and answer so far, for the repetition
    penalty.

    Raises CheckpointError, naming the verifier, when its logits are NaN or infinite.
    """
    rows: VerifiedRows
    with single_torch_thread():
        if sampling.repetition_penalty != 1:
            # Which logits change depends on ids that only the host has: the rows of a device are judged here, too.
            changed = penalised(out.logits.cpu(), sampling.repetition_penalty, text, draft.ids)
            out = replace(out, logits=changed, top=None)
        if out.top is None:
            rows = read_rows(out.logits, sampling)
            _check_finite(rows, verifier)
            acceptance = accept(rows, draft, sampling, generator)
        else:
            rows, acceptance = accept_on_device(out.logits, out.top, draft, sampling, generator)
            _check_finite(rows, verifier)
        return Verification(rows, acceptance, rows.likeliest(), rows.margins())


def _check_finite(rows: VerifiedRows, verifier: str) -> None:
    if not rows.finite:
        raise CheckpointError(f"{verifier} gives NaN or infinite logits; its weights are unusable")
