"""Controls around the figures, for a notebook that a person has open.

Every panel takes `interactive`. True gives the live panel. False gives the same figure without controls, computed
before the cell ends. The environment variable QUASAR_HEADLESS=1 turns every panel off, whatever a notebook says.
Reports and tests set it, because a panel in a run without a person shows nothing, or waits for ever. Where ipywidgets
or anywidget is not installed, `static` takes the place of the panels.

    ql.widgets.pick_model(...)          which model, which recipe, where it runs, how many bytes
    ql.widgets.outlier_explorer(...)    any layer, any projection, your own text
    ql.widgets.drafter_explorer(...)    n-gram drafts by kind of text, under two sliders
    ql.widgets.generate_live(...)       the token strip while the model runs, with Stop
"""

from typing import TYPE_CHECKING

from quasar_lab.widgets.static import packages_missing

if not TYPE_CHECKING and packages_missing():
    from quasar_lab.widgets.static import drafter_explorer, generate_live, outlier_explorer, pick_model
else:
    from quasar_lab.widgets.drafters import DrafterExplorer, drafter_explorer
    from quasar_lab.widgets.explorer import OutlierExplorer, outlier_explorer
    from quasar_lab.widgets.live import LivePanel, generate_live
    from quasar_lab.widgets.mode import enabled
    from quasar_lab.widgets.models import ModelPanel, pick_model
    from quasar_lab.widgets.token_strip import TokenStrip

__all__ = [
    "DrafterExplorer",
    "LivePanel",
    "ModelPanel",
    "OutlierExplorer",
    "TokenStrip",
    "drafter_explorer",
    "enabled",
    "generate_live",
    "outlier_explorer",
    "pick_model",
]
