"""A verifier small enough to know exactly: 12 tokens, the next one depending on the last two."""

import itertools

import torch
from scipy.stats import chisquare

import quasar_lab as ql
from quasar_lab.models.decoder import Output
from quasar_lab.models.generation_defaults import GenerationDefaults
from quasar_lab.speculative.drafters import Draft
from quasar_lab.speculative.sampling import Sampling, penalised, target

VOCAB = 12


class ToyCache:
    def __init__(self):
        self.ids = []

    @property
    def length(self):
        return len(self.ids)


class ToyVerifier:
    """logits(next | last two tokens) from a fixed random table; `eos_ids` and `context` as the test wants them."""

    name, tokenizer, vocab, weight_bytes = "toy", None, VOCAB, 2
    auditor = None
    generation_defaults = GenerationDefaults()
    identity = {"model": "toy", "checksum": "", "recipe": "toy", "device": "cpu", "backend": "toy"}  # noqa: RUF012

    def __init__(self, eos_ids=(), context=1000, seed=3):
        self.eos_ids, self.context = eos_ids, context
        self.table = 2.0 * torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))

    @property
    def passes(self):
        return (self,)

    def new_cache(self, capacity=None):
        return ToyCache()

    def rollback(self, cache, length):
        assert 0 <= length <= cache.length
        del cache.ids[length:]

    def adopt(self, cache, other, start, stop):
        assert 0 <= start <= min(stop, cache.length)
        assert stop <= other.length
        cache.ids[start:] = other.ids[start:stop]

    def row(self, ids):
        before = ids[-2] if len(ids) > 1 else 0
        return self.table[before, ids[-1]]

    def forward(self, ids, cache, *, logits="all", hidden=False):
        rows = []
        for token in ids:
            cache.ids.append(token)
            rows.append(self.row(cache.ids))
        assert cache.length <= self.context, "read beyond the context"
        return Output(torch.stack(rows[-1:] if logits == "last" else rows), None)


class FixedDrafter:
    """Proposes what `choose(ids, budget)` returns: a Draft or a list of ids."""

    name, needs_hidden = "fixed", False

    def __init__(self, choose):
        self.choose = choose

    def reset(self, ids):
        self.ids = list(ids)

    def propose(self, budget, hidden):
        draft = self.choose(self.ids, budget)
        return draft if isinstance(draft, Draft) else Draft(list(draft))

    def commit(self, ids, hidden):
        self.ids += ids

    def rollback(self, length):
        del self.ids[length:]


class SamplingDrafter(FixedDrafter):
    """Draws each token from its own table q(next | last); `report` may misstate the q that it hands over."""

    q = torch.softmax(1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(8)), dim=-1)

    def __init__(self, seed, report=lambda q: q):
        self.generator = torch.Generator().manual_seed(seed)
        self.report = report
        super().__init__(self.sample)

    def sample(self, ids, budget):
        drawn, rows = list(ids), []
        for _ in range(budget):
            q = self.q[drawn[-1]]
            drawn.append(int(torch.multinomial(q, 1, generator=self.generator)))
            rows.append(self.report(q))
        return Draft(drawn[len(ids) :], None, torch.stack(rows))


class Letters:
    """A tokenizer: token 0 is a, 1 is b, …"""

    has_chat_template = False

    def piece(self, token):
        return chr(ord("a") + token)

    def token_bytes(self, token):
        return self.piece(token).encode()

    def is_special(self, token):
        return False

    def decode(self, ids):
        return "".join(map(self.piece, ids))


def exact_law(verifier, prompt, options):
    """P(three tokens behind the prompt), [12, 12, 12], by plain decoding; behind an end-of-sequence token the same one
    again."""
    sampler = Sampling(**options)

    def after(ids):
        if len(ids) > len(prompt) and ids[-1] in verifier.eos_ids:
            return torch.nn.functional.one_hot(torch.tensor(ids[-1]), VOCAB).double()
        return target(penalised(verifier.row(ids)[None], sampler.repetition_penalty, ids, []), sampler)[0].double()

    law = torch.zeros(VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    first = after(prompt)
    for a, b in itertools.product(range(VOCAB), repeat=2):
        law[a, b] = first[a] * after([*prompt, a])[b] * after([*prompt, a, b])
    return law


def law_p_value(law, texts):
    """χ² of the texts' first three tokens (a shorter text repeats its last) against their joint law; rare cells
    pooled."""
    law, counts = law.reshape(-1), torch.zeros(VOCAB**3)
    for ids in texts:
        a, b, c = (ids + ids[-1:] * 2)[:3]
        counts[(a * VOCAB + b) * VOCAB + c] += 1
    runs = int(counts.sum())
    assert counts[law == 0].sum() == 0, "a token of probability zero was drawn"
    common = law * runs >= 8
    rest = law[~common].sum() * runs
    observed = [*counts[common].tolist(), float(counts[~common].sum())]
    expected = [*(law[common] * runs).tolist(), float(rest)]
    if rest < 1e-9:
        observed, expected = observed[:-1], expected[:-1]
    scale = sum(observed) / sum(expected)
    return chisquare(observed, [value * scale for value in expected]).pvalue


def toy_pair(noise=1.0, length=None, eos=(), context=1000, seed=3):
    """A toy and another whose table differs from it by `noise`."""
    exact, fast = (ToyVerifier(tuple(eos), context, seed) for _ in "ab")
    other = torch.randn(fast.table.shape, generator=torch.Generator().manual_seed(seed + 100))
    fast.table, fast.name, fast.weight_bytes = fast.table + noise * other, "fast", 1
    exact.tokenizer = fast.tokenizer = Letters()
    return ql.audited(fast, exact, length)
