"""``bench`` measures the speed of a chain on this machine. ``simulate`` shows its plan for many ranks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import PipelineError
from .looking import Chain, opened
from .output import Shown, StorageOptions, Url, command, facts, table


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    command(app, "parquetry bench data/train 'shuffle(10000).resize(\"image\", (224, 224)).batch(64)'")(bench)
    command(
        app,
        "parquetry simulate data/train 'shuffle(10000, seed=7).batch(64)' --ranks 8 --ranks 64",
        "parquetry simulate --rows 100000000 --row-group-rows 1000 --row-bytes 120000 --shuffle 10000",
    )(simulate)


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


def simulate(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="A dataset. Or describe one with --rows and related options.")
    ] = "",
    chain: Chain = "",
    ranks: Annotated[
        list[int] | None, typer.Option(help="A number of ranks; may be repeated. Default: 1 to 4,096.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of a hypothetical dataset.")] = None,
    row_group_rows: Annotated[int, typer.Option(min=1, help="Rows per row group of the hypothetical dataset.")] = 1000,
    row_bytes: Annotated[float, typer.Option(help="Stored bytes per row.")] = 1000.0,
    shuffle: Annotated[int | None, typer.Option(metavar="N", min=1, help="The buffer_size of the shuffle.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 64,
    even: Annotated[str, typer.Option(help="pad, drop or none.")] = "pad",
    canonical_shards: Annotated[int | None, typer.Option(min=1, help="The number of canonical shards.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Show an epoch for each number of ranks: steps, balance, reads, memory, cache, shuffle quality."""
    from ..pipeline.explain import bytes_text
    from ..reports.simulating import RANKS, describe, described_by
    from ..reports.simulating import simulate as plan

    if bool(url) == (rows is not None):
        raise PipelineError("simulate: expected either a URL, or --rows for a hypothetical dataset.")
    if even not in ("pad", "drop", "none"):
        raise PipelineError(f"simulate: expected --even pad, drop or none, got '{even}'.")
    options: dict[str, Any] = {"batch_size": batch, "buffer_size": shuffle, "even": even}
    described = (
        described_by(opened(url, chain, storage_option))
        if rows is None
        else describe(rows, row_group_rows, row_bytes, canonical_shards=canonical_shards, **options)
    )
    found = plan(described, ranks or RANKS)
    columns = table(
        *("ranks", "steps", "rows per rank", "repeated", "dropped", "row groups", "reads", "read", "block", "cache"),
        "mixing",
        right=(
            "ranks",
            "steps",
            "rows per rank",
            "repeated",
            "dropped",
            "row groups",
            "reads",
            "read",
            "block",
            "mixing",
        ),
    )
    for each in found.plans:
        columns.add_row(
            f"{each.ranks:,}",
            f"{each.steps:,}",
            _span(*each.items),
            f"{each.repeated:,}",
            f"{each.dropped:,}",
            _span(*each.row_groups),
            f"{each.amplification:.2f}x",
            bytes_text(each.read_bytes),
            bytes_text(each.block_bytes),
            " to ".join(dict.fromkeys(map(bytes_text, each.cache_bytes))),
            "" if each.quality is None else f"{each.quality.displacement:.0%}",
        )
    about = facts({"items": found.items, "row groups": found.row_groups, "stored": bytes_text(found.stored_bytes)})
    notes = (
        "row groups: read by one rank. reads: row groups read by all ranks, divided by those in the dataset.",
        "read: bytes per rank and epoch. cache: bytes after one epoch and after many. block: size of a shuffle block.",
        "mixing: the mean distance that a row moves, relative to a full permutation.",
    )
    return Shown(found, (about, "", columns, "", *notes))


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
