"""The engine with the kernels of `quasar_kernels.triton`, run in Python by Triton's interpreter on CPU tensors.

A script, run by `test_gpu_check.py` with `TRITON_INTERPRET=1`. It shows that the calls fit the kernels: signatures,
dtypes, buffers, lengths on the device. Graphs are called anew at each replay: a tape cannot look into kernels.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from ordered_products import order_products
from quasar_kernels import triton
from quasar_kernels.stand_in import StandIn
from test_audit import smoothed
from tiny_models import write_checkpoint
from toys import FixedDrafter

import quasar_lab as ql

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class Runtime(StandIn):
    def capture(self, work):
        return work


def main() -> None:
    torch.set_num_threads(1)
    order_products()
    names = [name for name in dir(triton) if not name.startswith("__")]
    ops = SimpleNamespace(**{name: getattr(triton, name) for name in names}, runtime=Runtime)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), "qwen3", num_hidden_layers=1, vocab_size=40, eos_token_id=39, bos_token_id=38)
        bf16 = ql.load(folder, backend="reference")
        for plain in (bf16, smoothed(bf16, Path(folder))):
            check(plain, replace(plain, ops=ops))


def check(plain, device) -> None:
    wanted, whole = (decoder.forward(PROMPT, decoder.new_cache()).logits for decoder in (plain, device))
    assert (whole - wanted).norm() < 1e-5 * wanted.norm()
    cache = device.new_cache()
    parts = [device.forward(PROMPT[part], cache, hidden=True).logits for part in (slice(1), slice(1, 8))]
    assert torch.equal(torch.cat(parts), whole), "bits depend on the width"
    parents = [-1, 0, 0, 1]
    tree, expected = (d.forward(PROMPT[:4], d.new_cache(), parents=parents).logits for d in (device, plain))
    assert (tree - expected).norm() < 1e-5 * expected.norm()

    text = ql.generate(device, PROMPT, drafter="none", max_new_tokens=5).token_ids

    def choose(ids, budget):
        first = len(ids) - len(PROMPT)
        return [token + (place == 2) for place, token in enumerate(text[first : first + budget])]

    run = ql.generate(device, PROMPT, drafter=FixedDrafter(choose), gamma=4, max_new_tokens=5)
    assert run.token_ids == text
    ql.generate(device, PROMPT, gamma=3, max_new_tokens=3, temperature=0.9, top_p=0.9)


if __name__ == "__main__":
    main()
