"""``describe``: what is in the data, from the footers, or from the values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from ...base.errors import PipelineError
from .output import Shown, StorageOptions, Url, command, facts, storage_options_of, table
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
    from ...pipeline.explain import bytes_text

    rows, stored, decoded = report.rows_per_group, report.bytes_per_group, report.decoded_per_group
    yield facts(
        {
            "dataset": ", ".join(report.urls) + (f" ({report.kind})" if report.kind else ""),
            "rows": report.rows,
            "files": f"{report.files:,} ({bytes_text(report.bytes)}; median {bytes_text(report.file_bytes.median)})",
            "row groups": f"{report.row_groups:,} of {rows.least:,} to {rows.most:,} rows (median {rows.median:,}), "
            f"{bytes_text(stored.median)} stored, up to {bytes_text(decoded.most)} in memory",
            "partitions": ", ".join(report.partitions) or None,
            "schema from": {"columns": "the columns"}.get(report.described, f"metadata of {report.described}"),
            "index": "yes" if report.indexed else "no",
            "written by": report.written_by or None,
            "sampled": f"{report.sampled:,} row groups" if report.sampled < report.row_groups else None,
        }
    )
    yield ""
    columns = table(
        *("field", "dtype", "shape", "codec", "stored as", "bytes", "compression", "encodings", "nulls", "range"),
        right=("bytes", "nulls"),
    )
    for field in report.fields:
        squeezed = f" {field.stored_bytes / field.decoded_bytes:.0%}" if field.decoded_bytes else ""
        columns.add_row(
            field.name + (" ?" if field.nullable else ""),
            field.dtype,
            str(field.shape) if field.shape else "",
            field.codec or "",
            "directories" if field.partition else field.stored,
            "" if field.partition else bytes_text(field.stored_bytes),
            " ".join(field.compression).lower() + squeezed,
            " ".join(field.encodings).lower(),
            "" if field.nulls is None else f"{field.nulls:,}",
            field.range_text(12),
        )
    yield columns
    for field in report.fields:
        yield from field.notes()
    if report.undeclared:
        yield f"not in the schema of the metadata: {', '.join(report.undeclared)}"
    for name, names in report.labels.items():
        yield f"classes of {name}: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def finding_lines(findings: Iterable[Finding]) -> Iterable[RenderableType]:
    """Formats each finding as a line: what was found, its cost, and the remedy."""
    lines = []
    for finding in findings:
        line = Text(f"{finding.level}: ", style="bold red" if finding.level == "problem" else "bold yellow")
        line.append(f"{finding.what} ", style="bold").append(f"{finding.cost} {finding.remedy}", style="")
        lines.append(line)
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


def _nulls(field: dict[str, Any]) -> str:
    inside = field.get("nulls_inside", 0)
    return f"{field['nulls']:,}" + (f" + {inside:,} in lists" if inside else "")


def _statistics(statistics: dict[str, Any]) -> Iterable[RenderableType]:
    """Formats statistics, given in their JSON form, as a table."""
    columns = table(
        *("field", "dtype", "count", "nulls", "mean", "deviation", "least", "median", "most", "lengths", "distinct"),
        "most often",
        right=("count", "nulls", "mean", "deviation", "least", "median", "most", "distinct"),
    )
    for field in statistics["fields"]:
        lengths, quantiles, unit = field["lengths"], field["quantiles"], field.get("unit")
        common = [f"{value} ({times:,})" for value, times in field["common"][:3] if times > 1]
        columns.add_row(
            field["name"],
            field["dtype"],
            f"{field['count']:,}",
            _nulls(field),
            _number(field["mean"], unit),
            _spread(field["deviation"], unit),
            _number(field["least"], unit),
            _number(quantiles[4] if quantiles else None, unit),
            _number(field["most"], unit),
            "" if lengths is None else f"{lengths[0]:,} ... {lengths[1]:,.1f} ... {lengths[2]:,}",
            "" if field["distinct"] is None else f"{field['distinct']:,}",
            ", ".join(common),
        )
    yield columns
    for field in statistics["fields"]:
        if field["channels"]:
            means, deviations = zip(*field["channels"], strict=True)
            yield f"{field['name']}: mean ({_numbers(means)}), deviation ({_numbers(deviations)}) of its channels"
            if field["dtype"] == "uint8":
                scaled = [[value / 255 for value in values] for values in (means, deviations)]
                yield f'  normalize("{field["name"]}", mean=({_numbers(scaled[0])}), std=({_numbers(scaled[1])}))'
    kind = "all" if statistics["exact"] else "a sample of"
    of = f" of {statistics['total']:,}" if statistics["total"] is not None and not statistics["exact"] else ""
    yield f"{kind} {statistics['rows']:,}{of} rows"


def _number(value: float | None, unit: str | None) -> str:
    from ...pipeline.display.text import time_text

    if value is None or unit is None:
        return "" if value is None else f"{value:.5g}"
    return time_text(value, unit)


def _spread(value: float | None, unit: str | None) -> str:
    if value is None or unit is None:
        return _number(value, None)
    return f"{value:.5g} {unit[unit.index('[') + 1 : -1]}"


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
