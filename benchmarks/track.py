"""Appends the ratios of a benchmark's results to the track of all commits, and draws each over commits.

    python -m benchmarks.track bench-results/track.json docs/notebook/ratios.json

The track is JSON: a list with one entry a commit, oldest first; measuring a commit again replaces its entry. The
picture stands beside it, with the ending ``.svg``. Only ratios to the limit of the same run are kept: rates of two
machines say nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .catalog import CONTENDERS
from .chart import STYLE, shares

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _LABELS = 420, 120, 40, 44, 60, 180
_COLORS = ("#0969da", "#bf3989", "#1a7f37", "#bc4c00", "#8250df", "#6e7781")
Entry = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the results, and writes the track and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON of `python -m benchmarks.run`")
    parser.add_argument("track", type=Path, help="JSON of all commits; created if it is not there")
    options = parser.parse_args(arguments)
    entries = json.loads(options.track.read_text()) if options.track.exists() else []
    added = extended(entries, entry_of(json.loads(options.results.read_text()), *_commit()))
    options.track.parent.mkdir(parents=True, exist_ok=True)
    options.track.write_text("[\n" + ",\n".join(map(json.dumps, added)) + "\n]\n")
    options.track.with_suffix(".svg").write_text(picture(added))


def entry_of(results: Mapping[str, Any], commit: str, day: str) -> Entry:
    """Returns what the track says about a commit: the median share of the limit of each of our classes, by workload.

    Raises:
        ValueError: nothing of ours was measured next to a limit.
    """
    run = results["runs"][-1]
    ratios = {
        key: ours
        for key, table in run["workloads"].items()
        if (ours := {name: round(share, 3) for name, share in shares(table).items() if CONTENDERS[name].ours})
    }
    if not ratios:
        raise ValueError("the track needs one of parquetry's classes next to the limit, got none.")
    machine = results["machine"]
    return {"commit": commit, "day": day, "processor": machine["processor"], "cores": run["cores"], "ratios": ratios}


def extended(entries: Sequence[Entry], entry: Entry) -> list[Entry]:
    """Returns the entries with this one at the end, in place of an earlier one of the same commit."""
    return [*(each for each in entries if each["commit"] != entry["commit"]), entry]


def picture(entries: Sequence[Entry]) -> str:
    """Returns an SVG with a panel for each workload: the ratios of our classes over commits, the limit at 1 dashed."""
    keys = sorted({key for entry in entries for key in entry["ratios"]})
    most = max(1.0, *(ratio for entry in entries for table in entry["ratios"].values() for ratio in table.values()))
    panels = [_panel(key, entries, most, _TOP + number * (_HEIGHT + _GAP)) for number, key in enumerate(keys)]
    height = _TOP + len(keys) * (_HEIGHT + _GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _LABELS} {height}" role="img" '
            'aria-labelledby="title" font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif">',
            '<title id="title">Rows per second of each class as a share of the limit, over commits</title>',
            f"<style>{STYLE}</style>",
            *panels,
            "</svg>\n",
        ]
    )


def _panel(key: str, entries: Sequence[Entry], most: float, top: float) -> str:
    bottom, step = top + _HEIGHT, _WIDTH / max(1, len(entries) - 1)
    parts = [
        f'<text class="head" x="{_LEFT}" y="{top - 12:.0f}">workload {escape(key)}</text>',
        f'<path class="axis" d="M{_LEFT} {top}V{bottom}H{_LEFT + _WIDTH}" fill="none"/>',
        f'<path class="limit" d="M{_LEFT} {bottom - _HEIGHT / most:.1f}h{_WIDTH}"/>',
    ]
    tables = [entry["ratios"].get(key, {}) for entry in entries]
    for number, name in enumerate(sorted({name for table in tables for name in table})):
        ratios = {place: table[name] for place, table in enumerate(tables) if name in table}
        points = [(_LEFT + place * step, bottom - _HEIGHT * ratio / most) for place, ratio in ratios.items()]
        color, latest = _COLORS[number % len(_COLORS)], [*ratios.values()][-1]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in points]
        place = f'x="{_LEFT + _WIDTH + 12}" y="{top + 12 + 18 * number:.0f}"'
        parts.append(f'<text {place} style="fill: {color}">{escape(CONTENDERS[name].title)} {latest:.2f}</text>')
    for entry, x, anchor in ((entries[0], _LEFT, "start"), (entries[-1], _LEFT + _WIDTH, "end"))[: len(entries)]:
        place = f'x="{x}" y="{bottom + 16:.0f}" text-anchor="{anchor}"'
        parts.append(f'<text class="note" {place}>{escape(entry["commit"])} {entry["day"]}</text>')
    return "\n".join(parts)


def _commit() -> tuple[str, str]:
    """Returns the short name of the commit and its day."""
    command = ["git", "log", "-1", "--format=%h %cs", "--abbrev=10"]
    name, day = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return name, day


if __name__ == "__main__":
    main()
