"""The loop: draft, verify in one pass, keep what is right, roll the rest back.

## Idea

    prompt → prefill → first token t0
    round:  the drafter proposes d1…dn behind the last token t
            the verifier scores [t, d1…dn] in one pass of width n + 1      (row i follows d1…di)
            a drafts are kept, and one token more comes from row a          (`rejection`)
            the cache forgets the rows of the refused drafts

Each round emits a + 1 ≥ 1 tokens for one reading of the weights. The text is what plain decoding with the same verifier
would give: bit for bit at temperature 0, in distribution above.

## Choice

The prompt is read in chunks, so that a run can be cancelled between them. A token's bits do not depend on where they
are cut.

An end-of-sequence token or a stop string inside a kept block ends the text there (`written_text`). `max_new_tokens` and
the context bound how much is drafted, so neither is ever exceeded. Options that the caller leaves out are the model's
own, where its generation_config.json names them.

A verifier with an auditor adds a second level (`auditing`). Rounds are then its fast verifier's, and their tokens wait
for an audit by the exact one, which keeps a prefix and takes the rest back. Such a text has ended when an audit says
so.
"""

from collections.abc import Iterator
from typing import Any

import torch

from quasar_lab.models.decoder import Output
from quasar_lab.speculative.auditing import audits_of
from quasar_lab.speculative.clock import Stopwatch
from quasar_lab.speculative.config import MAX_GAMMA, GenerationConfig, takes_options
from quasar_lab.speculative.drafters import Draft, Drafter, checked, make_drafter
from quasar_lab.speculative.drafters.registry import DEFAULT
from quasar_lab.speculative.prompt import Prompt, encode_prompt
from quasar_lab.speculative.run import Run
from quasar_lab.speculative.trace import Audit, Round, Trace
from quasar_lab.speculative.trace_recorder import TraceRecorder
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.speculative.written_text import WrittenText
from quasar_lab.support.errors import InputError, NotInThisVersion
from quasar_lab.support.progress import say_once

__all__ = ["MAX_GAMMA", "Generation", "Prompt", "encode_prompt", "generate", "stream"]

PREFILL_CHUNK = 256
"""Tokens of a prompt that are read in one pass."""


