"""Draws the chart of `docs/benchmarks.md`: bars of the share of the limit, as an SVG for light and dark pages.

Takes the plain data of `benchmarks.run.measure` and the keys of workloads; returns the SVG as text. A contender that
was not measured on a workload has no bar there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from .catalog import CONTENDERS
from .figures import summary_of
from .workloads import WORKLOADS

KEYS = ("a", "c-ndarray", "d")
_WIDTH, _LABELS, _GAP = 960, 280, 16
_TOP, _ROW, _BAR = 58, 22, 14
_VALUE = 34  # pixels for the number behind the longest bar
STYLE = """
    text { fill: #1f2328; font-size: 13px; }
    .head, .own { font-weight: 600; }
    .note { fill: #59636e; font-size: 12px; }
    .ours { fill: #0969da; }
    .other { fill: #8c959f; }
    .limit { stroke: #59636e; stroke-dasharray: 3 3; }
    .axis { stroke: #8c959f; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; }
      .note { fill: #9198a1; }
      .ours { fill: #4493f8; }
      .other { fill: #656c76; }
      .limit { stroke: #9198a1; }
      .axis { stroke: #656c76; }
    }
"""


def chart(results: Mapping[str, Any], keys: Sequence[str] = KEYS) -> str:
    """Returns the SVG of the run with the most processors.

    Raises:
        ValueError: none of the workloads was measured next to its limit.
    """
    tables = results["runs"][-1]["workloads"]
    panels = {key: found for key in keys if (found := shares(tables.get(key, {})))}
    if not panels:
        raise ValueError(f"the chart needs one of the workloads {', '.join(keys)}, got {', '.join(tables) or 'none'}.")
    names = _order(panels)
    width = (_WIDTH - _LABELS) / len(panels) - _GAP
    scale = (width - _VALUE) / max(1.0, *(share for found in panels.values() for share in found.values()))
    parts = [_label(name, row) for row, name in enumerate(names)]
    for number, (key, found) in enumerate(panels.items()):
        parts += _panel(key, found, names, _LABELS + number * (width + _GAP), scale)
    return _document(parts, len(names), results["machine"])


def shares(table: Mapping[str, Any]) -> dict[str, float]:
    """Returns the median share of the limit of each contender."""
    found = {name: summary_of(entry) for name, entry in table.items()}
    return {name: one.ratio.median for name, one in found.items() if one and one.ratio}


def _order(panels: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns ours first, then the others; the best in the first workload that they have come first."""
    firsts: dict[str, float] = {}
    for found in panels.values():
        firsts = {**found, **firsts}
    return sorted(firsts, key=lambda name: (not CONTENDERS[name].ours, -firsts[name]))


def _panel(key: str, found: Mapping[str, float], names: Sequence[str], left: float, scale: float) -> list[str]:
    bottom = _TOP + _ROW * len(names)
    what, _, how = WORKLOADS[key].title.partition(", ")
    parts = [
        f'<text class="head" x="{left:.0f}" y="20">{escape(what)}</text>',
        f'<text class="note" x="{left:.0f}" y="38">{escape(how)}</text>',
        f'<path class="axis" d="M{left:.1f} {_TOP - 4}V{bottom}"/>',
        f'<path class="limit" d="{_limit(found, names, left, scale)}"/>',
    ]
    for row, name in enumerate(names):
        if name in found:
            parts += _bar(found[name], CONTENDERS[name].ours, left, _TOP + _ROW * row, scale)
    return parts


def _limit(found: Mapping[str, float], names: Sequence[str], left: float, scale: float) -> str:
    """Returns the path of the line at the limit, with gaps where a number stands."""
    tops = [_TOP - 4 + _ROW * row for row, name in enumerate(names) if not 0 < 1 - found.get(name, 0) < _VALUE / scale]
    return " ".join(f"M{left + scale:.1f} {top}v{_ROW}" for top in tops)


def _bar(share: float, ours: bool, left: float, top: float, scale: float) -> list[str]:
    length = max(share * scale, 1.0)
    number = f"{share:.2f}" if share >= 0.01 else "&lt;0.01"
    return [
        f'<rect class="{"ours" if ours else "other"}" x="{left:.1f}" y="{top}" width="{length:.1f}" height="{_BAR}"/>',
        f'<text class="note" x="{left + length + 4:.1f}" y="{top + _BAR - 3}">{number}</text>',
    ]


def _label(name: str, row: int) -> str:
    contender = CONTENDERS[name]
    kind = ' class="own"' if contender.ours else ""
    y = _TOP + _ROW * row + _BAR - 3
    return f'<text{kind} x="{_LABELS - 10}" y="{y}" text-anchor="end">{escape(contender.title)}</text>'


def _document(parts: Sequence[str], rows: int, machine: Mapping[str, Any]) -> str:
    bottom = _TOP + _ROW * rows
    note = f"Share of the machine's limit (dashed). {machine['processor']}, {machine['cores']} processors."
    font = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 30}" role="img" '
        f'aria-labelledby="title" font-family="{font}">',
        '<title id="title">Rows per second of each loader, as a share of the limit of the machine</title>',
        f"<style>{STYLE}</style>",
        *parts,
        f'<text class="note" x="{_LABELS}" y="{bottom + 20}">{escape(note)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
