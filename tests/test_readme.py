"""README lists what the package has."""

from readme_tables import README, written


def test_the_lists_of_readme_are_those_of_the_package():
    text = README.read_text(encoding="utf-8")
    assert written(text) == text, "write them anew: .venv/bin/python tests/readme_tables.py"
