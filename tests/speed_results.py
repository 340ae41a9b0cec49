"""Results of speed measurements made up for tests: numbers that a reader can check by head."""

from dataclasses import replace

from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.pass_profile import PassShares, ProfileResult
from quasar_lab.evaluation.pass_time import StepResult, StepRow
from quasar_lab.evaluation.pass_timer import Ceiling
from quasar_lab.speculative.trace import Prefill, Round, Trace

HOSTILE = "<img src=x onerror=alert(1)>"
DRAFTS = [0, 3, 2]
"""Drafted tokens of the rounds of `trace_of`; of the three two are accepted, of the two both."""
ORIGIN = Origin(model="m", device="cpu", backend="cpu", threads=2)


def make_round(index, drafted, accepted):
    emitted = accepted + 1
    return Round(
        index=index,
        position=4 + index,
        draft_ids=list(range(drafted)),
        draft_pieces=[HOSTILE] * drafted,
        parents=None,
        source=None,
        q=[1.0] * drafted,
        p=[0.5] * drafted,
        u=[None] * drafted,
        states=["accepted"] * accepted + ["rejected"] * (drafted - accepted),
        emitted_ids=list(range(emitted)),
        emitted_pieces=["a"] * emitted,
        emitted_states=["accepted"] * accepted + ["plain"],
        top=[[[0, "a", 0.2]] for _ in range(drafted + 1)],
        margin=[1.5] * (drafted + 1),
        ms={"draft": 1.0, "verify": 8.0 + index, "sample": 0.5, "host": 0.5},
    )


def trace_of():
    """Three rounds of 10, 11 and 12 ms that give 1, 3 and 3 tokens."""
    header = {
        "model": HOSTILE,
        "recipe": "w8a8",
        "verifier": "w8a8",
        "drafter": HOSTILE,
        "gamma": 3,
        "device": "cpu",
        "backend": "reference",
    }
    rounds = [make_round(index, drafted, min(drafted, 2)) for index, drafted in enumerate(DRAFTS)]
    return Trace(header, Prefill([9], ["a"], rounds[0].top[:1], [1.0], 5.0), rounds)


def step_row(name, place, width):
    """bf16, at place 0: 20 + M ms and 200 MB; every further verifier half of it."""
    base = 20.0 / 2**place
    return StepRow(
        verifier=name,
        width=width,
        ms_p20=base - 1,
        ms_p50=base + width,
        ms_p80=base + 20,
        samples=7,
        bytes=2 * 10**8 // 2**place,
        operations=3 * 10**8 * width,
        floor_ms=base / 2,
        fraction_of_floor=0.5,
    )


def steps_of(names=("bf16", "w8a8"), widths=(4, 1)):
    return StepResult(
        bandwidth_gb_s=20.0,
        origin=ORIGIN,
        context=8,
        steps=[step_row(name, place, width) for place, name in enumerate(names) for width in widths],
        ceilings=[Ceiling(name, 128, 40.0, 50.0 * (1 + place), 60.0, 7) for place, name in enumerate(names)],
    )


def changed_steps(result, change):
    """The result with `change(row)` in place of each row; None leaves the row out."""
    rows = [change(row) for row in result.steps]
    return replace(result, steps=[row for row in rows if row is not None])


def profile_of(verifier="w8a8"):
    """Width → shares that differ, so that a test sees which width was taken."""
    shares = {
        1: {"products": 0.5, "attention": 0.25, "rounding": 0.125, "other": 0.125},
        4: {"products": 0.25, "attention": 0.25, "rounding": 0.25, "other": 0.25},
    }
    rows = [PassShares(verifier, width, share, 6) for width, share in shares.items()]
    return ProfileResult(parts=rows, context=8, origin=ORIGIN)
