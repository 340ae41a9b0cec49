"""Where does drafting pay? The speedup for every acceptance rate α and every γ, from measured pass times.

If each draft is accepted with probability α, independently of the others, a round of γ drafts gives

    E(α, γ) = 1 + α + α² + … + α^γ = (1 − α^(γ+1)) / (1 − α)      tokens

(Leviathan, Kalman, Matias, arXiv 2211.17192, eq. 1), and costs one pass of width γ + 1, γ drafts and what a round
costs besides. Plain decoding with the baseline gives one token for one pass of width 1. So

    speedup(α, γ) = E(α, γ) · (T_base(1) + other) / (T(γ + 1) + γ · draft + other)

What the model leaves out: real drafts are not independent (a copied span is accepted until it ends), and a drafter such
as n-gram often proposes nothing. So a run is pinned twice: by its τ, at the α that would give this τ, which is what the
run is worth; and by the share of its judged drafts that were accepted, which is what it would be worth if every round
had γ drafts. The distance between them is what short and empty drafts cost. What a run gained by its own clock is not
told here: it was not interleaved with the pass times (`decode_benchmark` is).
"""

from typing import Any

import numpy as np
import plotly.graph_objects as go

from quasar_lab.evaluation.speedup_model import equivalent_alpha, speedups
from quasar_lab.figures.style import INK, ORANGE, VERMILION, escape, framed, rows_of, samples_of
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError

ALPHAS = np.linspace(0.0, 1.0, 101)


def speedup_map(
    result: dict[str, Any],
    verifier: str = "w8a8",
    baseline: str = "bf16",
    trace: Trace | None = None,
    draft_ms: float | None = None,
    other_ms: float | None = None,
) -> go.Figure:
    """Speedup of `verifier` with drafts over plain decoding with `baseline`, by acceptance rate and γ, with the lines
    of break-even; γ from 1 to what the widest measured pass holds, pass times between measured widths interpolated.

    result: what `benchmark.step` returns. trace: a run to pin; its costs per drafted token and per round are taken
    where draft_ms and other_ms are None (without a trace: 0). Raises InputError where a verifier was not timed, or not
    at width 1 and beyond.
    """
    curves = {name: {step["width"]: step["ms_p50"] for step in rows} for name, rows in rows_of(result["steps"]).items()}
    for name in (verifier, baseline):
        if name not in curves or 1 not in curves[name] or max(curves[name]) < 2:
            raise InputError(
                f"{name!r} was not timed at width 1 and wider ones; accepted: {', '.join(map(repr, curves))}, with such"
            )
    draft, other = _costs(trace)
    draft, other = (draft if draft_ms is None else draft_ms), (other if other_ms is None else other_ms)
    gammas = list(range(1, max(curves[verifier])))
    values = speedups(ALPHAS, gammas, curves[verifier], curves[baseline][1], draft, other)
    plain = (curves[baseline][1] + other) / (curves[verifier][1] + other)
    figure = go.Figure()
    _surface(figure, gammas, values)
    _even(figure, gammas, values, 1.0, f"as fast as {baseline}, plain", VERMILION)
    if verifier != baseline:
        _even(figure, gammas, values, plain, f"as fast as {verifier}, plain: {plain:.2f} ×", INK)
    best = [gammas[place] for place in values.argmax(axis=0)]
    figure.add_scatter(
        x=ALPHAS,
        y=best,
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot", "shape": "hv"},
        name="best γ",
        hovertemplate="at an acceptance rate of %{x:.0%} the best γ is %{y}<extra></extra>",
    )
    pinned = None if trace is None else _pin(figure, trace, gammas, curves[verifier], curves[baseline][1], draft, other)
    figure.update_xaxes(title_text="share of drafts accepted (α)", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="drafted tokens a round (γ)", dtick=1 if len(gammas) < 12 else 2, showgrid=False)
    costs = f"drafting {draft:.2f} ms a token, {other:.2f} ms a round besides"
    subtitle = f"{escape(verifier)} with drafts over {escape(baseline)} without, drafts independent · {costs}"
    subtitle += "" if pinned is None else f" · {pinned}"
    identity = {**result, "recipe": f"{verifier} over {baseline}", "samples": samples_of(result["steps"])}
    return framed(figure, "Where drafting pays", subtitle, identity, timed=True, height=560)


