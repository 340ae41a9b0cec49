"""Parts of README.md that derive from the package: recipes, drafters, families. Running this file writes them anew."""

import re
from pathlib import Path

from quasar_lab.models.families import family_names
from quasar_lab.quantization.recipes import summaries
from quasar_lab.speculative.drafters.registry import kinds

README = Path(__file__).parents[1] / "README.md"


def recipes() -> str:
    """The table of recipes."""
    return table("recipe", summaries())


def drafters() -> str:
    """The table of drafters."""
    return table("drafter", {kind.syntax: kind.summary for kind in kinds().values()})


def table(heading: str, rows: dict[str, str]) -> str:
    """A markdown table of names with what they do."""
    lines = [f"| `{name}` | {summary} |" for name, summary in rows.items()]
    return "\n".join(["", "", f"| {heading} | what it does |", "|---|---|", *lines, "", ""])


PARTS = {"recipes": recipes, "drafters": drafters, "families": family_names}
"""What stands between `<!-- NAME -->` and `<!-- end of NAME -->`."""


def written(text: str) -> str:
    """README's text with every part as the package has it. Raises ValueError when a part is missing."""
    for name, make in PARTS.items():
        pattern = re.compile(f"(?<=<!-- {name} -->).*?(?=<!-- end of {name} -->)", re.DOTALL)
        text, count = pattern.subn(make().replace("\\", r"\\"), text)
        if count != 1:
            raise ValueError(f"README.md has {count} parts {name}; accepted: one")
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
