"""A model from a hub: what is fetched, and what happens when the hub does not do what a hub does."""

import json
from pathlib import Path

import pytest
from hub import ANSWERS, serving
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from safetensors.torch import load_file
from tiny_models import write_checkpoint

from quasar_lab.models.sources import model_folder
from quasar_lab.support.errors import CheckpointError

MOODS = ["hangs up", "redirects", "401", "404", "500", *ANSWERS]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that serves a tiny model, and an empty local cache."""
    folder = tmp_path / "served"
    write_checkpoint(folder, "llama")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(folder) as running:
        here = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", here)
        template = f"{here}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        close_session()
        yield running
        close_session()


def write(folder: Path, **files: str):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tools.jinja"]
OTHERS = [
    "consolidated.safetensors", "checkpoint-10/model.safetensors", "checkpoint-10/config.json", "onnx/model.onnx",
    "pytorch_model.bin", "modeling_own.py", "trainer_state.json", "README.md", "model.fp16.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("sharded", [False, True])
def test_what_index_and_tokenizer_name_is_fetched_and_nothing_else(hub, sharded):
    wanted = {"config.json", "generation_config.json", *TOKENIZER}
    write(hub.folder, **dict.fromkeys([*TOKENIZER, *OTHERS], "{}"))
    if sharded:
        tensors = load_file(hub.folder / "model.safetensors")
        (hub.folder / "model.safetensors").rename(hub.folder / "part-1.safetensors")
        write(
            hub.folder,
            **{
                "part-2.safetensors": "unused",
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": dict.fromkeys(tensors, "part-1.safetensors")}
                ),
            },
        )
        wanted |= {"part-1.safetensors", "model.safetensors.index.json"}
    else:
        wanted |= {"model.safetensors"}
    folder, name = model_folder("a/b")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == hub.fetched == wanted
    assert name == "a/b"


def test_weights_under_a_name_of_their_own_are_fetched(hub):
    write(hub.folder, **{"checkpoint-10/model.safetensors": ""})
    (hub.folder / "model.safetensors").rename(hub.folder / "weights.safetensors")
    folder, _ = model_folder("a/b")
    assert [path.name for path in folder.rglob("*.safetensors")] == ["weights.safetensors"]


def test_weights_of_a_model_that_cannot_be_computed_are_not_fetched(hub):
    write(hub.folder, **{"config.json": '{"model_type": "mamba"}'})
    with pytest.raises(CheckpointError, match="accepted: llama"):
        model_folder("a/b")
    assert "model.safetensors" not in hub.fetched


@pytest.mark.parametrize("mood", MOODS)
def test_a_hub_that_fails_is_one_sentence(hub, mood):
    hub.mood = mood
    with pytest.raises(CheckpointError, match=r"a/b.* accepted: owner/name") as caught:
        model_folder("a/b")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mood", MOODS)
def test_a_hub_that_fails_leaves_the_cached_copy_in_use(hub, mood, capsys):
    wanted, _ = model_folder("a/b")
    hub.mood = mood
    close_session()
    capsys.readouterr()
    assert model_folder("a/b")[0] == wanted
    said = "".join(capsys.readouterr())
    assert said.count("\n") <= 1


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "odd://127.0.0.1:9", "http://127.0.0.1:9", "://"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_proxy_that_does_not_work(hub, proxy, cached, monkeypatch):
    if cached:
        wanted, _ = model_folder("a/b")
    for name in ("all_proxy", "http_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    close_session()
    if cached:
        assert model_folder("a/b")[0] == wanted
    else:
        with pytest.raises(CheckpointError, match="a/b"):
            model_folder("a/b")


def test_half_a_cached_copy_is_none(hub):
    folder, _ = model_folder("a/b")
    (folder / "model.safetensors").unlink()
    hub.mood = "hangs up"
    with pytest.raises(CheckpointError, match="a/b"):
        model_folder("a/b")
