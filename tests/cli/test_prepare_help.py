"""The help page of `prepare` lists what the package has."""

from quasar_lab import cli
from quasar_lab.quantization.recipes import summaries


def test_every_recipe_is_listed_with_its_line(capsys):
    assert cli.run(["prepare", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for name, summary in summaries().items():
        assert f"{name} {summary}" in words
