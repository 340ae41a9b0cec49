"""quasar_lab: see, measure and learn how an INT8 verifier speeds up speculative decoding.

    import quasar_lab as ql
    model = ql.load()                       # the embedded model; or a folder, or a hub id
    w8a8  = ql.quantize(model, "w8a8")      # the same model in INT8 weights and activations
    trace = ql.generate(w8a8, "Why is the sky blue?", drafter="ngram", gamma=4)
    exact = ql.audited(w8a8, model)         # INT8 writes, BF16 audits: the BF16 model's own text

Names load on first use, so that `import quasar_lab` costs nothing and the core (up to `benchmark` and `fidelity`) runs
with torch, transformers, safetensors and numpy only; `figures`, `reports` and `widgets` want the `lab` extra.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quasar_lab.audit import Audited as Audited
    from quasar_lab.audit import audited as audited
    from quasar_lab.decoder import Decoder as Decoder
    from quasar_lab.decoder import load as load
    from quasar_lab.errors import QuasarError as QuasarError
    from quasar_lab.quantization import quantize as quantize
    from quasar_lab.speculative import Generation as Generation
    from quasar_lab.speculative import generate as generate
    from quasar_lab.speculative import stream as stream
    from quasar_lab.trace import Audit as Audit
    from quasar_lab.trace import Round as Round
    from quasar_lab.trace import Trace as Trace

__version__ = "0.1.0"

_HOMES = {
    "Audit": "trace",
    "Audited": "audit",
    "Decoder": "decoder",
    "Generation": "speculative",
    "QuasarError": "errors",
    "Round": "trace",
    "Trace": "trace",
    "audited": "audit",
    "generate": "speculative",
    "load": "decoder",
    "quantize": "quantization",
    "stream": "speculative",
}
_MODULES = (
    "audit_cost",
    "benchmark",
    "decode_benchmark",
    "fidelity",
    "figures",
    "frontier",
    "pass_parts",
    "prompts",
    "quantization",
    "rehearsal",
    "reports",
    "speculative",
    "widgets",
)

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"quasar_lab.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"quasar_lab.{name}")
    raise AttributeError(f"module 'quasar_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
