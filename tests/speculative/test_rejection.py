"""The accept rule step by step, and the same rule on rows of the CPU and of a device."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quasar_kernels import reference
from quasar_kernels.simulated_device import SimulatedDevice
from toys import VOCAB

from quasar_lab.speculative import verified_rows
from quasar_lab.speculative.config import Sampling
from quasar_lab.speculative.device_rejection import accept_on_device, decide
from quasar_lab.speculative.drafters import Draft
from quasar_lab.speculative.rejection import (
    accept,
    keeps,
    keeps_greedily,
    kept_prefix,
    remainder,
    residual,
    state_behind,
)
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.verified_rows import read_rows


@pytest.fixture(scope="module", autouse=True)
def one_backend():
    """The CPU's log Σ exp comes from the reference too: backends agree on it to a tolerance only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verified_rows, "top_rows", reference.top_rows)
        yield


def test_a_draft_is_kept_where_u_times_q_is_below_p():
    assert [keeps(u, 1.0, 0.5) for u in (0.0, 0.49, 0.5, 0.9)] == [True, True, False, False]
    assert not keeps(0.0, 1.0, 0.0), "a token of probability 0 is never kept"
    u, q, p = torch.rand(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one_by_one = [keeps(*numbers) for numbers in zip(u.tolist(), q.tolist(), p.tolist(), strict=True)]
    assert keeps(u, q, p).tolist() == one_by_one
    assert keeps_greedily(3, 3)
    assert not keeps_greedily(3, 4)


def test_nothing_behind_the_first_refusal_is_asked_for():
    asked = []

    def judged():
        for kept in (True, True, False, True):
            asked.append(kept)
            yield kept

    assert kept_prefix(judged()) == 2
    assert len(asked) == 3
    assert kept_prefix([]) == 0


def test_the_state_of_the_own_token():
    assert state_behind(0, 0) is TokenState.PLAIN
    assert state_behind(0, 3) is state_behind(2, 3) is TokenState.CORRECTED
    assert state_behind(3, 3) is TokenState.BONUS


def test_what_remains_of_p_without_q():
    p = torch.tensor([0.5, 0.3, 0.2])
    q = torch.tensor([0.2, 0.5, 0.3])
    at = torch.tensor([1])
    assert torch.allclose(remainder(p, at, q), torch.tensor([0.3, 0.0, 0.0]))
    assert torch.allclose(remainder(p, at, None), torch.tensor([0.5, 0.0, 0.2]))
    assert float(remainder(p, at, p).sum()) == 0
    assert torch.equal(residual(p, 1, p), p), "rounding left nothing: p itself"


@settings(max_examples=200, deadline=None)
@given(
    drafts=st.integers(0, 6),
    behind=st.booleans(),
    drawn=st.booleans(),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.6, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_the_rule_is_one_rule(drafts, behind, drawn, temperature, top_p, seed):
    """The device keeps the same drafts, writes the same token, and leaves the generator where the CPU leaves it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(drafts + behind or 1, VOCAB, generator=generator)
    q = torch.softmax(logits[:drafts] + torch.randn(drafts, VOCAB, generator=generator), dim=-1)
    ids = [int(torch.multinomial(row, 1, generator=generator)) for row in q]
    draft = Draft(ids, None, q if drawn and temperature else None)
    sampling = Sampling(temperature, top_p=top_p)
    cpu, device = (torch.Generator().manual_seed(seed) for _ in "ab")
    wanted = accept(read_rows(logits, sampling), draft, sampling, cpu)
    _, found = accept_on_device(logits, SimulatedDevice().top_table(logits, 5), draft, sampling, device)
    assert found == wanted
    assert torch.equal(cpu.get_state(), device.get_state())


@pytest.mark.parametrize("u", [0.0, 0.2, 0.6, 0.999])
def test_the_vectorised_rule_by_hand(u):
    """Two drafts of a vocabulary of three: the numbers of the device beside a calculation with pen and paper."""
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    found = decide(probs, torch.tensor([0, 1]), None, torch.tensor([u, 0.5, 0.0], dtype=torch.float64))
    assert found.p.tolist() == pytest.approx([0.5, 0.8])
    assert found.q.tolist() == [1.0, 1.0]
    first = u < 0.5  # kept, and then the second too, since 0.5 < 0.8
    assert int(found.accepted) == (2 if first else 0)
    # Kept: the third number draws from the last row. Refused: the second one draws from p without token 0.
    assert int(found.next_id) == (0 if first else 1)
