"""The examples of CONTRIBUTING do what it says: each is put where it belongs in a copy of the package, and used.

Nothing else of the copy changes. So the test also shows how many files a new drafter, recipe, family or op needs.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```python\n# (new file|entry in|appended to): (\S+)\n(.*?)```", re.DOTALL)
EXAMPLES = {path: (how, code) for how, path, code in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())}
USES = {
    "drafter": (
        "quasar_lab/speculative/drafters/repeat.py",
        """
from quasar_lab import cli
from quasar_lab.speculative.drafters import make_drafter
from quasar_lab.speculative.drafters.registry import accepted
drafter = make_drafter("repeat")
drafter.commit([5, 7], None)
assert drafter.propose(4, None).ids == [7]
assert "repeat" in accepted()
assert cli.run(["generate", "--help"]) == 0
""",
    ),
    "recipe": (
        "quasar_lab/quantization/recipes/strong.py",
        """
from quasar_lab.quantization.recipes import accepted, parse_recipe, summaries
assert parse_recipe("w8a8-strong").identity == "strong"
assert "w8a8-strong" in accepted() and "α = 0.8" in summaries()["w8a8-strong"]
from quasar_lab.speculative.verifiers import check_name
check_name("w8a8-strong+bf16")
""",
    ),
    "family": (
        "quasar_lab/models/families.py",
        """
from quasar_lab.models.families import family_names
from quasar_lab.models.model_config import parse_config
raw = dict(model_type="granite", hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
           vocab_size=9, max_position_embeddings=16, rms_norm_eps=1e-5)
assert parse_config(raw).family == "granite"
assert "granite" in family_names()
""",
    ),
    "op": (
        "kernels/quasar_kernels/reference.py",
        """
import torch
from quasar_kernels import select
for name in ("reference", "auto"):
    assert select(name, "cpu").clamp_rows(torch.tensor([[-3.0, 1.0]]), 2.0).tolist() == [[-2.0, 1.0]]
""",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package with every example in its place."""
    folder = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("__pycache__")
    for part in ("quasar_lab", "kernels/quasar_kernels", "data"):
        shutil.copytree(ROOT / part, folder / part, ignore=unwanted)
    for path, (how, code) in EXAMPLES.items():
        file = folder / path
        if how == "new file":
            assert not file.exists()
            file.write_text(code)
        elif how == "appended to":
            file.write_text(file.read_text() + "\n\n" + code)
        else:
            file.write_text(file.read_text().replace('        Family("llama"),\n', f'        Family("llama"),\n{code}'))
    return folder


def test_every_example_is_used_here_and_has_ten_lines_at_most():
    assert {path for path, _ in USES.values()} <= set(EXAMPLES)
    for path, (_, code) in EXAMPLES.items():
        assert len([line for line in code.splitlines() if line.strip()]) <= 10, path


@pytest.mark.parametrize("what", USES)
def test_an_example_works(what, copy):
    use = f"import quasar_lab; assert quasar_lab.__file__.startswith({str(copy)!r})\n{USES[what][1]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "kernels")])}
    command = [sys.executable, "-c", use]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
