"""What tests of several measurements share."""

from dataclasses import replace

import pytest
import torch
from tiny_models import write_checkpoint

import quasar_lab as ql


@pytest.fixture(scope="module")
def other(tiny, tmp_path_factory):
    """The tiny decoder with another head: the stream is the same, the logits are not."""
    folder = tmp_path_factory.mktemp("other")
    model = write_checkpoint(folder, "llama")
    noise = 0.3 * torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(2))
    model.lm_head.weight.data.add_(noise)
    model.save_pretrained(folder)
    return replace(tiny, name="w8a8", head=ql.load(folder).head)
