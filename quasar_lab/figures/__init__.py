"""One function per view: models, measurements or a trace in, a plotly figure out (for the token strip, HTML).

Nothing here has buttons or state: `quasar_lab.widgets` puts controls around these functions, `quasar_lab.reports`
prints them. So what a slider shows, what a report shows and what a test checks is the same figure.

    figures.outliers(model, layer=11, projection="down_proj")      what smoothing does to one linear's input
    figures.model_map(model)                                       where in the model the large values are
    figures.error_by_alpha(model, layer=11, projection="qkv_proj") how much to smooth
    figures.token_strip(trace)                                     every draft, kept or refused, token by token
    figures.acceptance(trace)                                      how many drafts are kept
    figures.round_breakdown(trace)                                 where the time of a round goes
    figures.step_time(result)                                      BF16 against W8A8, by width
    figures.speedup(result)                                        the 2×2 over whole answers, with intervals
    figures.speedup_factors(result, "w8a8", "ngram")               which part of a speedup is the faster step

Every figure is stamped with the model, recipe, device and backend it came from.
"""

from quasar_lab.figures.acceptance import acceptance
from quasar_lab.figures.activations import Activations, capture
from quasar_lab.figures.decode import speedup, speedup_factors
from quasar_lab.figures.outliers import error_by_alpha, model_map, outliers
from quasar_lab.figures.speed import round_breakdown, step_time
from quasar_lab.figures.strip import StripHTML, token_strip

__all__ = [
    "Activations",
    "StripHTML",
    "acceptance",
    "capture",
    "error_by_alpha",
    "model_map",
    "outliers",
    "round_breakdown",
    "speedup",
    "speedup_factors",
    "step_time",
    "token_strip",
]
