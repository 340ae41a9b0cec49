"""The number of torch's threads: one inside the block, and as it was for everybody else."""

from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest
import torch
from quasar_kernels.threads import single_torch_thread

USUAL = 3


@pytest.fixture(autouse=True)
def usual():
    before = torch.get_num_threads()
    torch.set_num_threads(USUAL)
    yield
    torch.set_num_threads(before)


def in_new_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_one_inside_and_as_before_outside():
    with single_torch_thread():
        with single_torch_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == USUAL


def test_a_thread_that_begins_meanwhile_has_the_usual_number():
    with ThreadPoolExecutor(1) as pool:
        with single_torch_thread():
            assert pool.submit(torch.get_num_threads).result() == USUAL
        assert pool.submit(torch.get_num_threads).result() == USUAL


ORDERS = sorted(set(permutations("AABBCC")))


def test_any_order_of_three_threads_leaves_the_usual_number():
    """Each of three new threads enters at its first letter and leaves at its second."""
    for order in ORDERS:
        pools = {name: ThreadPoolExecutor(1) for name in "ABC"}
        blocks = {name: single_torch_thread() for name in "ABC"}
        inside = set()
        for name in order:
            block = blocks[name]
            if name in inside:
                pools[name].submit(block.__exit__, None, None, None).result()
                assert pools[name].submit(torch.get_num_threads).result() == USUAL, order
            else:
                pools[name].submit(block.__enter__).result()
                assert pools[name].submit(torch.get_num_threads).result() == 1, order
                inside.add(name)
        assert [pool.submit(torch.get_num_threads).result() for pool in pools.values()] == [USUAL] * 3, order
        assert in_new_thread(torch.get_num_threads) == USUAL, order
        for pool in pools.values():
            pool.shutdown()
