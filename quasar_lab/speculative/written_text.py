"""The text of a run as it grows: its tokens, where it ends, and why.

## Idea

A text ends with an end-of-sequence token, with a stop string or at its limit, whichever comes first, also inside the
tokens of one round. The limit is on tokens: nothing is ever written beyond it.

## Choice

The bytes of the tokens are kept as they come, so a new token costs the same however long the text is. Stop strings are
looked for in these bytes, where special tokens stand under their names: a stop string may be one, such as
`<|im_start|>`. The answer that people read is the same bytes without special tokens.
"""

from collections.abc import Callable, Sequence

from quasar_lab.models.tokenizer import Tokenizer


def pieces_of(tokenizer: Tokenizer | None) -> Callable[[int], str]:
    """Gives a token's text; where the model has no tokenizer, its number in angle brackets."""
    return "<{}>".format if tokenizer is None else tokenizer.piece


class WrittenText:
    """The tokens behind the prompt. `finish` says why the text ended: eos, stop, length, or None while it goes on."""

    def __init__(self, tokenizer: Tokenizer | None, eos_ids: Sequence[int], limit: int, stops: Sequence[str]):
        self._tokenizer = tokenizer
        self.piece = pieces_of(tokenizer)
        self._eos_ids = eos_ids
        self._stops = [stop.encode(errors="surrogatepass") for stop in stops]
        self._longest = max(map(len, self._stops), default=0)
        self._written = bytearray()  # of all tokens, special ones by their names
        self._starts: list[int] = []  # where in these bytes each token begins
        self.limit = limit
        self.ids: list[int] = []
        self.finish: str | None = None

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        return self.limit - len(self.ids)

    def write(self, ids: Sequence[int]) -> list[int]:
        """Appends tokens up to the end of the text, if it lies among them; returns those appended."""
        written: list[int] = []
        for token in ids:
            written.append(token)
            self._append(token)
            if token in self._eos_ids:
                self.finish = "eos"
            elif self._stops and self._stop_place(self._starts[-1] - self._longest + 1) is not None:
                self.finish = "stop"
            elif len(self.ids) >= self.limit:
                self.finish = "length"
            if self.finish is not None:
                break
        return written

    def take_back(self, length: int) -> None:
        """Forgets every token from `length` on; the text goes on."""
        if length < len(self.ids):
            del self._written[self._starts[length] :]
        del self.ids[length:]
        del self._starts[length:]
        self.finish = None

    def replace(self, ids: Sequence[int]) -> None:
        """Makes these tokens the text, without looking for an end among them."""
        self.take_back(0)
        for token in ids:
            self._append(token)

    def answer(self) -> str:
        """The text without special tokens, up to the stop string that ended it."""
        place = self._stop_place(0) if self.finish == "stop" else None
        end = len(self._written) if place is None else place
        ends = [*self._starts, len(self._written)][1:]
        read = b"".join(
            self._written[start : min(stop, end)]
            for token, start, stop in zip(self.ids, self._starts, ends, strict=True)
            if start < end and not self._special(token)
        )
        return read.decode(errors="replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The texts of tokens."""
        return [*map(self.piece, ids)]

    def _append(self, token: int) -> None:
        self.ids.append(token)
        self._starts.append(len(self._written))
        self._written += self.piece(token).encode() if self._tokenizer is None else self._tokenizer.token_bytes(token)

    def _special(self, token: int) -> bool:
        return self._tokenizer is not None and self._tokenizer.is_special(token)

    def _stop_place(self, begin: int) -> int | None:
        """Where, from byte `begin` on, the earliest stop string starts."""
        places = [self._written.find(stop, max(0, begin)) for stop in self._stops]
        return min((place for place in places if place >= 0), default=None)
