"""Prints the demo's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """One training run; ``rows_per_s`` excludes the first epoch, in which the frameworks warm up."""

    name: str
    steps: int
    rows_per_s: float
    accuracy: float


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Prints one line per run."""
    table = Table("training", title="The same files, both frameworks")
    for heading in ("steps", "rows/s trained", "test accuracy"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(result.name, f"{result.steps:,}", f"{result.rows_per_s:,.0f}", f"{result.accuracy:.1%}")
    console.print(table)
