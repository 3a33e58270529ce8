"""``describe``: what is in the data, from the footers, or from the values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from ...base.errors import PipelineError
from .output import Command, Shown, StorageOptions, Url, command, facts, rich_table, storage_options_of
from .show import Chain, opened_to_show, with_refused

if TYPE_CHECKING:
    from ...pipeline.pipeline import Pipeline
    from ..reports.inspecting import DatasetReport
    from ..reports.linting import Finding


def register(app: typer.Typer) -> None:
    """Adds the command to the app."""
    command(
        app,
        "parquetry describe data/train",
        "parquetry describe data/train --html report.html",
        'parquetry describe data/train \'select("image", "label")\' --values --keep',
    )(describe)


def describe(
    url: Url,
    chain: Chain = "",
    values: Annotated[
        bool,
        typer.Option("--values", help="Read the values: mean and deviation, image channels, lengths, frequent values."),
    ] = False,
    rows: Annotated[
        int | None, typer.Option("--rows", "-n", min=1, help="Sample this many rows; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the sample.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the statistics beside the dataset and reuse them.")
    ] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page instead.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Describe a dataset: schema, files, row groups, compression, bounds, and anything unusual; or its values."""
    if values:
        if html is not None:
            raise PipelineError("describe: expected --values or --html, got both.")
        return _values(*opened_to_show(url, chain, storage_option), rows=rows, seed=seed, keep=keep)
    if chain or keep or rows is not None:
        raise PipelineError("describe: expected --values with a chain, --rows or --keep.")
    from ..reports.inspecting import inspect, pipeline_of
    from ..reports.linting import find

    pipeline = pipeline_of(url, storage_options_of(storage_option))
    if html is not None:
        from ..reports.page import save_report

        save_report(pipeline, html)
        return Shown({"html": html}, (f"written to {html}",))
    report = inspect(pipeline)
    findings = find(report, pipeline.dataset)
    return Shown({"dataset": report, "findings": findings}, (*_described(report), "", *finding_lines(findings)))


def _described(report: DatasetReport) -> Iterable[RenderableType]:
    yield facts(report.facts())
    yield ""
    yield rich_table(report.table())
    yield from report.notes()


def finding_lines(findings: Iterable[Finding]) -> Iterable[RenderableType]:
    """Formats each finding: what was found, its cost, the remedy, and the command that carries it out."""
    from ..reports.remedies import split_command

    lines: list[RenderableType] = []
    for finding in findings:
        line = Text(f"{finding.level}: ", style="bold red" if finding.level == "problem" else "bold yellow")
        remedy, command = split_command(finding.remedy)
        line.append(f"{finding.what} ", style="bold").append(f"{finding.cost} {remedy}", style="")
        lines.append(line)
        if command:
            lines.append(Command(f"  {command}"))
    return lines or [Text("No problems found in the layout.", style="green")]


def _values(pipeline: Pipeline, refused: dict[str, str], *, rows: int | None, seed: int, keep: bool) -> Shown:
    from ..reports.statistics import keep as keep_statistics
    from ..reports.statistics import kept, stats
    from ..reports.values import to_json

    statistics = kept(pipeline) if keep and rows is None else None
    if statistics is not None:
        return with_refused(Shown(statistics, ("kept beside the dataset:", *_statistics(statistics))), refused)
    counted = stats(pipeline, rows=rows, seed=seed)
    parts = list(_statistics(to_json(counted)))
    if keep:
        parts.append(f"written to {keep_statistics(pipeline, counted)}")
    return with_refused(Shown(counted, tuple(parts)), refused)


def _statistics(statistics: dict[str, Any]) -> Iterable[RenderableType]:
    """Formats statistics, given in their JSON form."""
    from ...pipeline.display.statistics import counted_text, normalize_lines, statistics_table

    yield rich_table(statistics_table(statistics))
    yield from normalize_lines(statistics)
    yield counted_text(statistics)
