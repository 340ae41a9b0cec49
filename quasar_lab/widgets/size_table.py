"""What a model costs in bytes, in BF16 and in its quantized copy, as an HTML table."""

from html import escape

from quasar_lab.models.decoder import Decoder

NAME_CELL = 'style="padding: 5px 28px 5px 0; text-align: left"'
NUMBER_CELL = 'style="padding: 5px 0 5px 28px; text-align: right; white-space: nowrap"'
"""Cells bring their look with them: a widget's HTML gets no table style from the page."""


def size_table(base: Decoder, quantized: Decoder) -> str:
    """Bytes of both models, read per step and held in memory, as HTML."""
    rows = "".join(
        f"<tr><td {NAME_CELL}>{escape(decoder.name)}</td>"
        f"<td {NUMBER_CELL}>{decoder.weight_bytes / 1e6:.1f} MB</td>"
        f"<td {NUMBER_CELL}>{decoder.weight_bytes / base.weight_bytes:.0%}</td>"
        f"<td {NUMBER_CELL}>{decoder.resident_bytes / 1e6:.1f} MB</td>"
        f"<td {NUMBER_CELL}>{decoder.resident_bytes / base.resident_bytes:.0%}</td></tr>"
        for decoder in (base, quantized)
    )
    identity = base.identity
    caption = f"{identity['model']} · device {identity['device']}, backend {identity['backend']}"
    heads = "".join(
        f'<th scope="col" {look}>{words}</th>'
        for words, look in (
            ("verifier", NAME_CELL),
            ("read per step", NUMBER_CELL),
            ("of bf16", NUMBER_CELL),
            ("held in memory", NUMBER_CELL),
            ("of bf16", NUMBER_CELL),
        )
    )
    return (
        '<div style="overflow-x: auto" tabindex="0" role="region" aria-label="bytes of the model">'
        '<table class="quasar-table" style="border-collapse: collapse">'
        f'<caption style="text-align: left; white-space: nowrap">{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
