"""Drafters are found by themselves: a file with a registered class is all that a new one takes."""

import subprocess
import sys
from pathlib import Path

import pytest
from toys import ToyVerifier

import quasar_lab as ql
from quasar_lab.speculative import drafters
from quasar_lab.speculative.drafters import registry
from quasar_lab.support.errors import InputError, NotInThisVersion

ROOT = Path(__file__).parents[2]
ECHO = """
from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.drafters.none import NoDrafter
from quasar_lab.speculative.drafters.registry import register


@register
class EchoDrafter(NoDrafter):
    name = "{name}"
    syntax = "{name}[:times]"
    summary = "Says the last token again."

    def __init__(self, times=2):
        self.times = times
        self.ids = []

    @classmethod
    def from_option(cls, option):
        return cls() if option is None else cls(int(option))

    def propose(self, budget, hidden):
        return Draft(self.ids[-1:] * min(budget, self.times))

    def commit(self, ids, hidden):
        self.ids += ids
"""


@pytest.fixture
def one_more(tmp_path, monkeypatch):
    """Puts one more file into the package."""

    def put(name):
        (tmp_path / f"{name}_test.py").write_text(ECHO.format(name=name))
        registry.kinds.cache_clear()

    monkeypatch.setattr(drafters, "__path__", [*drafters.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_KINDS", dict(registry._KINDS))
    yield put
    registry.kinds.cache_clear()
    for name in [name for name in sys.modules if name.startswith(f"{drafters.__name__}.") and name.endswith("_test")]:
        del sys.modules[name]


def test_what_there_is():
    assert [*registry.kinds()] == ["none", "ngram"]
    assert registry.accepted() == "none, ngram[:longest]"
    for name, kind in registry.kinds().items():
        assert kind.name == name == registry.make_drafter(name).name
        assert kind.syntax.startswith(name)
        assert kind.summary.endswith(".")
    assert registry.DEFAULT in registry.kinds()


def test_a_new_file_is_a_new_drafter(one_more):
    one_more("echo")
    assert registry.accepted() == "none, echo[:times], ngram[:longest]"
    assert registry.make_drafter("echo:3").times == 3
    with pytest.raises(InputError, match=r"unknown drafter 'echo:x'; accepted: none, echo\[:times\], ngram"):
        registry.make_drafter("echo:x")
    plain = ql.generate(ToyVerifier(), [1, 2], drafter="none", max_new_tokens=20)
    run = ql.generate(ToyVerifier(), [1, 2], drafter="echo", max_new_tokens=20)
    assert run.token_ids == plain.token_ids
    assert max(len(record.draft_ids) for record in run.rounds) == 2


def test_a_name_that_was_for_later_is_there_once_it_is_built(one_more):
    with pytest.raises(NotInThisVersion):
        registry.make_drafter("suffix")
    one_more("suffix")
    assert registry.make_drafter("suffix").name == "suffix"


def test_help_waits_for_no_torch():
    code = (
        "import sys\n"
        "import quasar_lab.speculative.config\n"
        "from quasar_lab.speculative.drafters.registry import accepted\n"
        "import quasar_lab.cli.app\n"
        "print(accepted(), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "none, ngram[:longest] False"
