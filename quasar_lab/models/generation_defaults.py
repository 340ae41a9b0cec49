"""What a model's own generation_config.json asks for: options of a run that hold where the caller says nothing.

## Idea

Many models come with settings that their makers tested them with, such as a temperature or a repetition penalty.
`transformers` applies them without being asked, so an answer without them is another answer. Here they are the defaults
of every run that does not say otherwise.

## Choice

The settings that only matter for sampling (temperature, top-k, top-p, min-p) hold where the file says `do_sample`;
otherwise the model is meant to be greedy. A setting that changes what is written and has no option here is kept as a
name, so that a run can say that it is not applied.

## What is lost

Settings that this table does not know, which newer files may hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quasar_lab.support.json_schema import BOOLEAN, TEXT, fields, integer, list_of, number, optional
from quasar_lab.support.result import Json

FILE = "generation_config.json"

SETTINGS = fields(
    {
        "do_sample?": optional(BOOLEAN),
        **dict.fromkeys(("temperature?", "top_p?", "min_p?", "repetition_penalty?"), optional(number())),
        **dict.fromkeys(("top_k?", "max_new_tokens?"), optional(integer(0, 2**31 - 1))),
        "stop_strings?": optional(lambda value, name: None if isinstance(value, str) else list_of(TEXT)(value, name)),
    }
)
"""What the file may say, of what is applied here."""

SAMPLED = ("temperature", "top_k", "top_p", "min_p")
"""Options that matter where tokens are drawn, by their names in the file and here."""

ALWAYS = {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_new_tokens", "stop_strings": "stop"}
"""Name in the file → option here."""

NOT_APPLIED: dict[str, Any] = {
    "num_beams": 1,
    "penalty_alpha": 0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "diversity_penalty": 0,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": (),
    "force_words_ids": (),
    "constraints": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "sequence_bias": (),
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "watermarking_config": None,
    "dola_layers": None,
}
"""Setting that changes what is written → its value that changes nothing. None of them has an option here."""

NOT_APPLIED_TO_DRAWS: dict[str, Any] = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None}
"""The same, for settings that only matter where tokens are drawn."""


@dataclass(frozen=True)
class GenerationDefaults:
    """A model's own settings."""

    options: Mapping[str, Any] = field(default_factory=dict)  # option of `GenerationConfig` → value
    not_applied: tuple[str, ...] = ()  # settings that change what is written and have no option

    def sentence(self, chosen: Mapping[str, Any]) -> str | None:
        """What a person is told where the caller chose these options; None where the file asks for nothing more."""
        applied = {name: value for name, value in self.options.items() if name not in chosen}
        told = []
        if applied:
            settings = ", ".join(f"{name} {value}" for name, value in applied.items())
            told.append(f"sets {settings} (an option of that name overrides it)")
        if self.not_applied:
            told.append(f"asks for {', '.join(self.not_applied)}, which has no option here and is not applied")
        return f"the model's {FILE} {' and '.join(told)}" if told else None


def read_defaults(raw: Json) -> GenerationDefaults:
    """The settings in the object of a generation_config.json that `SETTINGS` accepts."""
    sampled = bool(raw.get("do_sample"))
    options = {name: raw[name] for name in SAMPLED if sampled and raw.get(name) is not None}
    if sampled:
        options.setdefault("temperature", 1.0)
    options.update({option: raw[name] for name, option in ALWAYS.items() if raw.get(name) is not None})
    unknown = NOT_APPLIED | (NOT_APPLIED_TO_DRAWS if sampled else {})
    not_applied = tuple(name for name, neutral in unknown.items() if raw.get(name) and raw[name] != neutral)
    return GenerationDefaults({name: value for name, value in options.items() if not _off(name, value)}, not_applied)


def _off(option: str, value: Any) -> bool:
    """Whether the value is how our options say "off", so that nobody needs to be told."""
    return value == {"repetition_penalty": 1, "top_k": 0, "top_p": 1, "min_p": 0}.get(option, object())
