"""Tokens as bytes: pieces of every kind of vocabulary, and openPangu's tokenizer without its code."""

import json
from types import SimpleNamespace

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from quasar_lab.evaluation.fidelity import read_tokens
from quasar_lab.models.tokenizer import Tokenizer, load_tokenizer
from quasar_lab.support.errors import CheckpointError, InputError


class ByteCodec:
    """Token = byte."""

    chat_template = None

    def encode(self, text, special):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")

    def token_bytes(self, token):
        return bytes([token])


@given(st.binary(max_size=12))
def test_a_piece_shows_every_byte(data):
    class Whole(ByteCodec):
        def token_bytes(self, token):
            return data

    piece = Tokenizer(Whole()).piece(0)
    try:
        assert piece == data.decode()
    except UnicodeDecodeError:
        assert "⟨" in piece
        assert "�" not in piece


def test_part_of_a_character():
    tokenizer = Tokenizer(ByteCodec())
    assert [tokenizer.piece(byte) for byte in "é".encode()] == ["⟨C3⟩", "⟨A9⟩"]
    assert tokenizer.piece(65) == "A"


@pytest.fixture(scope="module")
def pangu(tmp_path_factory):
    """A folder with a small `tokenizer.model`, settings, and a Python file that must never run."""
    folder = tmp_path_factory.mktemp("pangu")
    (folder / "text.txt").write_text("the cat sat on the mat\nthe dog ran to the cat\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=300,
        byte_fallback=True,
        user_defined_symbols=["[unused9]", "[unused10]"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    template = (
        "{% for m in messages %}[unused9]{{ m.role }}: {{ m.content }}[unused10]{% endfor %}"
        "{% if add_generation_prompt %}[unused9]a:{% endif %}"
    )
    settings = {"chat_template": template, "auto_map": {"AutoTokenizer": ["tokenization_x.PanguTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenization_x.py").write_text("raise SystemExit('this code must not run')")
    return load_tokenizer(folder, "PanguEmbedded")


def test_pangu_round_trip(pangu):
    ids = pangu.encode("the cat sat")
    assert ids[0] == 1  # BOS
    assert pangu.decode(ids) == "the cat sat"
    assert "".join(map(pangu.piece, ids[1:])).strip() == "the cat sat"
    assert "⟨" in "".join(map(pangu.piece, pangu.encode("é")))
    assert pangu.piece(10_000) == "<10000>"


def test_pangu_chat(pangu):
    ids = pangu.chat([{"role": "user", "content": "the dog"}])
    text = "".join(map(pangu.piece, ids))
    assert text.count("[unused9]") == 2
    assert "the dog" in text


@pytest.mark.parametrize("messages", [[{"role": "user"}], ["hi"], [{"role": "user", "content": 3}]])
def test_bad_messages(pangu, messages):
    with pytest.raises(InputError, match="accepted"):
        pangu.chat(messages)


WORDS = {"the": 0, "cat": 1, "<s>": 2}


@pytest.fixture
def words(tmp_path):
    """A folder whose tokenizer puts <s> before every text."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers, processors

    fast = Fast(models.WordLevel(WORDS, unk_token="the"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return tmp_path


def test_special_tokens_can_be_left_out(pangu, words):
    for tokenizer in (pangu, load_tokenizer(words, "llama")):
        plain = tokenizer.encode("the cat", special=False)
        assert tokenizer.encode("the cat") == [*tokenizer.encode(""), *plain]
        assert len(tokenizer.encode("")) == 1


def test_fidelity_adds_no_bos(words, tmp_path):
    (tmp_path / "text.txt").write_text("the cat the")
    model = SimpleNamespace(tokenizer=load_tokenizer(words, "llama"))
    assert read_tokens(model, tmp_path / "text.txt") == [0, 1, 0]


@pytest.mark.parametrize("family", ["PanguEmbedded", "llama"])
@pytest.mark.parametrize(
    "template", ["{{1/0}}", "{{messages[0]+1}}", '{{"a"*10**11}}', "{{messages[9].x.y}}", "{% if %}", "{{'%d' % 'a'}}"]
)
def test_a_template_that_fails_is_one_error(pangu, words, family, template):
    codec = (pangu if family == "PanguEmbedded" else load_tokenizer(words, family))._codec
    before, codec.chat_template = codec.chat_template, template
    if family == "llama":
        codec._tokenizer.chat_template = template
    try:
        with pytest.raises(InputError, match="chat template refuses"):
            Tokenizer(codec).chat([{"role": "user", "content": "the"}])
    finally:
        codec.chat_template = before


@pytest.mark.parametrize(
    "settings",
    [[], 5, {"chat_template": 5}, {"chat_template": ["a"]}, {"tokenizer_class": []}, {"tokenizer_class": {}}],
)
@pytest.mark.parametrize("family", ["PanguEmbedded", "llama"])
def test_settings_that_are_none(words, family, settings):
    (words / "tokenizer_config.json").write_text(json.dumps(settings))
    (words / "tokenizer.model").touch()
    with pytest.raises(CheckpointError, match="tokenizer_config"):
        load_tokenizer(words, family)


def test_half_a_character(pangu, words):
    for tokenizer in (pangu, load_tokenizer(words, "llama")):
        with pytest.raises(InputError, match="half of a surrogate pair"):
            tokenizer.encode("the \ud800")
    with pytest.raises(InputError, match="half of a surrogate pair"):
        pangu.chat([{"role": "user", "content": "\udcff"}])


def test_no_template():
    with pytest.raises(InputError, match="no chat template"):
        Tokenizer(ByteCodec()).chat([{"role": "user", "content": "hi"}])


def test_none_and_broken(tmp_path):
    assert load_tokenizer(tmp_path, "llama") is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(tmp_path, "llama")
