"""The loop: draft, verify in one pass, keep what is right, roll the rest back.

    prompt → prefill → first token t0
    round:  drafter proposes d1…dn behind the last token t
            verifier scores [t, d1…dn] in one pass of width n + 1      (row i follows d1…di)
            a drafts are kept, one token more comes from row a          (sampling.verify)
            the cache forgets the rows of the refused drafts

Each round emits a + 1 ≥ 1 tokens for one reading of the weights. The text is what plain decoding with the same verifier
would give: bit for bit at temperature 0, in distribution above. Ends: an end-of-sequence token or a stop string inside
a kept block ends the text there; `max_new_tokens` and the context bound how much is drafted, so neither is ever
exceeded.

An `Audited` verifier adds a second level: rounds are its fast verifier's, and their tokens wait for an audit by the
exact one, which keeps a prefix and takes the rest back (`audit`). Such a text has ended when an audit says so.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import torch
from quasar_kernels.threads import single_torch_thread
from torch import Tensor

from quasar_lab.models.cuda_graphs import TOP
from quasar_lab.models.decoder import Output
from quasar_lab.speculative.audit import Audited, Auditor, PairedCache
from quasar_lab.speculative.drafters import Draft, Drafter, make_drafter
from quasar_lab.speculative.rejection import Rows, Verdict, judge, read_rows, verify
from quasar_lab.speculative.sampling import Sampling
from quasar_lab.speculative.trace import SCHEMA, Audit, Prefill, Round, Trace, acceptance
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import CheckpointError, InputError, NotInThisVersion
from quasar_lab.support.machine import versions

MAX_GAMMA = 16

Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def encode_prompt(verifier: Verifier, prompt: Prompt, raw: bool = False) -> list[int]:
    """Token ids of a prompt: a text (one user message, through the chat template unless `raw`), messages, or ids as
    they are.

    Raises InputError on an empty prompt, one that leaves no room in the context, or text for a model without a
    tokenizer.
    """
    ids = _encode(verifier, prompt, raw)
    if not ids:
        raise InputError("the prompt is empty")
    if len(ids) > verifier.context:
        raise InputError(
            f"the prompt has {len(ids)} tokens; accepted: at most {verifier.context}, the context of this model"
        )
    if min(ids) < 0 or max(ids) >= verifier.vocab:
        raise InputError(f"the prompt has token ids outside the vocabulary; accepted: 0…{verifier.vocab - 1}")
    return ids


def _encode(verifier: Verifier, prompt: Prompt, raw: bool) -> list[int]:
    if not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt):
        return list(prompt)  # type: ignore[arg-type]
    tokenizer = verifier.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer; accepted: a prompt of token ids")
    if not isinstance(prompt, str):
        return tokenizer.chat(list(prompt))  # type: ignore[arg-type]
    if not prompt.strip():
        raise InputError("the prompt is empty")
    if raw or not tokenizer.has_chat_template:
        return tokenizer.encode(prompt)
    return tokenizer.chat([{"role": "user", "content": prompt}])


class Generation:
    """One run: iterate to get its rounds (and audits) as they happen; `trace` grows with them; `cancel()` ends it
    within one round.

    Raises InputError at construction on any argument that is not accepted, before anything runs; while it runs,
    CheckpointError when the model gives NaN or infinite logits. An interrupt leaves a trace that says "cancelled".
    """

    def __init__(
        self,
        verifier: Verifier,
        prompt: Prompt,
        *,
        drafter: str | Drafter = "ngram",
        gamma: int = 4,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | Sequence[str] | None = None,
        raw: bool = False,
    ):
        if not 1 <= gamma <= MAX_GAMMA:
            raise InputError(f"γ is {gamma}; accepted: 1…{MAX_GAMMA}")
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {max_new_tokens}; accepted: 1 or more")
        self.sampling = Sampling(temperature, top_k, top_p, seed)
        self.stop = [stop] if isinstance(stop, str) else list(stop or ())
        if any(not text for text in self.stop):
            raise InputError("a stop string is empty; accepted: texts of at least one character")
        if self.stop and verifier.tokenizer is None:
            raise InputError("this model has no tokenizer, so stop strings cannot be found in its output")
        self.verifier, self.gamma = verifier, gamma
        self._auditor = Auditor(verifier) if isinstance(verifier, Audited) else None
        self.drafter = make_drafter(drafter)
        self.prompt_ids = encode_prompt(verifier, prompt, raw)
        # The last token of a text is never fed back, so a text may be one token longer than the context.
        self.limit = min(max_new_tokens, verifier.context - len(self.prompt_ids) + 1)
        self.trace = Trace(self._header())
        self._output: list[int] = []
        self._finish: str | None = None
        self._cancelled = False
        self._seconds = {"prefill": 0.0, "draft": 0.0, "verify": 0.0, "sample": 0.0, "total": 0.0}
        if self._auditor is not None:
            self._seconds["audit"] = 0.0

    def cancel(self) -> None:
        """Ends the run within one round and the audit of what is pending, from any thread; the trace then says
        "cancelled"."""
        self._cancelled = True

    def __iter__(self) -> Iterator[Round | Audit]:
        if self.trace.footer is not None or self.trace.prefill is not None:
            raise InputError("this run has been iterated already; accepted: a new one")
        try:
            begun = time.perf_counter()
            generator = torch.Generator().manual_seed(self.sampling.seed)
            cache = self.verifier.new_cache(len(self.prompt_ids) + self.limit)
            hidden = self._prefill(cache, generator)
            self._seconds["prefill"] = self._seconds["total"] = time.perf_counter() - begun
            while self._finish is None and not self._cancelled:
                begun = time.perf_counter()
                record, hidden = self._round(cache, hidden, generator)
                self.trace.rounds.append(record)
                # What the consumer does with a round is not the run's time.
                self._seconds["total"] += time.perf_counter() - begun
                yield record
                trigger = self._audit_trigger()
                if trigger is not None:
                    begun = time.perf_counter()
                    audit, hidden = self._audit(trigger, cache, generator)
                    self.trace.audits.append(audit)
                    self._seconds["total"] += time.perf_counter() - begun
                    yield audit
        finally:
            if self._auditor is not None and len(self._output) > len(self.trace.token_ids):
                # Cut short: what no audit has seen is no text, and a provisional end is none.
                self._output, self._finish = self.trace.token_ids, None
            self._finish = self._finish or "cancelled"
            self.trace.footer = {"kind": "footer", "summary": self._summary()}

    def _prefill(self, cache: Any, generator: torch.Generator) -> Tensor | None:
        begun = time.perf_counter()
        self.drafter.reset(self.prompt_ids)
        out = self.verifier.forward(self.prompt_ids, cache, logits="last", hidden=self.drafter.needs_hidden)
        _, verdict, top, margin = self._judge(out, Draft([]), generator)
        hidden = None if out.hidden is None else out.hidden[-1:]
        emitted = self._emit(verdict.next_ids, hidden)
        ms = 1e3 * (time.perf_counter() - begun)
        self.trace.prefill = Prefill(emitted, [self._piece(token) for token in emitted], top, margin, ms)
        return hidden

    def _round(self, cache: Any, hidden: Tensor | None, generator: torch.Generator) -> tuple[Round, Tensor | None]:
        verifier: Verifier = self.verifier
        if self._auditor is not None:
            verifier, cache = self._auditor.verifier.fast, cache.fast
        clock = [time.perf_counter()]
        draft = self._propose(hidden)
        clock.append(time.perf_counter())
        base = cache.length
        out = verifier.forward([self._output[-1], *draft.ids], cache, hidden=self.drafter.needs_hidden)
        clock.append(time.perf_counter())
        rows, verdict, top, margin = self._judge(out, draft, generator)
        clock.append(time.perf_counter())
        _settle(clock, out)

        accepted = verdict.accepted
        verifier.rollback(cache, base + 1 + accepted)
        position = len(self.prompt_ids) + len(self._output)
        hidden = None if out.hidden is None else out.hidden[: accepted + 1]
        emitted = self._emit([*draft.ids[:accepted], *verdict.next_ids], hidden)
        if self._auditor is not None:
            self._auditor.wait(emitted, rows.probs, len(draft.ids) + 1)
        states = ["accepted"] * accepted + ["rejected"] * (len(draft.ids) - accepted)
        pieces = [self._piece(token) for token in draft.ids]
        clock.append(time.perf_counter())

        spent = {
            name: after - before
            for name, before, after in zip(("draft", "verify", "sample", "host"), clock, clock[1:], strict=False)
        }
        for name in ("draft", "verify", "sample"):
            self._seconds[name] += spent[name]
        record = Round(
            index=len(self.trace.rounds),
            position=position,
            draft_ids=draft.ids,
            draft_pieces=pieces,
            parents=draft.parents,
            source=draft.source,
            q=verdict.q,
            p=verdict.p,
            u=verdict.u,
            states=states,
            emitted_ids=emitted,
            emitted_pieces=[self._piece(token) for token in emitted],
            emitted_states=(["accepted"] * accepted + verdict.next_states)[: len(emitted)],
            top=top,
            margin=margin,
            ms={name: 1e3 * seconds for name, seconds in spent.items()},
        )
        return record, None if hidden is None else hidden[-1:]

    def _audit_trigger(self) -> str | None:
        """Why the pending tokens are audited now: the text may have ended, or enough of them wait; None where nothing
        does."""
        if self._auditor is None or not self._auditor.pending:
            return None
        if self._finish is not None:
            return "limit" if self._finish == "length" else self._finish
        if self._cancelled:
            return "cancelled"
        return "due" if len(self._auditor.pending) >= self._auditor.length else None

    def _audit(self, trigger: str, cache: PairedCache, generator: torch.Generator) -> tuple[Audit, Tensor | None]:
        """One pass of the exact verifier over the pending tokens: keeps a prefix, and adds its own token unless the
        text ends."""
        auditor = self._auditor
        assert auditor is not None
        clock = [time.perf_counter()]
        verifier, pending, planned = auditor.verifier, auditor.pending, auditor.length
        first, base = len(self._output) - len(pending), cache.exact.length
        # The row behind the last token is read only where the text may go on: at the end of the context there is none.
        read = pending if self._finish is None else pending[:-1]
        out = verifier.exact.forward([self._output[first - 1], *read], cache.exact, hidden=self.drafter.needs_hidden)
        clock.append(time.perf_counter())
        _, verdict, top, margin = self._judge(out, auditor.draft(), generator)
        clock.append(time.perf_counter())
        _settle(clock, out)

        kept = verdict.accepted
        verifier.exact.rollback(cache.exact, base + 1 + min(kept, len(read)))
        verifier.follow(cache, base)
        auditor.settle(kept)
        if kept < len(pending):
            del self._output[first + kept :]
            self.drafter.rollback(len(self.prompt_ids) + len(self._output))
            self._finish = None
        hidden = out.hidden[kept : kept + 1] if out.hidden is not None and verdict.next_ids else None
        emitted = [*pending[:kept], *self._emit(verdict.next_ids, hidden)]
        clock.append(time.perf_counter())

        self._seconds["audit"] += clock[-1] - clock[0]
        names = ("verify", "sample", "host")
        record = Audit(
            index=len(self.trace.audits),
            after=len(self.trace.rounds),
            position=len(self.prompt_ids) + first,
            length=len(pending),
            accepted=kept,
            planned=planned,
            trigger=trigger,
            emitted_ids=emitted,
            emitted_pieces=[self._piece(token) for token in emitted],
            emitted_states=["accepted"] * kept + verdict.next_states,
            q=verdict.q,
            p=verdict.p,
            u=verdict.u,
            top=top,
            margin=margin,
            ms={name: 1e3 * (end - begin) for name, begin, end in zip(names, clock[:-1], clock[1:], strict=True)},
        )
        return record, hidden

    def _propose(self, hidden: Tensor | None) -> Draft:
        """A draft that fits: at most γ tokens, one fewer than may still be emitted, nothing behind an end-of-sequence
        token.

        Cutting behind that token changes no distribution: what follows it is only ever judged when the text has already
        ended.
        """
        budget = min(self.gamma, self.limit - len(self._output) - 1)
        draft = self.drafter.propose(budget, hidden) if budget > 0 else Draft([])
        if draft.parents is not None:
            raise NotInThisVersion("tree drafts")
        for place, token in enumerate(draft.ids):
            if token in self.verifier.eos_ids and place + 1 < len(draft.ids):
                probs = None if draft.probs is None else draft.probs[: place + 1]
                return Draft(draft.ids[: place + 1], None, probs, draft.source)
        return draft

    def _emit(self, ids: list[int], hidden: Tensor | None) -> list[int]:
        """Appends tokens up to the end of the text, if it lies among them; returns those appended."""
        emitted: list[int] = []
        for token in ids:
            emitted.append(token)
            self._output.append(token)
            if token in self.verifier.eos_ids:
                self._finish = "eos"
            elif self.stop and self._stopped() is not None:
                self._finish = "stop"
            elif len(self._output) >= self.limit:
                self._finish = "length"
            if self._finish is not None:
                break
        self.drafter.commit(emitted, None if hidden is None else hidden[: len(emitted)])
        return emitted

    def _decode(self) -> str:
        tokenizer = self.verifier.tokenizer
        return "".join(map(self._piece, self._output)) if tokenizer is None else tokenizer.decode(self._output)

    def _stopped(self) -> int | None:
        """Where in the text the earliest stop string starts."""
        text = self._decode()
        places = [place for place in map(text.find, self.stop) if place >= 0]
        return min(places) if places else None

    def _piece(self, token: int) -> str:
        tokenizer = self.verifier.tokenizer
        return f"<{token}>" if tokenizer is None else tokenizer.piece(token)

    def _judge(
        self, out: Output, draft: Draft, generator: torch.Generator
    ) -> tuple[Rows, Verdict, list[list[list[Any]]], list[float]]:
        """Rows of a pass, the verdict on a draft, and what the trace tells of each row: the likeliest tokens and the
        margin."""
        with single_torch_thread():
            verdict = None
            if out.top is None:
                rows = read_rows(out.logits, self.sampling, TOP)
            else:
                rows, verdict = judge(out.logits, out.top, draft, self.sampling, generator)
            if not all(isfinite(values[0]) for values in rows.best_logits):
                raise CheckpointError(f"{self.verifier.name} gives NaN or infinite logits; its weights are unusable")
            verdict = verdict or verify(rows, draft, self.sampling, generator)
            return rows, verdict, *self._likeliest(rows)

    def _likeliest(self, rows: Rows) -> tuple[list[list[list[Any]]], list[float]]:
        """Per row the five likeliest [id, piece, p], and the margin between the first two logits."""
        top = [
            [[token, self._piece(token), rows.probability(row, token)] for token in ids]
            for row, ids in enumerate(rows.best_ids)
        ]
        return top, [values[0] - values[min(1, len(values) - 1)] for values in rows.best_logits]

    def _header(self) -> dict[str, Any]:
        tokenizer = self.verifier.tokenizer
        return {
            "schema": SCHEMA,
            "kind": "header",
            **self.verifier.identity,
            "verifier": self.verifier.name,
            **({} if self._auditor is None else {"auditor": self._auditor.verifier.exact.name}),
            "drafter": self.drafter.name,
            "gamma": self.gamma,
            "sampling": {
                "temperature": self.sampling.temperature,
                "top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
                "seed": self.sampling.seed,
            },
            "versions": versions(),
            "prompt_ids": self.prompt_ids,
            "prompt_pieces": [self._piece(token) for token in self.prompt_ids],
            "prompt_text": None if tokenizer is None else tokenizer.decode(self.prompt_ids),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _summary(self) -> dict[str, Any]:
        text, rounds = self._decode(), self.trace.rounds
        if self._finish == "stop":
            text = text[: self._stopped()]
        seconds = dict(self._seconds)
        seconds["host"] = seconds["total"] - sum(spent for name, spent in seconds.items() if name != "total")
        decode = seconds["total"] - seconds["prefill"]
        new = len(self._output)
        header = self.trace.header
        return {
            "text": text,
            "token_ids": list(self._output),
            "prompt_tokens": len(self.prompt_ids),
            "new_tokens": new,
            "finish_reason": self._finish,
            "verifier": self.verifier.name,
            "drafter": self.drafter.name,
            "gamma": self.gamma,
            "rounds": len(rounds),
            "mean_acceptance_length": (new - 1) / len(rounds) if rounds else None,
            **acceptance(rounds, self.gamma),
            **self._audit_summary(),
            "seconds": seconds,
            "tokens_per_second": (new - 1) / decode if decode > 0 else None,
            **{key: header[key] for key in ("device", "backend", "model", "versions")},
            **({"note": "reference backend: not a speed measurement"} if header["backend"] == "reference" else {}),
        }

    def _audit_summary(self) -> dict[str, Any]:
        """audits, flips: those that refused a token; flip_rate: per token looked at; audit_length: tokens per audit,
        audit_planned: the length in force at the end; retracted: tokens taken back."""
        if self._auditor is None:
            return {}
        audits = self.trace.audits
        return {
            "audits": len(audits),
            "flips": self._auditor.seen.refused,
            "flip_rate": self._auditor.flip_rate,
            "audit_length": sum(audit.length for audit in audits) / len(audits) if audits else None,
            "audit_planned": self._auditor.length,
            "retracted": sum(audit.length - audit.accepted for audit in audits),
        }


def _settle(clock: list[float], out: Output) -> None:
    """A device still works on a pass when the call returns, and the time that its verdict waited was the pass's: moves
    the mark between the two, last but one of `clock`, to where the device says the pass ended."""
    if out.seconds is not None:
        clock[-2] = min(max(clock[-2], clock[-3] + out.seconds()), clock[-1])


def stream(verifier: Verifier, prompt: Prompt, **options: Any) -> Generation:
    """A run to iterate over: yields a Round as each is verified, and an Audit as each is done (`.kind` tells). Options
    as in `Generation`."""
    return Generation(verifier, prompt, **options)


def generate(verifier: Verifier, prompt: Prompt, **options: Any) -> Trace:
    """Runs to the end and returns the trace. Options as in `Generation`."""
    run = Generation(verifier, prompt, **options)
    for _ in run:
        pass
    return run.trace
