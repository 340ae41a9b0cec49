"""What the records of a trace file look like: the table that `Trace.load` holds every line against.

A trace that passes can be shown, measured and rescored without another check: lists that belong together have one
length, states are known words, numbers are finite, and ids are small enough to be ids.
"""

from quasar_lab.speculative.config import MAX_GAMMA
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.support.json_schema import (
    BOOLEAN,
    TEXT,
    Schema,
    all_of,
    fields,
    integer,
    lengths,
    list_of,
    mapping_of,
    number,
    one_of,
    optional,
    row_of,
)

SCHEMA = "quasar-trace/1"

COUNT = integer(0, 2**31 - 1)
POSITIVE = number(0)
STATES = tuple(TokenState)

EMITTED = {"emitted_ids": list_of(COUNT, least=1), "emitted_pieces": list_of(TEXT)}
ROWS = {"top": list_of(list_of(row_of(COUNT, TEXT, POSITIVE), least=1), least=1), "margin": list_of(number())}
HEADER = all_of(
    fields(
        {
            **dict.fromkeys(("schema", "model", "checksum", "recipe", "verifier", "drafter"), TEXT),
            **dict.fromkeys(("device", "backend", "started"), TEXT),
            "gamma": integer(1, MAX_GAMMA),
            "sampling": fields(
                {
                    "temperature": number(0, 100),
                    "top_k": COUNT,
                    "top_p": number(0, 1),
                    "seed": integer(-(2**63), 2**64 - 1),
                    "min_p?": number(0, 1),
                    "repetition_penalty?": number(0.01, 100),
                },
                closed=True,
            ),
            "versions": mapping_of(TEXT),
            "prompt_ids": list_of(COUNT, least=1),
            "prompt_pieces": list_of(TEXT),
            "prompt_text": optional(TEXT),
            "auditor?": TEXT,
        }
    ),
    lengths(prompt_ids=0, prompt_pieces=0),
)
PREFILL = all_of(
    fields({**EMITTED, **ROWS, "ms": POSITIVE}, closed=True),
    lengths(emitted_ids=0, emitted_pieces=0),
    lengths(top=0, margin=0),
)
AUDIT = all_of(
    fields(
        {
            **EMITTED,
            **ROWS,
            **dict.fromkeys(("index", "after", "position", "length", "accepted", "planned"), COUNT),
            "trigger": one_of("due", "eos", "stop", "limit", "cancelled"),
            "emitted_states": list_of(one_of(*STATES)),
            "q": list_of(POSITIVE),
            "p": list_of(POSITIVE),
            "u": list_of(optional(POSITIVE)),
            "ms": fields(dict.fromkeys(("verify", "sample", "host"), POSITIVE)),
        },
        closed=True,
    ),
    lengths(emitted_ids=0, emitted_pieces=0, emitted_states=0),
    lengths(q=0, p=0, u=0),
    lengths(top=0, margin=0),
)
SUMMARY = fields(
    {
        **dict.fromkeys(("text", "finish_reason", "verifier", "drafter", "device", "backend", "model"), TEXT),
        **dict.fromkeys(("prompt_tokens", "new_tokens", "gamma", "rounds"), COUNT),
        **dict.fromkeys(("mean_acceptance_length", "draft_acceptance_rate", "tokens_per_second"), optional(number())),
        "token_ids": list_of(COUNT),
        "acceptance_histogram": list_of(COUNT),
        "survival": list_of(optional(POSITIVE)),
        "seconds": mapping_of(number()),
        "versions": mapping_of(TEXT),
        **dict.fromkeys(("audits?", "flips?", "retracted?", "audit_planned?"), COUNT),
        **dict.fromkeys(("flip_rate?", "audit_length?"), optional(POSITIVE)),
    }
)
FOOTER = fields({"summary": SUMMARY})


def round_schema(gamma: int) -> Schema:
    """A round of a trace with this γ; lists that belong together have one length, rows one more than drafts."""
    judged = list_of(optional(BOOLEAN))
    other = all_of(
        fields({"verifier": TEXT, **ROWS, "decision": judged, "flip": judged}),
        lengths(decision=0, flip=0, top=1, margin=1),
    )
    return all_of(
        fields(
            {
                **EMITTED,
                **ROWS,
                **dict.fromkeys(("index", "position"), COUNT),
                "draft_ids": list_of(COUNT, most=gamma),
                "draft_pieces": list_of(TEXT),
                "parents": optional(list_of(integer(-1, gamma))),
                "source": optional(fields({"type": TEXT, "start?": COUNT, "length?": COUNT, "region?": TEXT})),
                "q": list_of(POSITIVE),
                "p": list_of(POSITIVE),
                "u": list_of(optional(POSITIVE)),
                "states": list_of(one_of(*STATES)),
                "emitted_states": list_of(one_of(*STATES)),
                "ms": fields(dict.fromkeys(("draft", "verify", "sample", "host"), POSITIVE)),
                "other?": optional(other),
            },
            closed=True,
        ),
        lengths(draft_ids=0, draft_pieces=0, q=0, p=0, u=0, states=0, top=1, margin=1),
        lengths(emitted_ids=0, emitted_pieces=0, emitted_states=0),
        lambda value, name: (
            lengths(draft_ids=0, flip=0)({**value, "flip": value["other"]["flip"]}, name)
            if value.get("other")
            else None
        ),
    )
