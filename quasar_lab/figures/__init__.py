"""One function per view: models, measurements or a trace in, a plotly figure out (for the token strip, HTML).

Nothing here has buttons or state: `quasar_lab.widgets` puts controls around these functions, `quasar_lab.reports`
prints them. So what a slider shows, what a report shows and what a test checks is the same figure.

    figures.outliers(model, layer=11, projection="down_proj")      what smoothing does to one linear's input
    figures.model_map(model)                                       where in the model the large values are
    figures.surfaces(model, layer=11, projection="down_proj")      |X| and |W| as landscapes, with a slider for α
    figures.error_by_alpha(model, layer=11, projection="qkv_proj") how much to smooth
    figures.channel(model, 12, "qkv_proj", 7)                      one channel: factor, maxima, share of the error
    figures.exactness(model, 12, "qkv_proj")                       what a mapping changes before and after rounding
    figures.token_strip(trace)                                     every draft, kept or refused, token by token
    figures.acceptance(trace)                                      how many drafts are kept
    figures.round_breakdown(trace)                                 where the time of a round goes
    figures.mean_round(traces)                                     the same, of several runs beside each other
    figures.step_time(result)                                      BF16 against W8A8, by width
    figures.roofline(result)                                       what bounds a pass, memory or arithmetic
    figures.speedup_map(result, trace=trace)                       where drafting pays, by acceptance rate and γ
    figures.speedup(result)                                        the 2×2 over whole answers, with intervals
    figures.speedup_factors(result, "w8a8", "ngram")               which part of a speedup is the faster step
    figures.predicted_speedup(result)                              does the speedup come out as step times predict?
    figures.paper_table([result, …])                               the same as the table that papers print
    figures.tau_by_text(answers, identity)                         which kind of text can be drafted by lookup
    figures.divergence(result)                                     KL to BF16 at every position, flips marked
    figures.flip_margins(result)                                   flips are close calls
    figures.lossless([bf16, w8a8, audited])                        greedy runs side by side, first difference marked
    figures.audit_cost(result)                                     speed of BF16's own text, by audit length
    figures.frontier(rows)                                         distance from BF16 against bytes, by recipe

Every figure is stamped with the model, recipe, device and backend it came from.
"""

from quasar_lab.evaluation.activations import Activations, capture
from quasar_lab.evaluation.linear_view import exactness
from quasar_lab.figures.acceptance import acceptance
from quasar_lab.figures.audit_cost import audit_cost
from quasar_lab.figures.decode import predicted_speedup, speedup, speedup_factors
from quasar_lab.figures.drafters import tau_by_settings, tau_by_text
from quasar_lab.figures.fidelity import divergence, flip_margins
from quasar_lab.figures.frontier import frontier
from quasar_lab.figures.lossless import lossless
from quasar_lab.figures.outliers import channel, error_by_alpha, model_map, outliers
from quasar_lab.figures.roofline import roofline
from quasar_lab.figures.speed import mean_round, round_breakdown, step_time
from quasar_lab.figures.speedup_map import speedup_map
from quasar_lab.figures.strip import StripHTML, token_strip
from quasar_lab.figures.surfaces import surfaces
from quasar_lab.figures.tables import Table, paper_table

__all__ = [
    "Activations",
    "StripHTML",
    "Table",
    "acceptance",
    "audit_cost",
    "capture",
    "channel",
    "divergence",
    "error_by_alpha",
    "exactness",
    "flip_margins",
    "frontier",
    "lossless",
    "mean_round",
    "model_map",
    "outliers",
    "paper_table",
    "predicted_speedup",
    "roofline",
    "round_breakdown",
    "speedup",
    "speedup_factors",
    "speedup_map",
    "step_time",
    "surfaces",
    "tau_by_settings",
    "tau_by_text",
    "token_strip",
]
