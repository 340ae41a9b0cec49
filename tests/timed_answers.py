"""Answers whose times and counts are known, and pass times to go with them."""

from quasar_lab.evaluation.timed_answer import TimedAnswer

CURVES = {"bf16": {"1": 10.0, "5": 12.0}, "w8a8": {"1": 5.0, "5": 6.0}}


def timed(
    verifier="bf16", drafter="none", question="1", category="maths", tokens=30, rounds=30, step=0.010, other=0.001
):
    return TimedAnswer(
        verifier=verifier,
        drafter=drafter,
        question=question,
        category=category,
        rounds_by=verifier,
        audits_by=None,
        tokens=tokens,
        rounds=rounds,
        drafted=0,
        prefill=9.0,
        verify=step * rounds,
        draft=0.0,
        sample=other * rounds,
        host=0.0,
        widths={1: rounds} if drafter == "none" else {5: rounds},
        ids=[[tokens]],
    )
