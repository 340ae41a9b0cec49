"""Speculative decoding: drafters, verifiers, the accept rule, the loop, and the trace that records a run.

Names load on first use: `config` and `drafters.registry`, which `--help` reads, must not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quasar_lab.speculative.config import GREEDY as GREEDY
    from quasar_lab.speculative.config import MAX_GAMMA as MAX_GAMMA
    from quasar_lab.speculative.config import GenerationConfig as GenerationConfig
    from quasar_lab.speculative.config import Sampling as Sampling
    from quasar_lab.speculative.drafters import Draft as Draft
    from quasar_lab.speculative.drafters import Drafter as Drafter
    from quasar_lab.speculative.generation import Generation as Generation
    from quasar_lab.speculative.generation import generate as generate
    from quasar_lab.speculative.generation import stream as stream
    from quasar_lab.speculative.prompt import encode_prompt as encode_prompt
    from quasar_lab.support.machine import versions as versions

_HOMES = {
    "GREEDY": "speculative.config",
    "MAX_GAMMA": "speculative.config",
    "GenerationConfig": "speculative.config",
    "Sampling": "speculative.config",
    "Draft": "speculative.drafters",
    "Drafter": "speculative.drafters",
    "Generation": "speculative.generation",
    "encode_prompt": "speculative.prompt",
    "generate": "speculative.generation",
    "stream": "speculative.generation",
    "versions": "support.machine",
}
"""Name → the module that it lives in."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"quasar_lab.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'quasar_lab.speculative' has no attribute {name!r}")
