"""The text of a run as it grows: its tokens, where it ends, and why.

A text ends with an end-of-sequence token, with a stop string or at its limit, whichever comes first, also inside the
tokens of one round. The limit is on tokens: nothing is ever written beyond it.
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
        self._stops = stops
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
            self.ids.append(token)
            if token in self._eos_ids:
                self.finish = "eos"
            elif self._stops and self._stop_place() is not None:
                self.finish = "stop"
            elif len(self.ids) >= self.limit:
                self.finish = "length"
            if self.finish is not None:
                break
        return written

    def take_back(self, length: int) -> None:
        """Forgets every token from `length` on; the text goes on."""
        del self.ids[length:]
        self.finish = None

    def answer(self) -> str:
        """The text without special tokens, up to the stop string that ended it."""
        text = self._decoded()
        return text[: self._stop_place()] if self.finish == "stop" else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The texts of tokens."""
        return [*map(self.piece, ids)]

    def _decoded(self) -> str:
        return "".join(self.pieces(self.ids)) if self._tokenizer is None else self._tokenizer.decode(self.ids)

    def _stop_place(self) -> int | None:
        """Where in the text the earliest stop string starts."""
        text = self._decoded()
        places = [place for place in map(text.find, self._stops) if place >= 0]
        return min(places) if places else None
