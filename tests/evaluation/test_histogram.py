"""Histograms on a logarithmic scale: every value is counted once, percentiles are close, the ends are named."""

import pytest
import torch

from quasar_lab.evaluation.histogram import Histogram, LogBins


class TestLogBins:
    def test_every_value_is_counted_once_and_percentiles_are_close(self):
        values = torch.rand(5000, generator=torch.Generator().manual_seed(0)) ** 8
        bins = LogBins(-9, 2, 8)
        for part in values.split(37):
            bins.add(part)
        table = bins.histogram()
        assert sum(table.counts) + table.below + table.above == 5000
        inside = [(values >= low) & (values < high) for low, high in zip(table.edges, table.edges[1:], strict=False)]
        assert table.counts == [int(part.sum()) for part in inside]
        for share in (0.1, 0.5, 0.99):
            assert bins.quantile(share) == pytest.approx(float(values.sort().values[int(share * 5000)]), rel=0.01)

    def test_the_ends(self):
        bins = LogBins(-3, 2, 4)
        assert bins.quantile(0.5) is None
        bins.add(torch.tensor([0.0, 1e-20, 1e9]))
        assert (bins.histogram().below, bins.histogram().above) == (2, 1)
        assert (bins.quantile(0.5), bins.quantile(1.0)) == (0.0, 100.0)

    def test_what_lies_beyond_the_ends_can_be_counted_in_the_outer_bins(self):
        histogram = Histogram(edges=[0.1, 1.0, 10.0, 100.0], counts=[1, 2, 3], below=10, above=20)
        assert histogram.counts_with_ends() == [11, 2, 23]
        assert histogram.counts == [1, 2, 3]
