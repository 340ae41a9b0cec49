"""Ask, watch, stop: generation with the token strip as it happens; then ask another verifier about the same drafts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import ipywidgets as w
from traitlets.utils.bunch import Bunch

from quasar_lab.evaluation.rescore import rescore
from quasar_lab.figures import StripHTML, acceptance, token_strip
from quasar_lab.speculative.config import MAX_GAMMA, GenerationConfig
from quasar_lab.speculative.drafters.registry import DEFAULT, kinds
from quasar_lab.speculative.generation import generate, stream
from quasar_lab.speculative.trace import Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import QuasarError
from quasar_lab.support.result import Json
from quasar_lab.widgets.lifetime import close_all, one_run_of_a_cell
from quasar_lab.widgets.mode import enabled, put, with_static_view
from quasar_lab.widgets.rows import row, wide
from quasar_lab.widgets.token_strip import TokenStrip

LONGEST_ANSWER = 256
"""New tokens at the right end of the slider."""

WIDE = wide("420px")
FULL = w.Layout(width="calc(100% - 6px)", height="64px")
"""As wide as the cell; a widget's own margins come on top."""

STYLE = {"description_width": "110px"}


class LivePanel(w.VBox):
    """Prompt and options above, the strip below, and under it the acceptance of a run that was started here (that of
    the opening trace is the notebook's to show). Where there are several verifiers, "Judge again" replays the run
    through another one and marks what that would decide otherwise. `trace`: of the latest run."""

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        prompt: str,
        drafter: str,
        config: GenerationConfig,
        trace: Trace | None,
    ):
        self._by_name = {verifier.name: verifier for verifier in verifiers}
        self.prompt = w.Textarea(prompt, description="prompt", layout=FULL, style=STYLE)
        self.verifier = w.Dropdown(options=list(self._by_name), description="verifier", layout=WIDE, style=STYLE)
        drafters = sorted(kinds(), key=lambda name: name == "none")  # plain decoding comes last
        self.drafter = w.Dropdown(options=drafters, value=drafter, description="drafter", layout=WIDE, style=STYLE)
        self.gamma = w.IntSlider(config.gamma, 1, MAX_GAMMA, description="γ", layout=WIDE, style=STYLE)
        self.tokens = w.IntSlider(
            config.max_new_tokens, 1, LONGEST_ANSWER, description="new tokens", layout=WIDE, style=STYLE
        )
        self.temperature = w.FloatSlider(
            config.temperature, min=0, max=2, step=0.1, description="temperature", layout=WIDE, style=STYLE
        )
        self.seed = w.IntText(config.seed, description="seed", layout=WIDE, style=STYLE)
        self.start = w.Button(description="Run", button_style="primary", icon="play")
        self.judge = w.Dropdown(options=list(self._by_name)[::-1], layout=wide("180px"))
        self.again = w.Button(description="Judge again with", icon="exchange", disabled=trace is None)
        self.message = w.HTML()
        self.strip = TokenStrip(trace)
        self.figure = w.Output()
        self.start.on_click(lambda _: self.run())
        self.again.on_click(lambda _: self.judge_again())
        self.strip.observe(self._follow, "running")
        whole = w.Layout(max_width="100%")
        columns = [
            w.VBox([self.verifier, self.drafter, self.gamma], layout=whole),
            w.VBox([self.temperature, self.tokens, self.seed], layout=whole),
        ]
        replay = [self.again, self.judge] if len(self._by_name) > 1 else []
        buttons = row(self.start, *replay, self.message)
        super().__init__([self.prompt, row(*columns), buttons, self.strip, self.figure])
        one_run_of_a_cell(self)

    def close(self) -> None:
        """Ends the run, takes the panel off the page and lets go of the models."""
        self._by_name = {}
        close_all(*self.children, self.again, self.judge)  # these two are shown only with several verifiers
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> Json:
        html = "" if self.trace is None else token_strip(self.trace).html
        return with_static_view(super()._repr_mimebundle_(**options) or {}, "Live generation", html)

    def _follow(self, change: Bunch) -> None:
        self.start.disabled = change.new
        self.again.disabled = change.new or self.trace is None

    @property
    def trace(self) -> Trace | None:
        return self.strip.trace

    def run(self) -> None:
        """Starts a run with the options on the panel; what is wrong with them is said beside the button."""
        self.message.value = ""
        try:
            self.strip.run(
                stream(
                    self._by_name[self.verifier.value],
                    self.prompt.value,
                    drafter=self.drafter.value,
                    gamma=self.gamma.value,
                    max_new_tokens=self.tokens.value,
                    temperature=self.temperature.value,
                    seed=self.seed.value,
                ),
                done=lambda trace: put(self.figure, acceptance(trace)),
            )
        except QuasarError as error:
            self.message.value = note(error)

    def judge_again(self) -> None:
        """Replays the latest run through the verifier that is picked, and shows both."""
        self.message.value = ""
        if self.trace is None:
            return
        try:
            self.strip.show(rescore(self.trace, self._by_name[self.judge.value]))
        except QuasarError as error:
            self.message.value = note(error)


def note(error: QuasarError) -> str:
    """An error in words, escaped for an HTML widget."""
    from html import escape

    return f'<span role="alert">{escape(str(error))}</span>'


def generate_live(
    verifiers: Verifier | Sequence[Verifier],
    prompt: str,
    *,
    drafter: str = DEFAULT,
    gamma: int = GenerationConfig.gamma,
    max_new_tokens: int = 48,
    temperature: float = GenerationConfig.temperature,
    seed: int = GenerationConfig.seed,
    trace: Trace | None = None,
    interactive: bool = True,
) -> LivePanel | StripHTML:
    """A panel to run `prompt` with any of `verifiers`, opening with `trace` where there is one. An audited verifier
    (`ql.audited`) is one too: its tokens are provisional in the strip until their audit.

    Static: the strip of `trace`, or of one run with the first verifier.
    """
    several = list(verifiers) if isinstance(verifiers, Sequence) else [verifiers]
    config = GenerationConfig(gamma=gamma, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    if enabled(interactive):
        return LivePanel(several, prompt, drafter, config, trace)
    if trace is None:
        trace = generate(several[0], prompt, drafter=drafter, **asdict(config))
    return token_strip(trace)
