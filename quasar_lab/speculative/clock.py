"""How long the parts of a step take."""

import time
from collections.abc import Callable


class Stopwatch:
    """Runs from when it is made. Each `lap` names the part that ends with it, and the next part begins there."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._marks = [time.perf_counter()]

    def lap(self, name: str) -> None:
        """Ends a part."""
        self._marks.append(time.perf_counter())
        self._names.append(name)

    def settle(self, seconds: Callable[[], float] | None) -> None:
        """Corrects the border between the last two laps, a pass and what was made of its results.

        A device still works on a pass when the call returns, so the time that reading its results waited was the
        pass's. `seconds` says what the pass took on the device (None: the call returned when the work was done).
        """
        if seconds is not None:
            marks = self._marks
            marks[-2] = min(max(marks[-2], marks[-3] + seconds()), marks[-1])

    @property
    def seconds(self) -> dict[str, float]:
        """Name → seconds of every part so far."""
        parts = zip(self._names, self._marks, self._marks[1:], strict=False)
        return {name: after - before for name, before, after in parts}

    @property
    def ms(self) -> dict[str, float]:
        """Name → milliseconds of every part so far."""
        return {name: 1e3 * spent for name, spent in self.seconds.items()}

    @property
    def total(self) -> float:
        """Seconds up to the last lap."""
        return self._marks[-1] - self._marks[0]
