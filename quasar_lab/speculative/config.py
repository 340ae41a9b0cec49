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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import real, whole

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
    min_p: float = option(0.0, "Draw among tokens at least so likely as this share of the likeliest (0: all).")
    repetition_penalty: float = option(1.0, "Divides the logits of tokens that are in the text already (1: off).")

    def __post_init__(self) -> None:
        _set(self, "temperature", real(self.temperature, "temperature", "0 (greedy), or 0.000001…100"))
        _set(self, "top_k", whole(self.top_k, "top-k", "0 (off) or more", least=0))
        _set(self, "top_p", real(self.top_p, "top-p", "above 0, at most 1"))
        _set(self, "seed", whole(self.seed, "the seed", "−2⁶³…2⁶⁴−1", -(2**63), 2**64 - 1))
        _set(self, "min_p", real(self.min_p, "min-p", "0 (off) to 1"))
        _set(self, "repetition_penalty", real(self.repetition_penalty, "the repetition penalty", "0.01…100, 1 is off"))
        if self.temperature != 0 and not 1e-6 <= self.temperature <= 100:
            raise InputError(f"temperature is {self.temperature}; accepted: 0 (greedy), or 0.000001…100")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top-p is {self.top_p}; accepted: above 0, at most 1")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min-p is {self.min_p}; accepted: 0 (off) to 1")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise InputError(f"the repetition penalty is {self.repetition_penalty}; accepted: 0.01…100, 1 is off")

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn: the likeliest token is taken."""
        return self.temperature == 0


def _set(options: Any, name: str, value: Any) -> None:
    """Gives a field of a frozen dataclass its checked value, while the object is made."""
    object.__setattr__(options, name, value)


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
    min_p: float = _of_sampling("min_p")
    repetition_penalty: float = _of_sampling("repetition_penalty")
    template_args: Mapping[str, Any] | None = option(
        None, "Names and values for the chat template, such as enable_thinking=false."
    )

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        _set(self, "gamma", int(self.gamma))
        _set(self, "max_new_tokens", whole(self.max_new_tokens, "max_new_tokens", "1 or more", least=1))
        for name, value in vars(self.sampling).items():
            _set(self, name, value)
        if not all(isinstance(text, str) for text in self.stops):
            raise InputError(f"stop is {self.stop!r}; accepted: a text, or several")
        if not all(self.stops):
            raise InputError("a stop string is empty; accepted: texts of at least one character")
        if not isinstance(self.template_args, Mapping | None):
            raise InputError(f"template_args is {self.template_args!r}; accepted: names and values, as in a dict")

    @property
    def sampling(self) -> Sampling:
        """The options that say how tokens are drawn."""
        return Sampling(**{part.name: getattr(self, part.name) for part in fields(Sampling)})

    @property
    def stops(self) -> list[str]:
        """The texts that end the answer."""
        if self.stop is None or isinstance(self.stop, str):
            return [] if self.stop is None else [self.stop]
        if not isinstance(self.stop, Sequence):
            raise InputError(f"stop is {self.stop!r}; accepted: a text, or several")
        return list(self.stop)


GREEDY: Mapping[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0, "stop": None}
"""Options of a measurement that wants the likeliest tokens, whatever the model's own settings are."""


def check_gamma(gamma: int) -> None:
    """Raises InputError unless a round may draft so many tokens."""
    whole(gamma, "γ", f"1…{MAX_GAMMA}", 1, MAX_GAMMA)


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
