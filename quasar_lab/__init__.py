"""quasar_lab: see, measure and learn how an INT8 verifier speeds up speculative decoding.

    import quasar_lab as ql
    model = ql.load()                       # the embedded model; or a folder, or a hub id
    w8a8  = ql.quantize(model, "w8a8")      # the same model in INT8 weights and activations
    trace = ql.generate(w8a8, "Why is the sky blue?", drafter="ngram", gamma=4)

The core (up to `benchmark` and `fidelity`) needs torch, transformers, safetensors and numpy only; `figures` and
`widgets` load on first use.
"""

import importlib
from pathlib import Path
from types import ModuleType

from quasar_lab.checkpoints import open_checkpoint
from quasar_lab.decoder import Decoder, bf16_decoder
from quasar_lab.errors import QuasarError
from quasar_lab.quantization import quantize
from quasar_lab.speculative import Generation, generate, stream
from quasar_lab.trace import Round, Trace

__version__ = "0.1.0"
__all__ = ["Decoder", "Generation", "QuasarError", "Round", "Trace", "generate", "load", "quantize", "stream"]

_LAZY = ("benchmark", "fidelity", "figures", "reports", "widgets")


def load(model: str | Path = "embedded", device: str = "cpu", backend: str = "auto") -> Decoder:
    """The BF16 model: "embedded", a folder, or a hub id. Raises CheckpointError or BackendError with the reason."""
    return bf16_decoder(open_checkpoint(model), device, backend)


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"quasar_lab.{name}")
    raise AttributeError(f"module 'quasar_lab' has no attribute {name!r}")
