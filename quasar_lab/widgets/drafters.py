"""γ and lookup length under two sliders: a simulation is so cheap that the figure follows the sliders."""

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as w

from quasar_lab.evaluation.draft_simulation import PlainAnswer, longest_tau
from quasar_lab.figures.drafters import tau_by_text
from quasar_lab.figures.plot import Plot
from quasar_lab.speculative.config import MAX_GAMMA, GenerationConfig
from quasar_lab.speculative.drafters.ngram import LONGEST, LONGEST_ACCEPTED
from quasar_lab.support.result import Json
from quasar_lab.widgets.lifetime import close_all, one_run_of_a_cell
from quasar_lab.widgets.live import STYLE, WIDE
from quasar_lab.widgets.mode import enabled, put, with_static_view
from quasar_lab.widgets.rows import row


class DrafterExplorer(w.VBox):
    """Two sliders above `figures.tau_by_text`."""

    def __init__(self, answered: Sequence[PlainAnswer], identity: Mapping[str, Any], longest: int, gamma: int):
        self._answered, self._identity = answered, identity
        self._span = longest_tau(answered)
        self.gamma = w.IntSlider(gamma, 1, MAX_GAMMA, description="γ", layout=WIDE, style=STYLE)
        self.longest = w.IntSlider(longest, 1, LONGEST_ACCEPTED, description="longest lookup", layout=WIDE, style=STYLE)
        self.area = w.Output()
        for slider in (self.gamma, self.longest):
            slider.observe(lambda _: self.draw(), "value")
        self.draw()
        super().__init__([row(self.gamma, self.longest), self.area])
        one_run_of_a_cell(self)

    def close(self) -> None:
        """Takes the panel off the page."""
        close_all(*self.children)
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> Json:
        live = super()._repr_mimebundle_(**options) or {}
        return with_static_view(live, "Acceptance by kind of text", figure=self.area)

    def draw(self) -> None:
        """Shows what the sliders say."""
        longest, gamma = self.longest.value, self.gamma.value
        put(self.area, tau_by_text(self._answered, self._identity, longest=longest, gamma=gamma, span=self._span))


def drafter_explorer(
    answered: Sequence[PlainAnswer],
    identity: Mapping[str, Any],
    *,
    longest: int = LONGEST,
    gamma: int = GenerationConfig.gamma,
    interactive: bool = True,
) -> DrafterExplorer | Plot:
    """Acceptance of n-gram drafts by kind of text, with sliders; static: `figures.tau_by_text`."""
    if enabled(interactive):
        return DrafterExplorer(answered, identity, longest, gamma)
    return tau_by_text(answered, identity, longest=longest, gamma=gamma)