class Generation:
    """One run: iterate to get its rounds (and audits) as they happen; `trace` grows with them; `cancel()` ends it
    within one round.

    Raises InputError at construction on any argument that is not accepted, before anything runs; while it runs,
    CheckpointError when the model gives NaN or infinite logits, and InputError on a draft that cannot be used. The
    trace then holds what was written; one that was interrupted says "cancelled".
    """

    @takes_options
    def __init__(self, verifier: Verifier, prompt: Prompt, *, drafter: str | Drafter = DEFAULT, **options: Any):
        defaults = verifier.generation_defaults
        config = GenerationConfig(**{**defaults.options, **options})
        if config.stops and verifier.tokenizer is None:
            raise InputError("this model has no tokenizer, so stop strings cannot be found in its output")
        self.verifier = verifier
        self.config = config
        self.drafter = make_drafter(drafter)
        self.prompt_ids = encode_prompt(verifier, prompt, config.raw, config.template_args)
        say_once(defaults.sentence(options))
        # The last token of a text is never fed back, so a text may be one token longer than the context.
        self.limit = min(config.max_new_tokens, verifier.context - len(self.prompt_ids) + 1)
        text = WrittenText(verifier.tokenizer, verifier.eos_ids, self.limit, config.stops)
        recorder = TraceRecorder(verifier, self.drafter.name, config, self.prompt_ids, text)
        self.trace = recorder.trace
        self._audits = audits_of(verifier)
        self._run = Run(
            verifier=verifier.name,
            prompt_ids=self.prompt_ids,
            text=text,
            drafter=self.drafter,
            sampling=config.sampling,
            recorder=recorder,
            generator=torch.Generator(),
        )

    def cancel(self) -> None:
        """Ends the run within one round and the audit of what is pending, from any thread; the trace then says
        "cancelled"."""
        self._run.cancelled = True

    def __iter__(self) -> Iterator[Round | Audit]:
        if self.trace.footer is not None or self.trace.prefill is not None:
            raise InputError("this run has been iterated already; accepted: a new one")
        run, recorder = self._run, self._run.recorder
        try:
            with recorder.working("prefill"):
                self._prefill()
            while run.going_on:
                with recorder.working():
                    record = self._round()
                yield record
                yield from self._audits.after_round(run)
        finally:
            self._audits.close(run)
            recorder.close(self._audits.summary(run))

    def _prefill(self) -> None:
        """Reads the prompt, and writes the first token."""
        run = self._run
        run.generator.manual_seed(run.sampling.seed)
        run.cache = self.verifier.new_cache(len(self.prompt_ids) + self.limit)
        watch = Stopwatch()
        run.drafter.reset(self.prompt_ids)
        out = self._read_prompt()
        if out is None:
            return
        verified = run.verify(out, Draft([]), run.position)
        run.hidden = None if out.hidden is None else out.hidden[-1:]
        emitted = run.emit(verified.acceptance.next_ids, run.hidden)
        recorder = run.recorder
        recorder.prefill(verified, emitted, watch)

    def _read_prompt(self) -> Output | None:
        """The pass over the prompt's last chunk; None where the run was cancelled before it."""
        run, out = self._run, None
        for start in range(0, len(self.prompt_ids), PREFILL_CHUNK):
            if run.cancelled:
                return None
            chunk = self.prompt_ids[start : start + PREFILL_CHUNK]
            out = self.verifier.forward(chunk, run.cache, logits="last", hidden=run.drafter.needs_hidden)
        return out

    def _round(self) -> Round:
        """Drafts, verifies, keeps what is right, rolls the rest back, emits."""
        run, writer = self._run, self._audits.writer
        cache = self._audits.writers_cache(run.cache)
        start = cache.length
        watch = Stopwatch()

        draft = self._draft()
        watch.lap("draft")

        out = writer.forward([run.text.ids[-1], *draft.ids], cache, hidden=run.drafter.needs_hidden)
        watch.lap("verify")

        verified = run.verify(out, draft, run.position)
        kept = verified.acceptance.accepted
        watch.lap("sample")
        watch.settle(out.seconds)

        writer.rollback(cache, start + 1 + kept)

        position = run.position
        hidden = None if out.hidden is None else out.hidden[: kept + 1]
        emitted = run.emit([*draft.ids[:kept], *verified.acceptance.next_ids], hidden)
        run.hidden = None if hidden is None else hidden[-1:]
        self._audits.wait(emitted, verified.rows.probs, len(draft.ids) + 1)
        return run.recorder.round(draft, verified, position, emitted, watch)

    def _draft(self) -> Draft:
        """A draft that fits: at most γ tokens, one fewer than may still be emitted, nothing behind an end-of-sequence
        token.

        Cutting behind that token changes no distribution: what follows it is only ever judged when the text has already
        ended.
        """
        run = self._run
        budget = min(self.config.gamma, run.text.room - 1)
        if budget < 1:
            return Draft([])
        proposed = run.drafter.propose(budget, run.hidden)
        draft = checked(proposed, budget, self.verifier.vocab, run.drafter.name)
        if draft.parents is not None:
            raise NotInThisVersion("tree drafts")
        for place, token in enumerate(draft.ids):
            if token in self.verifier.eos_ids and place + 1 < len(draft.ids):
                probs = None if draft.probs is None else draft.probs[: place + 1]
                return Draft(draft.ids[: place + 1], None, probs, draft.source)
        return draft


@takes_options
def stream(verifier: Verifier, prompt: Prompt, *, drafter: str | Drafter = DEFAULT, **options: Any) -> Generation:
    """A run to iterate over: yields a Round as each is verified, and an Audit as each is done (`.kind` tells).

    prompt: a text (one user message), messages, or token ids. drafter: a name, as `--drafter` takes it, or an object.
    """
    return Generation(verifier, prompt, drafter=drafter, **options)


@takes_options
def generate(verifier: Verifier, prompt: Prompt, *, drafter: str | Drafter = DEFAULT, **options: Any) -> Trace:
    """Runs to the end and returns the trace.

    prompt: a text (one user message), messages, or token ids. drafter: a name, as `--drafter` takes it, or an object.
    """
    run = Generation(verifier, prompt, drafter=drafter, **options)
    for _ in run:
        pass
    return run.trace
