"""Controls beside each other, as far as the page is wide: where it is narrow, they stand below each other.

ipywidgets' own row keeps all its controls on one line. On a phone, or in a narrow column of JupyterLab, the last ones
are then cut off or squeezed to nothing.
"""

import ipywidgets as w

FIT = "calc(100% - 6px)"
"""The whole width of the page less the margins of a control."""


def row(*controls: w.Widget) -> w.HBox:
    """A row of controls that breaks where the page ends."""
    return w.HBox(controls, layout=w.Layout(flex_flow="row wrap", max_width="100%"))


def wide(width: str, **more: str) -> w.Layout:
    """A layout of this width, or that of the page where that is less."""
    return w.Layout(width=width, max_width=FIT, **more)
