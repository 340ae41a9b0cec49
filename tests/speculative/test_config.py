"""The options of a run: one default, one meaning, one check, wherever they are shown."""

import inspect
from dataclasses import fields

import pytest
from toys import ToyVerifier

import quasar_lab as ql
from quasar_lab.cli import app
from quasar_lab.speculative.config import MAX_GAMMA, GenerationConfig, Sampling, takes_options
from quasar_lab.support.errors import InputError

NAMES = [part.name for part in fields(GenerationConfig)]


@pytest.mark.parametrize("function", [ql.generate, ql.stream, ql.Generation], ids=lambda function: function.__name__)
def test_every_option_is_in_the_signature(function):
    """As Shift-Tab shows it."""
    parameters = inspect.signature(function).parameters
    assert [*parameters] == ["verifier", "prompt", "drafter", *NAMES]
    for part in fields(GenerationConfig):
        assert parameters[part.name].default == part.default
        assert parameters[part.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["drafter"].default == "ngram"


def test_drawing_has_the_same_options_alone_and_in_a_run():
    of_run = {part.name: part for part in fields(GenerationConfig)}
    for part in fields(Sampling):
        assert (part.default, part.metadata) == (of_run[part.name].default, of_run[part.name].metadata)


def test_every_option_is_in_the_docstring():
    for part in fields(GenerationConfig):
        assert f"{part.name}: {part.metadata['meaning']}" in ql.generate.__doc__

    @takes_options
    def bare(**options):
        pass

    assert "gamma" in bare.__doc__


@pytest.mark.parametrize("command", ["generate", "bench decode"])
def test_the_command_line_says_the_same(capsys, command):
    assert app.run([*command.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in fields(GenerationConfig):
        if part.name in ("stop", "raw") and command != "generate":
            continue
        flag = "template-arg" if part.name == "template_args" else part.name.replace("_", "-")  # one at a time
        assert f"--{flag}" in shown
        if part.name != "stop":  # repeatable there
            assert part.metadata["meaning"] in shown
        if part.default not in (None, False):
            assert f"[default: {part.default}]" in shown


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'gama'"):
        ql.generate(ToyVerifier(), [1], gama=3)


def test_positions_are_those_of_the_benchmark_settings():
    config = GenerationConfig(5, 9, 0.7, 3, 0.9, 11)
    assert config.sampling == Sampling(temperature=0.7, top_k=3, top_p=0.9, seed=11)
    assert (config.gamma, config.max_new_tokens, config.stops, config.raw) == (5, 9, [], False)
    assert GenerationConfig(stop="x").stops == ["x"]
    assert GenerationConfig(stop=("x", "y")).stops == ["x", "y"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0}, f"γ is 0; accepted: 1…{MAX_GAMMA}"),
        ({"gamma": MAX_GAMMA + 1}, "accepted"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; accepted: 1 or more"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0}, "top-p is 0"),
        ({"seed": 2**64}, "the seed is"),
        ({"stop": ["x", ""]}, "a stop string is empty"),
    ],
    ids=str,
)
def test_values_outside_are_refused_before_anything_runs(options, message):
    with pytest.raises(InputError, match=message):
        GenerationConfig(**options)