def _costs(trace: Trace | None) -> tuple[float, float]:
    """Milliseconds per drafted token, and of sampling and host per round, of a run."""
    if trace is None or not trace.rounds:
        return 0.0, 0.0
    drafted = sum(len(record.draft_ids) for record in trace.rounds)
    drafting = sum(record.ms["draft"] for record in trace.rounds)
    rest = sum(record.ms["sample"] + record.ms["host"] for record in trace.rounds)
    # A run that drafts nothing pays its drafter's looking by the round.
    per_round = rest if drafted else rest + drafting
    return (drafting / drafted if drafted else 0.0), per_round / len(trace.rounds)


def _surface(figure: go.Figure, gammas: list[int], values: np.ndarray) -> None:
    """Filled contours: what is slower than the baseline in orange tints, what is faster in blue ones."""
    low, high = min(float(values.min()), 0.99), max(float(values.max()), 1.01)
    even = (1 - low) / (high - low)
    step = next(size for size in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0) if (high - low) / size <= 14 or size == 5.0)
    figure.add_contour(
        x=ALPHAS,
        y=gammas,
        z=values,
        zmin=low,
        zmax=high,
        colorscale=[[0, "#f2b48c"], [even, "#ffffff"], [1, "#5aa5d6"]],
        contours={"start": step * int(low / step), "end": high, "size": step, "showlabels": True},
        line={"color": "rgba(27,31,36,0.25)", "width": 1},
        colorbar={"title": {"text": "speedup", "side": "right"}, "ticksuffix": " ×", "thickness": 12, "x": 1.01},
        hovertemplate="α %{x:.0%}, γ %{y}: %{z:.2f} ×<extra></extra>",
        name="speedup",
        showlegend=False,
    )


def _even(figure: go.Figure, gammas: list[int], values: np.ndarray, level: float, label: str, colour: str) -> None:
    """The line on which the speedup is `level`; where it is nowhere, the legend says so."""
    inside = float(values.min()) < level < float(values.max())
    figure.add_contour(
        x=ALPHAS,
        y=gammas,
        z=values if inside else np.full_like(values, level + 1),
        contours={"start": level, "end": level, "size": 1, "coloring": "none"},
        line={"color": colour, "width": 3},
        showscale=False,
        hoverinfo="skip",
        name=escape(label) + ("" if inside else ": everywhere faster" if values.min() >= level else ": nowhere"),
        showlegend=True,
    )


def _pin(
    figure: go.Figure,
    trace: Trace,
    gammas: list[int],
    curve: dict[int, float],
    base_ms: float,
    draft_ms: float,
    other_ms: float,
) -> str | None:
    """Marks a run by its τ and by its judged drafts; returns what the subtitle says of it. A run of a γ that the map
    does not hold, or that drafted nothing, cannot be pinned, and that is said."""
    gamma, rounds = trace.header["gamma"], trace.rounds
    accepted = sum(record.states.count("accepted") for record in rounds)
    refusals = sum("rejected" in record.states for record in rounds)
    if gamma not in gammas or not accepted + refusals:
        return f"this run (γ = {gamma}) is not on the map"
    emitted = sum(len(record.emitted_ids) for record in rounds)
    tau = emitted / len(rounds)
    worth = []
    places = (
        ("this run, by its τ", equivalent_alpha(tau, gamma), "circle"),
        ("this run, by its judged drafts", accepted / (accepted + refusals), "circle-open"),
    )
    for label, alpha, symbol in places:
        worth.append(float(speedups([alpha], [gamma], curve, base_ms, draft_ms, other_ms)[0, 0]))
        figure.add_scatter(
            x=[alpha],
            y=[gamma],
            mode="markers",
            marker={"size": 14, "color": ORANGE if symbol == "circle" else INK, "symbol": symbol, "line": {"width": 2}},
            name=label,
            hovertemplate=(
                f"{label}: α {alpha:.0%}, γ {gamma}<br>{worth[-1]:.2f} × by the map"
                f"<br>τ {tau:.2f}, {accepted} of {accepted + refusals} judged drafts accepted<extra></extra>"
            ),
        )
    return f"this run: τ = {tau:.2f}, by the map {worth[0]:.2f} ×, without short drafts {worth[1]:.2f} ×"
