"""``bench`` measures the speed of a chain on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .looking import Chain, opened
from .output import Shown, StorageOptions, Url, command, facts, table


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    command(app, "parquetry bench data/train 'shuffle(10000).resize(\"image\", (224, 224)).batch(64)'")(bench)


def bench(
    url: Url,
    chain: Chain = "",
    seconds: Annotated[float, typer.Option(help="Seconds per run; there are three or four runs.")] = 3.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default: one per processor.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Measure how fast a chain is on this machine, which stage limits it, and what to change."""
    from ..pipeline.explain import bytes_text
    from ..reports.benching import bench as measure

    found = measure(opened(url, chain, storage_option), seconds=seconds, workers=workers)
    runs = table("run", "rows/s", "MiB/s", "processors busy", right=("rows/s", "MiB/s", "processors busy"))
    for run in (found.whole, *found.runs):
        runs.add_row(run.name, f"{run.rows_per_s:,.0f}", f"{run.mib_per_s:,.1f}", f"{run.processors:.1f}")
    parts = table("stage", "time per row", "share", "", right=("time per row", "share"))
    for part in found.parts:
        parts.add_row(part.stage, f"{part.microseconds:,.1f} us", f"{part.share:.0%}", "█" * round(30 * part.share))
    about = {
        "planning": f"{found.planning_s:.2f} s",
        "first element": f"{found.first_s:.2f} s, {bytes_text(found.element_bytes)}",
        "stored": f"{bytes_text(found.stored_row_bytes)} a row",
        "workers": found.workers,
    }
    advice = [f"- {line}" for line in found.advice]
    return Shown(found, (facts(about), "", runs, "", parts, "", f"bound by: {found.bound}", *advice))
