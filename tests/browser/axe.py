"""axe-core on a page: what it calls serious in our own markup."""

SERIOUS = {"serious", "critical"}
NOT_OURS = [".js-plotly-plot .svg-container"]
"""plotly's drawings; their numbers stand in the table beside them."""


def complaints(page, only=None):
    """One line for each serious violation in the page, or in what the selector `only` finds."""
    from axe_playwright_python.sync_playwright import Axe

    where = {"exclude": [NOT_OURS]} | ({"include": [[only]]} if only else {})
    found = Axe().run(page, context=where).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:160]}" for rule in found if rule["impact"] in SERIOUS for node in rule["nodes"]
    ]
