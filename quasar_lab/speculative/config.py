"""The options of a run, each in one place: its default, its meaning, and what is accepted.

## Idea

`ql.generate`, `ql.stream`, the command line, the benchmarks and the sliders of the notebooks all start the same kind of
run. Each of them reads this dataclass, so an option has the same default and the same meaning wherever it is shown.

## Choice

A field carries the sentence that the command line prints for it. `takes_options` puts the fields into the signature and
the docstring of a function that takes them as keyword arguments, so Shift-Tab in a notebook shows them. Values are
checked when the object is made, before a model is loaded.

The drafter is no field: it may be an object, and it has a registry of its own (`drafters`).

This module imports neither torch nor a model, so that `--help` stays quick.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from quasar_lab.support.errors import InputError

MAX_GAMMA = 16
"""The most tokens that a round may draft."""

Documented = TypeVar("Documented", bound=Callable[..., Any])


def option(default: Any, meaning: str) -> Any:
    """A field with its default and the sentence that says what it does."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the verifier's logits. Raises InputError on values outside what is accepted."""

    temperature: float = option(0.0, "0: greedy.")
    top_k: int = option(0, "Draw among the k likeliest (0: all).")
    top_p: float = option(1.0, "Draw among the likeliest that sum to p.")
    seed: int = option(0, "Seed of every draw.")

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 1e-6 <= self.temperature <= 100:
            raise InputError(f"temperature is {self.temperature}; accepted: 0 (greedy), or 0.000001…100")
        if not -(2**63) <= self.seed < 2**64:
            raise InputError(f"the seed is {self.seed}; accepted: −2⁶³…2⁶⁴−1")
        if self.top_k < 0:
            raise InputError(f"top-k is {self.top_k}; accepted: 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top-p is {self.top_p}; accepted: above 0, at most 1")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn: the likeliest token is taken."""
        return self.temperature == 0


def _of_sampling(name: str) -> Any:
    """The option of that name in `Sampling`, with its default and its meaning."""
    known = {part.name: part for part in fields(Sampling)}[name]
    return option(known.default, known.metadata["meaning"])


@dataclass(frozen=True)
class GenerationConfig:
    """The options of a run. Raises InputError on values outside what is accepted."""

    gamma: int = option(4, f"Drafted tokens a round, 1…{MAX_GAMMA}.")
    max_new_tokens: int = option(128, "The most tokens to write.")
    temperature: float = _of_sampling("temperature")
    top_k: int = _of_sampling("top_k")
    top_p: float = _of_sampling("top_p")
    seed: int = _of_sampling("seed")
    stop: str | Sequence[str] | None = option(None, "A text that ends the answer, or several.")
    raw: bool = option(False, "The prompt as it is, without the chat template.")

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; accepted: 1 or more")
        _ = self.sampling
        if any(not text for text in self.stops):
            raise InputError("a stop string is empty; accepted: texts of at least one character")

    @property
    def sampling(self) -> Sampling:
        """The options that say how tokens are drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)

    @property
    def stops(self) -> list[str]:
        """The texts that end the answer."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


def check_gamma(gamma: int) -> None:
    """Raises InputError unless a round may draft so many tokens."""
    if not 1 <= gamma <= MAX_GAMMA:
        raise InputError(f"γ is {gamma}; accepted: 1…{MAX_GAMMA}")


def meaning(name: str) -> str:
    """The sentence that says what an option of `GenerationConfig` does."""
    return {part.name: part.metadata["meaning"] for part in fields(GenerationConfig)}[name]


def takes_options(function: Documented) -> Documented:
    """Shows the options of `GenerationConfig` in the signature and docstring of a function that takes them as
    `**options`."""
    signature = inspect.signature(function)
    options = [
        inspect.Parameter(part.name, inspect.Parameter.KEYWORD_ONLY, default=part.default, annotation=part.type)
        for part in fields(GenerationConfig)
    ]
    own = [part for part in signature.parameters.values() if part.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    lines = [f"    {part.name}: {part.metadata['meaning']}" for part in fields(GenerationConfig)]
    function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
    return function
