"""A number as people read it: three figures, no exponent where there need be none, no unit left to guess.

Tables, key numbers and captions use this one function, so the same number looks the same everywhere. JSON keeps every
digit.
"""

from math import isfinite

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def readable(value: float) -> str:
    """Three significant figures: 1.27, 4960 → "4960", 7.6e-08 → "7.60 × 10⁻⁸". A zero is "0"."""
    if value == 0 or not isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"
