"""Where does drafting pay? The speedup for every acceptance rate α and every γ, from measured pass times.

The formula, and what it leaves out, is in `evaluation.speedup_model`. A run is pinned twice: by its τ, which is what
the run is worth, and by the share of its judged drafts that were accepted. What a run gained by its own clock is not
told here: it was not interleaved with the pass times (`decode_benchmark` is).
"""

import numpy as np
import plotly.graph_objects as go

from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.evaluation.speedup_model import RunWorth, SpeedupMap, map_speedups
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.speed import step_origin
from quasar_lab.figures.style import INK, ORANGE, VERMILION, escape, framed
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.result import Json

SLOW = "#f2b48c"
FAST = "#5aa5d6"
CONTOUR_STEPS = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Distances between contour lines, of which the finest with at most MOST_CONTOURS lines is taken."""
MOST_CONTOURS = 14


def speedup_map(
    result: StepResult | Json,
    verifier: str = "w8a8",
    baseline: str = "bf16",
    trace: Trace | None = None,
    draft_ms: float | None = None,
    other_ms: float | None = None,
) -> Plot:
    """Speedup of `verifier` with drafts over plain decoding with `baseline`, by acceptance rate and γ, with the lines
    of break-even; γ from 1 to what the widest measured pass holds, pass times between measured widths interpolated.

    result: what `benchmark.step` returns, or the JSON of `quasar-lab bench step`. trace: a run to pin; its costs per
    drafted token and per round are taken where draft_ms and other_ms are None (without a trace: 0). Raises InputError
    where a verifier was not timed, or not at width 1 and beyond.
    """
    result = StepResult.of(result)
    found = map_speedups(result, verifier, baseline, trace, draft_ms, other_ms)
    figure = go.Figure()
    _surface(figure, found)
    _even(figure, found, 1.0, f"as fast as {baseline}, plain", VERMILION)
    if verifier != baseline:
        _even(figure, found, found.plain, f"as fast as {verifier}, plain: {found.plain:.2f} ×", INK)
    figure.add_scatter(
        x=found.alphas,
        y=found.best_gammas,
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot", "shape": "hv"},
        name="best γ",
        hovertemplate="at an acceptance rate of %{x:.0%} the best γ is %{y}<extra></extra>",
    )
    facts = [
        f"{escape(verifier)} with drafts over {escape(baseline)} without, drafts independent",
        f"drafting {found.draft_ms:.2f} ms a token, {found.other_ms:.2f} ms a round besides",
    ]
    if trace is not None:
        facts.append(_pin(figure, found, trace))
    spacing = 1 if len(found.gammas) < 12 else 2
    figure.update_xaxes(title_text="share of drafts accepted (α)", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="drafted tokens a round (γ)", dtick=spacing, showgrid=False)
    line = step_origin(result, f"{verifier} over {baseline}")
    return framed(figure, "Where drafting pays", " · ".join(facts), line, height=560)


def _surface(figure: go.Figure, found: SpeedupMap) -> None:
    """Filled contours: what is slower than the baseline in orange tints, what is faster in blue ones."""
    low = min(float(found.values.min()), 0.99)
    high = max(float(found.values.max()), 1.01)
    even = (1 - low) / (high - low)
    step = next((size for size in CONTOUR_STEPS if (high - low) / size <= MOST_CONTOURS), CONTOUR_STEPS[-1])
    figure.add_contour(
        x=found.alphas,
        y=found.gammas,
        z=found.values,
        zmin=low,
        zmax=high,
        colorscale=[[0, SLOW], [even, "#ffffff"], [1, FAST]],
        contours={
            "start": step * int(low / step),
            "end": high,
            "size": step,
            "showlabels": True,
            "labelfont": {"size": 11, "color": INK},
        },
        line={"color": "rgba(27,31,36,0.25)", "width": 1},
        colorbar={"title": {"text": "speedup", "side": "right"}, "ticksuffix": " ×", "thickness": 12, "x": 1.01},
        hovertemplate="α %{x:.0%}, γ %{y}: %{z:.2f} ×<extra></extra>",
        name="speedup",
        showlegend=False,
    )


def _even(figure: go.Figure, found: SpeedupMap, level: float, label: str, colour: str) -> None:
    """The line on which the speedup is `level`; where it is nowhere, the legend says so."""
    slowest = float(found.values.min())
    inside = slowest < level < float(found.values.max())
    figure.add_contour(
        x=found.alphas,
        y=found.gammas,
        z=found.values if inside else np.full_like(found.values, level + 1),
        contours={"start": level, "end": level, "size": 1, "coloring": "none"},
        line={"color": colour, "width": 3},
        showscale=False,
        hoverinfo="skip",
        name=escape(label) + ("" if inside else ": everywhere faster" if slowest >= level else ": nowhere"),
        showlegend=True,
    )


def _pin(figure: go.Figure, found: SpeedupMap, trace: Trace) -> str:
    """Marks a run by its τ and by its judged drafts; returns what the subtitle says of it. A run of a γ that the map
    does not hold, or that drafted nothing, cannot be pinned, and that is said."""
    run = found.worth(trace)
    if run is None:
        return f"this run (γ = {trace.header['gamma']}) is not on the map"
    _marker(figure, run, "this run, by its τ", run.alpha_of_tau, run.speedup_of_tau, filled=True)
    _marker(figure, run, "this run, by its judged drafts", run.judged.share, run.speedup_of_judged, filled=False)
    return (
        f"this run: τ = {run.tau:.2f}, by the map {run.speedup_of_tau:.2f} ×, "
        f"without short drafts {run.speedup_of_judged:.2f} ×"
    )


def _marker(figure: go.Figure, run: RunWorth, label: str, alpha: float, speedup: float, *, filled: bool) -> None:
    figure.add_scatter(
        x=[alpha],
        y=[run.gamma],
        mode="markers",
        marker={
            "size": 14,
            "color": ORANGE if filled else INK,
            "symbol": "circle" if filled else "circle-open",
            "line": {"width": 2},
        },
        name=label,
        hovertemplate=(
            f"{label}: α {alpha:.0%}, γ {run.gamma}<br>{speedup:.2f} × by the map"
            f"<br>τ {run.tau:.2f}, {run.judged.accepted} of {run.judged.judged} judged drafts accepted<extra></extra>"
        ),
    )
