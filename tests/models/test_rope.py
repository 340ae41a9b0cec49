"""Rotary tables: as long as a run needs, and a position's row is the same in all of them."""

from dataclasses import replace

import pytest
import torch
from quasar_kernels.simulated_device import SimulatedDevice
from tiny_models import write_checkpoint

import quasar_lab as ql
from quasar_lab.models.rope import SHORTEST, RotaryTables

FAR = 4_194_304
"""Positions that the model promises."""


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """A model of the reference that promises a very long context."""
    folder = tmp_path_factory.mktemp("far")
    write_checkpoint(folder, "llama", max_position_embeddings=FAR)
    return ql.load(folder, backend="reference")


def fresh(far, device):
    """The same weights with tables of their own."""
    return replace(far, ops=SimulatedDevice() if device else far.ops)


def table_rows(decoder):
    return len(decoder._network.rotary.covering(0)[0])


@pytest.mark.parametrize("device", [False, True])
def test_a_long_context_costs_what_a_run_uses(far, device):
    decoder = fresh(far, device)
    assert decoder.context == FAR
    assert table_rows(decoder) == 0
    ql.generate(decoder, [1, 2, 3], max_new_tokens=4)
    assert table_rows(decoder) == SHORTEST


@pytest.mark.parametrize("device", [False, True])
def test_growing_tables_change_no_bit(far, device):
    """Of a position in mid-run, of a graph captured before, and beside a decoder that had long tables at once."""
    decoder = fresh(far, device)
    ready = replace(decoder, name="ready")
    ready._network.rotary.covering(300_000)
    for first in (0, 1020, 2046, 260_000, 5):
        positions = range(first, first + 4)
        found, wanted = (d.forward([7, 8, 9, 10], d.new_cache(8), positions=positions).logits for d in (decoder, ready))
        assert torch.equal(found, wanted), f"from position {first}"
    assert table_rows(decoder) < FAR


def test_rows_are_the_same_in_tables_of_any_length(far):
    long = RotaryTables(far.config).covering(70_000)
    short = RotaryTables(far.config)
    for rows in (1, 1000, 1025, 5000, 65_536):
        tables = short.covering(rows)
        assert rows <= len(tables[0]) <= max(SHORTEST, 2 * rows)
        assert all(torch.equal(table, other[: len(table)]) for table, other in zip(tables, long, strict=True))


def test_tables_end_with_the_context(tiny):
    assert len(RotaryTables(tiny.config).covering(1)[0]) == tiny.context
