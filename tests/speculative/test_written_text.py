"""The text of a run: what its tokens' bytes say, where it ends, and what a token costs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from quasar_lab.speculative.written_text import WrittenText

SPECIAL = {200: b"<|im_start|>", 201: b"</s>"}


class Bytes:
    """A tokenizer whose token is a byte, but for a few special ones and one of many letters. It counts its work."""

    def __init__(self):
        self.asked = 0

    def token_bytes(self, token):
        self.asked += 1
        return SPECIAL.get(token) or (b" mat" * 3 if token == 199 else bytes([token]))

    def is_special(self, token):
        return token in SPECIAL

    def piece(self, token):
        return self.token_bytes(token).decode(errors="replace")


def text_of(stops=(), limit=10_000, eos=()):
    return WrittenText(Bytes(), eos, limit, stops)


def test_a_special_token_stops_and_is_no_part_of_the_answer():
    text = text_of(stops=["<|im_start|>"])
    assert text.write([*b"ab", 201, *b"c", 200, *b"d"]) == [*b"ab", 201, *b"c", 200]
    assert (text.finish, text.answer()) == ("stop", "abc")


def test_a_special_token_that_is_no_stop_string_does_not_stop():
    text = text_of(stops=["im_end"])
    text.write([*b"ab", 200, *b"c"])
    assert (text.finish, text.answer()) == (None, "abc")


def test_the_answer_is_the_pieces():
    """Also a first piece that begins with a space, which decoding the answer alone would drop."""
    text = text_of()
    text.write([199, *b"!"])
    assert text.answer() == " mat mat mat!" == "".join(map(text.piece, text.ids))


def test_a_character_of_several_tokens_and_half_of_one():
    text = text_of()
    text.write("é✓".encode())
    assert text.answer() == "é✓"
    text.take_back(3)
    assert text.answer() == "é�"


def naive(ids, stops, limit, eos):
    """(tokens written, why the text ended, answer), by looking at the whole text behind every token."""
    written, finish = [], None
    for token in ids:
        written.append(token)
        shown = b"".join(SPECIAL.get(t) or (b" mat" * 3 if t == 199 else bytes([t])) for t in written)
        places = [shown.find(stop.encode()) for stop in stops if stop.encode() in shown]
        if token in eos:
            finish = "eos"
        elif places:
            finish = "stop"
        elif len(written) >= limit:
            finish = "length"
        if finish:
            break
    end = min(places) if finish == "stop" else 10**9
    read, place = b"", 0
    for token in written:
        data = SPECIAL.get(token) or (b" mat" * 3 if token == 199 else bytes([token]))
        read += b"" if token in SPECIAL else data[: max(0, end - place)]
        place += len(data)
    return written, finish, read.decode(errors="replace")


TOKENS = st.lists(st.sampled_from([*b"abm t", 199, 200, 201]), min_size=1, max_size=24)
STOPS = st.lists(st.sampled_from(["ab", "mat m", "t", "<|im_start|>", "a<|im", "</s>b", "aa"]), max_size=3)


@settings(max_examples=300, deadline=None)
@given(TOKENS, STOPS, st.integers(1, 20), st.sampled_from([(), (201,), (97,)]), st.data())
def test_any_text_however_it_comes(ids, stops, limit, eos, data):
    """In blocks of any size, and with tokens taken back in between: as a look at the whole text would find it."""
    text = text_of(stops, limit, eos)
    wanted, finish, answer = naive(ids, stops, limit, eos)
    while text.finish is None and len(text.ids) < len(ids):
        begin = len(text.ids)
        text.write(ids[begin : begin + data.draw(st.integers(1, 5))])
        if data.draw(st.booleans()):
            text.take_back(data.draw(st.integers(0, len(text.ids) - 1)))
    assert (text.ids, text.finish, text.answer()) == (wanted, finish, answer)


def test_replacing_a_text_forgets_its_end():
    text = text_of(stops=["b"])
    text.write(list(b"ab"))
    text.replace(list(b"ac"))
    assert (text.ids, text.finish, text.answer()) == (list(b"ac"), None, "ac")


def test_a_token_costs_the_same_however_long_the_text_is(monkeypatch):
    """Every token is turned into bytes once, and a stop string is looked for in the end of the text only."""
    text = text_of(stops=["never"])
    looked = []
    found = WrittenText._stop_place
    monkeypatch.setattr(
        WrittenText, "_stop_place", lambda self, begin: looked.append(len(self._written) - begin) or found(self, begin)
    )
    text.write(list(b"abc " * 1000))
    assert text._tokenizer.asked == 4000
    assert len(looked) == 4000
    assert max(looked) <= len("never") + 1


def test_no_tokenizer():
    text = WrittenText(None, (7,), 3, [])
    text.write([5, 6, 7])
    assert (text.answer(), text.finish) == ("<5><6><7>", "eos")
