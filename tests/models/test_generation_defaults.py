"""The settings that come with a model: which are options of a run, and which are named as not applied."""

import json

import pytest
from tiny_models import write_checkpoint

import quasar_lab as ql
from quasar_lab.models.generation_defaults import read_defaults
from quasar_lab.support.errors import CheckpointError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("raw", "options", "not_applied"),
    [
        ({}, {}, ()),
        ({"temperature": 0.6, "top_p": 0.9}, {}, ()),  # not for drawing: `transformers` ignores them too
        ({"do_sample": True}, {"temperature": 1.0}, ()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1},
            (),
        ),
        ({"do_sample": True, "top_k": 0, "top_p": 1.0}, {"temperature": 1.0}, ()),
        ({"repetition_penalty": 1.1, "max_new_tokens": 9}, {"repetition_penalty": 1.1, "max_new_tokens": 9}, ()),
        ({"repetition_penalty": 1.0}, {}, ()),
        ({"stop_strings": ["\n\n"]}, {"stop": ["\n\n"]}, ()),
        ({"no_repeat_ngram_size": 3, "num_beams": 4}, {}, ("num_beams", "no_repeat_ngram_size")),
        ({"no_repeat_ngram_size": 0, "num_beams": 1, "suppress_tokens": []}, {}, ()),
        ({"typical_p": 0.5}, {}, ()),
        ({"do_sample": True, "typical_p": 0.5}, {"temperature": 1.0}, ("typical_p",)),
        ({"eos_token_id": [1, 2], "pad_token_id": 3, "transformers_version": "5.0"}, {}, ()),
    ],
    ids=str,
)
def test_what_a_file_asks_for(raw, options, not_applied):
    found = read_defaults(raw)
    assert (found.options, found.not_applied) == (options, not_applied)


@pytest.mark.parametrize("bad", [{"temperature": "hot"}, {"top_k": 2.5}, {"do_sample": 3}, {"stop_strings": [1]}])
def test_settings_of_another_kind_are_refused(tmp_path, bad):
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "generation_config.json").write_text(json.dumps(bad))
    with pytest.raises(CheckpointError, match="generation_config"):
        ql.load(tmp_path)


@pytest.fixture(scope="module")
def penalised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("penalised")
    oracle = write_checkpoint(folder, "llama")
    settings = {"repetition_penalty": 1.7, "max_new_tokens": 20, "no_repeat_ngram_size": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return ql.load(folder), oracle


def test_a_run_takes_what_its_caller_leaves_out(penalised, capsys):
    model, _ = penalised
    trace = ql.generate(model, PROMPT)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    for words in ("repetition_penalty 1.7", "max_new_tokens 20", "no_repeat_ngram_size, which has no option here"):
        assert words in told
    assert trace.sampling.repetition_penalty == 1.7
    assert len(trace.token_ids) <= 20
    chosen = ql.generate(model, PROMPT, repetition_penalty=1.0, max_new_tokens=30)
    assert chosen.sampling.repetition_penalty == 1
    assert len(chosen.token_ids) == 30
    assert chosen.token_ids[:20] != trace.token_ids, "the penalty changes nothing: this shows nothing"


def test_it_is_said_once(penalised, capsys):
    model, _ = penalised
    for _ in range(2):
        ql.generate(model, PROMPT, max_new_tokens=3)
    assert capsys.readouterr().err.count("repetition_penalty") <= 1


def test_measurements_do_not_take_it(penalised):
    """A greedy measurement is greedy for every model."""
    from quasar_lab.evaluation import text_difference

    model, _ = penalised
    trace = ql.generate(model, PROMPT, max_new_tokens=12, temperature=0, repetition_penalty=1)
    assert text_difference.first_difference(model, model, PROMPT, 12) is None
    run = {}
    text_difference.generate, before = (lambda *a, **k: run.update(k) or trace), text_difference.generate
    try:
        text_difference.first_difference(model, model, PROMPT, 12)
    finally:
        text_difference.generate = before
    assert (run["temperature"], run["repetition_penalty"], run["stop"]) == (0, 1, None)
