"""γ and lookup length under two sliders: the rehearsal is so cheap that the figure follows the hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from quasar_lab.evaluation.draft_simulation import Answer
from quasar_lab.figures.drafters import tau_by_text
from quasar_lab.speculative.generation import MAX_GAMMA
from quasar_lab.widgets.live import STYLE, WIDE
from quasar_lab.widgets.mode import enabled, put


class DrafterExplorer(w.VBox):
    """Two sliders above `figures.tau_by_text`."""

    def __init__(self, answered: Sequence[Answer], identity: Mapping[str, Any], longest: int, gamma: int):
        self._answered, self._identity = answered, identity
        self.gamma = w.IntSlider(gamma, 1, MAX_GAMMA, description="γ", layout=WIDE, style=STYLE)
        self.longest = w.IntSlider(longest, 1, 16, description="longest lookup", layout=WIDE, style=STYLE)
        self.area = w.Output()
        for slider in (self.gamma, self.longest):
            slider.observe(lambda _: self.draw(), "value")
        self.draw()
        super().__init__([w.HBox([self.gamma, self.longest]), self.area])

    def draw(self) -> None:
        """Shows what the sliders say."""
        longest, gamma = self.longest.value, self.gamma.value
        put(self.area, tau_by_text(self._answered, self._identity, longest=longest, gamma=gamma))


def drafter_explorer(
    answered: Sequence[Answer],
    identity: Mapping[str, Any],
    *,
    longest: int = 3,
    gamma: int = 4,
    interactive: bool = True,
) -> DrafterExplorer | go.Figure:
    """Acceptance of n-gram drafts by kind of text, with sliders; static: `figures.tau_by_text`."""
    if enabled(interactive):
        return DrafterExplorer(answered, identity, longest, gamma)
    return tau_by_text(answered, identity, longest=longest, gamma=gamma)
