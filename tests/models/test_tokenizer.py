"""Tokens as bytes: pieces of every kind of vocabulary, and openPangu's tokenizer without its code."""

import json
from types import SimpleNamespace

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_byte_tokenizer

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


# --- code that comes with a model -------------------------------------------------------------------------------------


def refuse_to_answer(*asked):
    raise AssertionError(f"a question was asked: {asked}")


CODE_OF_THE_MODEL = {
    "an unknown class": {"tokenizer_class": "Own"},
    "an unknown class, named twice": {"tokenizer_class": "OwnFast"},
    "a known class": {"tokenizer_class": "LlamaTokenizer"},
    "no class": {},
    "the generic class": {"tokenizer_class": "PreTrainedTokenizerFast"},
}


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "PanguEmbedded"])
@pytest.mark.parametrize("case", CODE_OF_THE_MODEL)
def test_no_code_of_a_model_runs_and_nothing_is_asked(tmp_path, monkeypatch, case, family, files):
    write_byte_tokenizer(tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text())
    told.pop("tokenizer_class")
    auto_map = {"AutoTokenizer": ["x.Own", "x.Own"], "AutoConfig": "x.Own"}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**told, **CODE_OF_THE_MODEL[case], "auto_map": auto_map})
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "auto_map": auto_map}))
    (tmp_path / "x.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Own: pass\n")
    if files == "vocab.json":
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "vocab.json").write_text("{}")
    monkeypatch.setattr("builtins.input", refuse_to_answer)
    monkeypatch.setattr("signal.alarm", refuse_to_answer, raising=False)  # how a question that waits is made
    if files == "tokenizer.json":
        assert load_tokenizer(tmp_path, family).encode("hi", special=False)
    elif case == "a known class":
        load_tokenizer(tmp_path, family)
    else:
        with pytest.raises(CheckpointError, match="cannot be read") as caught:
            load_tokenizer(tmp_path, family)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_file_of_a_newer_format_is_one_line(tmp_path):
    write_byte_tokenizer(tmp_path)
    told = json.loads((tmp_path / "tokenizer.json").read_text())
    for change in ({"model": {"type": "Telepathy"}}, {"version": "9.0"}, {"decoder": {"type": "Own"}}, {"model": 3}):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**told, **change}))
        with pytest.raises(CheckpointError, match=r"the tokenizer in .* cannot be read: .+") as caught:
            load_tokenizer(tmp_path, "llama")
        assert "\n" not in str(caught.value)


def test_a_fault_of_ours_is_not_called_the_files(tmp_path, monkeypatch):
    write_byte_tokenizer(tmp_path)

    def broken(*arguments):
        raise AssertionError("ours")

    monkeypatch.setattr("quasar_lab.models.tokenizer._codec_of_library", broken)
    with pytest.raises(AssertionError, match="ours"):
        load_tokenizer(tmp_path, "llama")


def test_a_bare_sentencepiece_model_is_read(pangu, tmp_path):
    """llama with a `tokenizer.model` and nothing else."""
    (tmp_path / "tokenizer.model").write_bytes(pangu._codec._model.serialized_model_proto())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = load_tokenizer(tmp_path, "llama")
    assert tokenizer.decode(tokenizer.encode("the cat sat")) == "the cat sat"
    assert not tokenizer.has_chat_template


# --- texts and conversations ------------------------------------------------------------------------------------------


@pytest.fixture
def bytewise(tmp_path):
    """A tokenizer of bytes that puts <s> before every text."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import processors

    write_byte_tokenizer(tmp_path)
    fast = Fast.from_file(str(tmp_path / "tokenizer.json"))
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    fast.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(tmp_path, "llama")


def test_a_text_that_begins_with_the_bos_has_one(bytewise):
    assert bytewise.encode("hi") == bytewise.encode("<s>hi") == [256, *b"hi"]
    assert bytewise.encode("<s><s>hi") == [256, 256, *b"hi"]  # the second one was meant
    assert bytewise.encode("<s>hi", special=False) == [256, *b"hi"]
    assert bytewise.encode("") == [256]


def test_special_tokens_are_bytes_by_name_and_no_text(bytewise):
    assert bytewise.token_bytes(257) == b"<|im_start|>"
    assert [bytewise.is_special(token) for token in (65, 256, 257, 258)] == [False, True, True, True]
    assert bytewise.ids_without_token(262) == [259, 260, 261]


def test_a_template_is_given_arguments(tmp_path):
    write_byte_tokenizer(tmp_path, "{{ messages[0].content }}{{ '!' if enable_thinking is true }}{{ mood }}")
    tokenizer = load_tokenizer(tmp_path, "llama")
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.chat(messages) == list(b"hi")
    assert tokenizer.chat(messages, {"enable_thinking": True, "mood": "x"}) == list(b"hi!x")
    assert messages == [{"role": "user", "content": "hi"}]
    for name in ("messages", "add_generation_prompt"):
        with pytest.raises(InputError, match=f"{name}.*accepted: other names"):
            tokenizer.chat(messages, {name: []})


def test_a_conversation_is_what_transformers_makes_of_it(tmp_path):
    from transformers import PreTrainedTokenizerFast

    write_byte_tokenizer(tmp_path, "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{{ eos_token }}{% endfor %}")
    messages = [{"role": "user", "content": "é <b>"}, {"role": "assistant", "content": "yes"}]
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert load_tokenizer(tmp_path, "llama").chat(messages) == wanted


WORDS_OF_A_TEXT = st.lists(st.sampled_from(["the", "cat", "mat", "é", "✓", "  ", "\n", "ran."]), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None)
@given(WORDS_OF_A_TEXT, st.data())
def test_prompt_and_answer_together_are_what_was_written(pangu, words, data):
    """Wherever a text is cut: the prompt as text, then the answer's bytes, which begin with their own space."""
    ids = pangu.encode(" ".join(["the", *words]), special=False)
    cut = data.draw(st.integers(1, len(ids)))
    try:
        prompt = b"".join(map(pangu.token_bytes, ids[:cut])).decode()
    except UnicodeDecodeError:
        return  # a cut inside a character
    answer = b"".join(map(pangu.token_bytes, ids[cut:])).decode()
    assert pangu.decode(ids[:cut]) == prompt.removeprefix(" ")
    assert (prompt + answer).removeprefix(" ") == pangu.decode(ids)
