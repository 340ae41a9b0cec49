"""Pick a model: load it in BF16 and W8A8, and see what that costs in bytes.

The one panel that every notebook opens with. The choice is loaded when the panel is made, so that "Run all" works at
first try. Another one is loaded on request, in a thread of its own that says what it does; the panel then offers to run
the cells below again, with `panel.model` and `panel.quantized`. A choice that cannot be loaded is explained, and the
models loaded before stay. A change of the recipe keeps the BF16 model.

What was chosen by hand is kept for the next notebook in the same kernel: it stands in for each parameter that the
notebook leaves at its default. What a notebook asks for by name always wins, and a run without a person never sees an
earlier choice.
"""

import gc
import threading
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import ipywidgets as w
from IPython.display import display

from quasar_lab import load
from quasar_lab.evaluation import catalogue
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.families import family_names
from quasar_lab.quantization.saved_model import quantize
from quasar_lab.support import progress
from quasar_lab.support.errors import InputError, QuasarError
from quasar_lab.widgets.lifetime import close_all, one_run_of_a_cell, start_thread
from quasar_lab.widgets.live import STYLE, WIDE, note
from quasar_lab.widgets.mode import enabled, with_static_view
from quasar_lab.widgets.recipe_picker import RecipePicker
from quasar_lab.widgets.rows import row
from quasar_lab.widgets.run_below import RunBelow
from quasar_lab.widgets.size_table import size_table

DEVICES, BACKENDS = ("cpu", "cuda"), ("auto", "cpu", "reference", "triton")


@dataclass(frozen=True)
class Choice:
    """What a person can choose: a model by catalogue name, hub id or folder, how it is quantized and where it runs."""

    model: str = "embedded"
    recipe: str = "w8a8"
    device: str = "cpu"
    backend: str = "auto"

    def over(self, other: "Choice") -> "Choice":
        """This choice, with `other`'s where this one is the default."""
        default = Choice()
        return Choice(
            *(
                theirs if mine == usual else mine
                for mine, theirs, usual in zip(self.fields(), other.fields(), default.fields(), strict=True)
            )
        )

    def fields(self) -> tuple[str, str, str, str]:
        return self.model, self.recipe, self.device, self.backend


@dataclass
class Session:
    """What this kernel remembers between panels. by_hand: the latest choice that a person loaded. loaded: the latest
    one that went well, with its decoders."""

    by_hand: Choice | None = None
    loaded: tuple[Choice, Decoder, Decoder] | None = None

    def open(self, choice: Choice) -> tuple[Choice, Decoder, Decoder]:
        """The choice with its BF16 and INT8 decoders, loaded unless they are at hand. Raises QuasarError, and
        remembers what it did before, when that cannot be."""
        if self.loaded is None or self.loaded[0] != choice:
            same = self.loaded is not None and replace(self.loaded[0], recipe=choice.recipe) == choice
            exact = self.loaded[1] if same and self.loaded else load(choice.model, choice.device, choice.backend)
            self.loaded = choice, exact, quantize(exact, choice.recipe)
        return self.loaded


SESSION = Session()


