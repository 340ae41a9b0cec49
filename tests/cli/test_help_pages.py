"""Help pages list what the package has, wherever an option takes it."""

import pytest
from quasar_kernels import availability

from quasar_lab import cli
from quasar_lab.quantization.recipes import summaries
from quasar_lab.speculative.drafters.registry import kinds

DRAFTERS = {kind.syntax: kind.summary for kind in kinds().values()}
LISTED = {
    "prepare": (summaries(),),
    "generate": (summaries(), DRAFTERS),
    "fidelity": (summaries(),),
    "replay": (summaries(),),
    "bench step": (summaries(),),
    "bench decode": (summaries(), DRAFTERS),
}


@pytest.mark.parametrize("command", LISTED)
def test_every_name_is_listed_with_its_line(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*command.split(), "--help"]) == 0
    page = capsys.readouterr().out
    words = " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 80
    for listed in LISTED[command]:
        for name, summary in listed.items():
            assert f"{name} {summary}" in words
    for backend in availability():
        assert f" {backend} " in words.partition("Backends:")[2] + " "
