"""One question answered by one arm of the benchmark, with what its decoding cost.

## Idea

An *arm* is a verifier with a drafter. It answers all turns of a question, and a `TimedAnswer` keeps what the table of
`bench decode` needs of that: counts of tokens and rounds, seconds by part, and the widths of all passes.

## Choice

The prefill is timed apart from decoding, and the token that it gives is not counted. Tokens are counted as ids, so they
mean the same in every arm. The answer names the verifiers whose passes were rounds and audits: in an audited arm these
are two, and their pass times differ.

## What is lost

The text itself. The ids of the tokens stay, so that answers can be compared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from quasar_lab.evaluation.questions import Question
from quasar_lab.speculative.config import GenerationConfig
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.trace import Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Result


@dataclass(frozen=True)
class Arm(Result):
    """The names of a verifier and the drafter that it runs with."""

    verifier: str
    drafter: str


@dataclass(frozen=True)
class TimedAnswer(Result):
    """All turns of one question, answered by one arm."""

    verifier: str
    drafter: str
    question: str
    """The question's id."""
    category: str
    rounds_by: str
    """The verifier whose passes the rounds were."""
    audits_by: str | None
    """The verifier whose passes the audits were; None where nothing was audited."""
    tokens: int
    """New tokens, without the one that each prefill gave."""
    rounds: int
    drafted: int
    """Tokens that the drafter proposed."""
    prefill: float
    """Seconds of the prefills; all seconds below are of decoding."""
    verify: float
    """Seconds of the rounds' passes."""
    draft: float
    sample: float
    host: float
    """Seconds of decoding that are none of the others."""
    widths: dict[int, int]
    """Width of a pass → rounds of that width."""
    ids: list[list[int]]
    """Emitted tokens, per turn."""
    audit: float = 0.0
    """Seconds of the audits' passes."""
    audit_widths: dict[int, int] = field(default_factory=dict)
    """Width of a pass → audits of that width."""
    audited: int = 0
    """Tokens that the audits were given."""
    judged: int = 0
    """Tokens that the audits looked at: in each audit, up to the first one that it refused."""
    flips: int = 0
    """Tokens that the audits refused."""

    @property
    def arm(self) -> Arm:
        return Arm(self.verifier, self.drafter)

    @property
    def pass_seconds(self) -> float:
        """Seconds of passes, of rounds and audits."""
        return self.verify + self.audit

    @property
    def overhead(self) -> float:
        """Seconds of decoding outside the passes of verifiers."""
        return self.draft + self.sample + self.host

    @property
    def seconds(self) -> float:
        """Seconds of decoding."""
        return self.pass_seconds + self.overhead


def answer_question(verifier: Verifier, drafter: str, question: Question, config: GenerationConfig) -> TimedAnswer:
    """Answers all turns of a question; with a chat template, each turn sees the conversation so far.

    Turns that no longer fit the context are left out. Raises InputError if the first one does not fit.
    """
    messages: list[dict[str, str]] = []
    traces: list[Trace] = []
    for turn in question.turns:
        messages.append({"role": "user", "content": turn})
        try:
            trace = generate(verifier, conversation(verifier, messages), drafter=drafter, **asdict(config))
        except InputError:
            if not traces:
                raise
            break  # the conversation has outgrown the context
        traces.append(trace)
        messages.append({"role": "assistant", "content": trace.text})
    return timed_answer(verifier, drafter, question, traces)


def timed_answer(verifier: Verifier, drafter: str, question: Question, traces: Sequence[Trace]) -> TimedAnswer:
    """What the runs of all turns of a question show."""
    summaries = [trace.summary() for trace in traces]
    rounds = [record for trace in traces for record in trace.rounds]
    audits = [audit for trace in traces for audit in trace.audits]
    seconds = {
        part: sum(summary["seconds"].get(part, 0.0) for summary in summaries)
        for part in ("prefill", "verify", "draft", "sample", "host", "audit")
    }
    audit_passes = sum(1e-3 * audit.ms["verify"] for audit in audits)
    auditor = verifier.auditor
    return TimedAnswer(
        verifier=verifier.name,
        drafter=drafter,
        question=question.id,
        category=question.category,
        rounds_by=verifier.passes[-1].name,  # a pair's passes are the exact verifier's, then the fast one's
        audits_by=None if auditor is None else auditor.name,
        tokens=sum(summary["new_tokens"] - 1 for summary in summaries),
        rounds=len(rounds),
        drafted=sum(len(record.draft_ids) for record in rounds),
        prefill=seconds["prefill"],
        verify=seconds["verify"],
        draft=seconds["draft"],
        sample=seconds["sample"],
        host=seconds["host"] + seconds["audit"] - audit_passes,
        widths=dict(Counter(len(record.draft_ids) + 1 for record in rounds)),
        ids=[summary["token_ids"] for summary in summaries],
        audit=audit_passes,
        audit_widths=dict(Counter(len(audit.top) for audit in audits)),
        audited=sum(audit.length for audit in audits),
        judged=sum(audit.accepted + (audit.accepted < audit.length) for audit in audits),
        flips=sum(audit.accepted < audit.length for audit in audits),
    )


def conversation(verifier: Verifier, messages: list[dict[str, str]]) -> Prompt:
    """The messages so far where the model has a chat template, else the last one's text."""
    templated = verifier.tokenizer is not None and verifier.tokenizer.has_chat_template
    return messages if templated else messages[-1]["content"]
