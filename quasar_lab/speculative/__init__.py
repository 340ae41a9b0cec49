"""Speculative decoding: drafters, verifiers, the accept rule, the loop, and the trace that records a run."""

from quasar_lab.speculative.generation import MAX_GAMMA, Generation, encode_prompt, generate, stream
from quasar_lab.support.machine import versions

__all__ = ["MAX_GAMMA", "Generation", "encode_prompt", "generate", "stream", "versions"]
