"""The keys of a JSON document as a list of paths: `runs[].speedup`."""

OPEN = ("versions", "step_ms", "curves")
"""Objects whose keys are data: names of packages, verifiers, widths."""


def key_paths(document, path=""):
    """Sorted paths of every key; `[]` stands for the items of a list."""
    found = set()
    if isinstance(document, dict):
        for key, value in document.items():
            here = f"{path}.{key}" if path else key
            found.add(here)
            if key not in OPEN:
                found |= set(key_paths(value, here))
    elif isinstance(document, list):
        for item in document:
            found |= set(key_paths(item, f"{path}[]"))
    return sorted(found)
