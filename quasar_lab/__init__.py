"""quasar_lab: see, measure and learn how an INT8 verifier speeds up speculative decoding.

    import quasar_lab as ql
    model = ql.load()                       # the embedded model; or a folder, or a hub id
    w8a8  = ql.quantize(model, "w8a8")      # the same model in INT8 weights and activations
    trace = ql.generate(w8a8, "Copy this list: …", drafter="ngram", gamma=4)
    exact = ql.audited(w8a8, model)         # INT8 writes, BF16 audits: the BF16 model's own text

Names load on first use, so that `import quasar_lab` costs nothing and the core (up to `benchmark` and `fidelity`) runs
with torch, transformers, safetensors and numpy only; `figures`, `reports` and `widgets` want the `lab` extra.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quasar_lab.models.decoder import Decoder as Decoder
    from quasar_lab.models.decoder import load as load
    from quasar_lab.quantization.saved_model import quantize as quantize
    from quasar_lab.speculative.audit import Audited as Audited
    from quasar_lab.speculative.audit import audited as audited
    from quasar_lab.speculative.config import GREEDY as GREEDY
    from quasar_lab.speculative.generation import Generation as Generation
    from quasar_lab.speculative.generation import generate as generate
    from quasar_lab.speculative.generation import stream as stream
    from quasar_lab.speculative.trace import Audit as Audit
    from quasar_lab.speculative.trace import Round as Round
    from quasar_lab.speculative.trace import Trace as Trace
    from quasar_lab.speculative.verifiers import verifier as verifier
    from quasar_lab.support.errors import QuasarError as QuasarError

__version__ = "0.1.0"

_HOMES = {
    "Audit": "speculative.trace",
    "Audited": "speculative.audit",
    "Decoder": "models.decoder",
    "GREEDY": "speculative.config",
    "Generation": "speculative.generation",
    "QuasarError": "support.errors",
    "Round": "speculative.trace",
    "Trace": "speculative.trace",
    "audited": "speculative.audit",
    "generate": "speculative.generation",
    "load": "models.decoder",
    "quantize": "quantization.saved_model",
    "stream": "speculative.generation",
    "verifier": "speculative.verifiers",
}
_MODULES = {
    "audit_cost": "evaluation.audit_cost",
    "benchmark": "evaluation.pass_time",
    "decode_benchmark": "evaluation.decode_speed",
    "fidelity": "evaluation.fidelity",
    "findings": "evaluation.findings",
    "figures": "figures",
    "frontier": "evaluation.recipe_frontier",
    "pass_parts": "evaluation.pass_profile",
    "prompts": "evaluation.questions",
    "quantization": "quantization",
    "rehearsal": "evaluation.draft_simulation",
    "replay": "evaluation.rescore",
    "reports": "reports",
    "speculative": "speculative",
    "widgets": "widgets",
}
"""Public name → where it lives in the package."""

_MOVED: dict[str, dict[str, str]] = {
    "audit_cost": {"measure": "evaluation.audit_cost.measure_audit_cost"},
    "benchmark": {
        "copy_bandwidth": "evaluation.memory_bandwidth.copy_bandwidth",
        "cpu_name": "support.machine.cpu_name",
        "finish": "support.machine.wait_for_device",
        "gpu_name": "support.machine.gpu_name",
        "stamp": "support.machine.stamp",
    },
    "decode_benchmark": {"answer": "evaluation.timed_answer.answer_question"},
    "fidelity": {"own_text": "evaluation.fidelity.on_own_answers"},
    "frontier": {
        "measure": "evaluation.recipe_frontier.measure_recipes",
        "own_text": "evaluation.recipe_frontier.tokens_of_questions",
    },
    "pass_parts": {"measure": "evaluation.pass_profile.profile_passes"},
    "rehearsal": {
        "Answer": "evaluation.draft_simulation.PlainAnswer",
        "Rehearsed": "evaluation.draft_simulation.SimulatedRound",
    },
}
"""Of public modules: names of version 0.1 → where they are now. Both work."""

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"quasar_lab.{_HOMES[name]}"), name)
    if name in _MODULES:
        module = importlib.import_module(f"quasar_lab.{_MODULES[name]}")
        for before, now in _MOVED.get(name, {}).items():
            home, _, present = now.rpartition(".")
            vars(module).setdefault(before, getattr(importlib.import_module(f"quasar_lab.{home}"), present))
        return module
    raise AttributeError(f"module 'quasar_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
