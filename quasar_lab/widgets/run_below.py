"""The offer to run the cells below, which still hold what they were run with."""

from importlib.resources import files

import anywidget
import traitlets


class RunBelow(anywidget.AnyWidget):
    """Shown while `offered`."""

    _esm = (files("quasar_lab.widgets") / "run_below.js").read_text(encoding="utf-8")

    offered = traitlets.Bool(False).tag(sync=True)