class ModelPanel:
    """model: the BF16 decoder. quantized: the same model by the recipe."""

    def __init__(self, choice: Choice, interactive: bool, session: Session):
        self._live, self._session = enabled(interactive), session
        refused: QuasarError | None = None
        if self._live and session.by_hand is not None:
            choice = choice.over(session.by_hand)
        try:
            opened = session.open(choice)
        except QuasarError as error:
            # A cell that fails would leave the notebook without any model; but only a person can read why and choose.
            if not self._live or session.loaded is None:
                raise
            refused, opened = error, session.loaded
        self.chosen, *decoders = opened
        self._decoders: tuple[Decoder, ...] = tuple(decoders)
        self._thread: threading.Thread | None = None
        self._make_controls(choice)
        self.preview, self.message = w.HTML(), w.HTML("" if refused is None else self._refusal(refused))
        self.table = w.HTML(self._repr_html_(), layout=w.Layout(width="calc(100% - 6px)"))
        self._foretell()
        fields = [self.choice, self.recipe, row(self.device, self.backend), self.preview]
        buttons = row(self.start, self.free, self.message)
        self._box = w.VBox([*fields, buttons, self.below, self.table])
        one_run_of_a_cell(self)

    def _make_controls(self, choice: Choice) -> None:
        look = {"layout": WIDE, "style": STYLE}
        ids = list(catalogue.accepted_names())
        self.choice = w.Combobox(value=choice.model, options=ids, description="model", ensure_option=False, **look)
        self.choice.placeholder = "embedded, a folder, or a hub id"
        try:
            self.recipe = RecipePicker(choice.recipe)
        except QuasarError:  # what was asked for was refused above
            self.recipe = RecipePicker(self.chosen.recipe)
        self.device = w.Dropdown(value=choice.device, options=DEVICES, description="device", **look)
        self.backend = w.Dropdown(value=choice.backend, options=BACKENDS, description="backend", **look)
        self.start = w.Button(description="Load", button_style="primary")
        self.free = w.Button(description="Free memory", tooltip="lets go of both models; Load brings them back")
        self.below = RunBelow()
        self.start.on_click(lambda _: self.reload())
        self.free.on_click(lambda _: self.let_go())
        self.choice.observe(lambda _: self._foretell(), "value")

    @property
    def model(self) -> Decoder:
        return self._decoder(0)

    @property
    def quantized(self) -> Decoder:
        return self._decoder(1)

    def _decoder(self, place: int) -> Decoder:
        if not self._decoders:
            raise InputError("the models of this panel were freed; press Load in it, or run its cell again")
        return self._decoders[place]

    def reload(self) -> None:
        """Loads what the panel says, in a thread of its own."""
        if self._thread is not None and self._thread.is_alive():
            return
        wanted = Choice(self.choice.value.strip(), self.recipe.value, self.device.value, self.backend.value)
        self.start.disabled = self.free.disabled = True
        self._say(f"loading {wanted.model} …")
        self._thread = start_thread(lambda: self._load(wanted))

    def let_go(self) -> None:
        """Frees the memory of both models, as far as nothing else in the notebook holds them."""
        self._decoders, self._session.loaded = (), None
        gc.collect()
        self.table.value, self.below.offered = "", False
        self.message.value = _status("freed; Load brings the models back")

    def close(self) -> None:
        """Takes the panel off the page and lets go of its models; what the session remembers stays."""
        self._decoders = ()
        close_all(self._box)

    def wait(self) -> None:
        """Returns when a load that was asked for has ended, well or not."""
        if self._thread is not None:
            self._thread.join()

    def _load(self, wanted: Choice) -> None:
        outcome = note(QuasarError("loading failed for a reason of the lab's own: see the log"))
        try:
            with progress.listening(self._say):
                self.chosen, *decoders = self._session.open(wanted)
            self._decoders = tuple(decoders)
            self._session.by_hand = wanted
            self.table.value = self._repr_html_()
            outcome, self.below.offered = _status("loaded"), True
        except QuasarError as error:
            outcome = self._refusal(error)
        finally:
            self.message.value, self.start.disabled, self.free.disabled = outcome, False, False

    def _say(self, text: str) -> None:
        self.message.value = _status(text)

    def _refusal(self, error: QuasarError) -> str:
        stays = f" <span>({escape(self.chosen.model)} stays loaded)</span>" if self._decoders else ""
        return f"{note(error)}{stays}"

    def _foretell(self) -> None:
        """What a model of the catalogue will cost, before anything is downloaded."""
        try:
            row = catalogue.row(catalogue.find(self.choice.value))
        except InputError:  # not in the list: it may still be a folder or a hub id
            self.preview.value = f"a folder or hub id of the families {family_names()}"
            return
        fits = "fits here" if row.fits else "does <b>not</b> fit in this machine's memory"
        self.preview.value = (
            f"{row.parameters / 1e6:.0f} M weights, {escape(row.license)}, from the {escape(row.source)}"
            f"{' model' if row.source == catalogue.EMBEDDED else ''} · read per step "
            f"{row.step_bytes_bf16 / 1e9:.2f} → {row.step_bytes_w8a8 / 1e9:.2f} GB · {fits}"
        )

    def _repr_html_(self) -> str:
        return size_table(self.model, self.quantized)

    def _ipython_display_(self, **options: Any) -> None:
        table = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        live = self._box._repr_mimebundle_() or {}
        display(with_static_view(live, "Model", table["text/html"]) if self._live else table, raw=True)


def _status(text: str) -> str:
    return f'<span role="status">{escape(text)}</span>'


def pick_model(
    model: str = "embedded",
    recipe: str = "w8a8",
    *,
    device: str = "cpu",
    backend: str = "auto",
    interactive: bool = True,
) -> ModelPanel:
    """Loads `model` and its W8A8 copy and shows both sizes; live: with fields to choose others.

    Raises QuasarError when that cannot be and no model was loaded before.
    """
    return ModelPanel(Choice(model, recipe, device, backend), interactive, SESSION)
