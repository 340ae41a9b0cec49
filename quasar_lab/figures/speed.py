"""Times: of one verify pass by width, and of the parts of a round.

At batch 1 a pass is bound by reading the weights, so T(M) is nearly flat in the width M: that is why drafting pays, and
why half the bytes can mean half the time. The floor drawn with every curve is what this machine's memory allows: bytes
read / stream bandwidth measured in the same run.
"""

from typing import Any

import plotly.graph_objects as go

from quasar_lab.figures.style import GREY, ORANGE, SKY, VERIFIERS, escape, finish, interval
from quasar_lab.trace import Trace

PARTS = (("draft", ORANGE), ("verify", SKY), ("sample", GREY), ("host", "#c7ccd1"))


def step_time(result: dict[str, Any]) -> go.Figure:
    """T(M) of each verifier: median with a bar from the 20th to the 80th percentile, and its floor (dashed).

    result: what `benchmark.step` returns, or the JSON of `quasar-lab bench step`.
    """
    steps = result["steps"]
    names = list(dict.fromkeys(step["verifier"] for step in steps))
    figure = go.Figure()
    for name, colour in zip(names, VERIFIERS, strict=False):
        rows = sorted((step for step in steps if step["verifier"] == name), key=lambda step: step["width"])
        widths, middle = [row["width"] for row in rows], [row["ms_p50"] for row in rows]
        figure.add_scatter(
            x=widths,
            y=middle,
            error_y=interval(rows, "ms_p20", "ms_p50", "ms_p80"),
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 8},
            name=name,
            customdata=[[row["bytes"] / 1e6, row["fraction_of_floor"], row["samples"]] for row in rows],
            hovertemplate=(
                f"{escape(name)}, width %{{x}}<br>%{{y:.2f}} ms · %{{customdata[0]:.0f}} MB read"
                "<br>%{customdata[1]:.0%} of the stream bandwidth · %{customdata[2]} samples<extra></extra>"
            ),
        )
        figure.add_scatter(
            x=widths,
            y=[row["floor_ms"] for row in rows],
            mode="lines",
            line={"color": colour, "width": 1.5, "dash": "dash"},
            name=f"floor of {name}",
            hovertemplate="floor %{y:.2f} ms<extra></extra>",
        )
    figure.update_xaxes(title_text="width M = γ + 1 of the pass", tickvals=sorted({step["width"] for step in steps}))
    figure.update_yaxes(title_text="ms per pass", rangemode="tozero")
    samples = min(step["samples"] for step in steps)
    subtitle = (
        f"median and 20–80 % of {samples} samples, interleaved · floor: bytes read at "
        f"{result['bandwidth_gb_s']:.1f} GB/s measured here"
    )
    identity = {**result, "recipe": ", ".join(names)}
    return finish(figure, "Time of one verify pass", subtitle, identity, timed=True, height=460)


def round_breakdown(trace: Trace) -> go.Figure:
    """Milliseconds of every round, stacked: draft, verify, sample, host; above each bar, the tokens it emitted."""
    rounds = trace.rounds
    numbers = [record.index + 1 for record in rounds]
    emitted = [len(record.emitted_ids) for record in rounds]
    figure = go.Figure()
    for name, colour in PARTS:
        figure.add_bar(
            x=numbers,
            y=[record.ms[name] for record in rounds],
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            customdata=emitted,
            hovertemplate=f"round %{{x}}: {name} %{{y:.2f}} ms · %{{customdata}} tokens emitted<extra></extra>",
        )
    heights = [sum(record.ms.values()) for record in rounds]
    figure.add_scatter(
        x=numbers,
        y=heights,
        mode="text",
        text=[str(count) for count in emitted],
        textposition="top center",
        name="tokens emitted",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
    )
    figure.update_layout(barmode="stack", bargap=0.15, legend_traceorder="normal")
    figure.update_xaxes(title_text="round")
    figure.update_yaxes(title_text="ms", range=[0, 1.12 * max(heights, default=1.0)])
    total = sum(heights)
    share = sum(record.ms["verify"] for record in rounds) / total if total else 0.0
    subtitle = f"numbers: tokens emitted · {share:.0%} of the time is the verify pass"
    if rounds:
        subtitle += f" · {total / len(rounds):.1f} ms a round, {total / sum(emitted):.1f} ms a token"
    return finish(figure, "Where the time of a round goes", subtitle, trace.header, timed=True)
