"""A verifier small enough to know exactly: 12 tokens, the next one depending on the last two."""

import torch

from quasar_lab.decoder import Output
from quasar_lab.drafting import Draft

VOCAB = 12


class ToyCache:
    def __init__(self):
        self.ids = []

    @property
    def length(self):
        return len(self.ids)


class ToyVerifier:
    """logits(next | last two tokens) from a fixed random table; `eos_ids` and `context` as the test wants them."""

    name, tokenizer, vocab, weight_bytes = "toy", None, VOCAB, 0
    identity = {"model": "toy", "checksum": "", "recipe": "toy", "device": "cpu", "backend": "toy"}  # noqa: RUF012

    def __init__(self, eos_ids=(), context=1000, seed=3):
        self.eos_ids, self.context = eos_ids, context
        self.table = 2.0 * torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))

    def new_cache(self, capacity=None):
        return ToyCache()

    def rollback(self, cache, length):
        assert 0 <= length <= cache.length
        del cache.ids[length:]

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

    def __init__(self, seed, report=lambda q: q):
        self.q = torch.softmax(1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(8)), dim=-1)
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
