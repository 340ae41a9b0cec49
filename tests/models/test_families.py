"""A family is one entry: every list derives from it, and a tiny model of each is tested."""

import json

import pytest
from tiny_models import FAMILIES as TINY
from tiny_models import write_checkpoint

from quasar_lab.evaluation import catalogue
from quasar_lab.models.families import FAMILIES, family_names
from quasar_lab.models.model_config import parse_config

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 9,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
}


def test_every_family_has_a_tiny_model(tmp_path):
    tested = set()
    for name in TINY:
        write_checkpoint(tmp_path / name, name)
        tested.add(json.loads((tmp_path / name / "config.json").read_text())["model_type"])
    assert tested == set(FAMILIES)


def test_people_read_names_and_not_model_types():
    assert family_names() == "llama, mistral, qwen2, qwen3, openPangu"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_an_entry_says_is_in_the_config(family):
    config = parse_config({**BASE, "model_type": family})
    assert (config.family, config.qk_norm) == (family, family == "qwen3")
    windowed = parse_config({**BASE, "model_type": family, "use_sliding_window": True, "sliding_window": 5})
    assert (windowed.context, windowed.window) == ((16, 5) if family == "mistral" else (5, 0))
    unused = parse_config({**BASE, "model_type": family, "use_sliding_window": False, "sliding_window": 5})
    assert (unused.context, unused.window) == ((16, 5) if family == "mistral" else (16, 0))


def test_the_catalogue_knows_the_families():
    rows = catalogue.rows()
    assert {row.family for row in rows} == set(FAMILIES)
    assert [row.id for row in rows] == [entry.id for entry in catalogue.ENTRIES]
    by_name = {entry.id: entry.config for entry in catalogue.ENTRIES}
    assert by_name["Qwen/Qwen3-8B"].qk_norm
    assert not by_name["Qwen/Qwen2.5-1.5B-Instruct"].qk_norm
    assert catalogue.find("embedded") is catalogue.ENTRIES[0]
