"""`html_report` describes a dataset on one self-contained HTML page, without scripts or external resources.

The page shows the layout and its findings, a map of the row groups, sample images, histograms, the balance of labels,
and the gaps between timestamps. Values may come from a sample, and the page says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np

from ...base.errors import DatasetError, ParquetryError, PipelineError
from ...base.process.dataclass import dataclass
from ...base.text_table import html_table
from ...base.urls import without_secrets
from ...pipeline.display.images import data_url
from ...pipeline.display.text import duration_text, short_text, time_text
from ...pipeline.notebook import first_rows_html, with_lists_as_stored
from ...pipeline.pipeline import Pipeline
from ...pipeline.statistics import FieldStatistics, Statistics
from ...storage.whole_files import whole_file
from .inspecting import DatasetReport, FieldReport, Source, inspect, pipeline_of
from .linting import Finding, find, looks_like_times
from .pictures import contact_sheet
from .statistics import stats

_MOST_GROUPS = 1200
_MOST_STAMPS = 200_000
_BLUE = "#4a7ab5"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em }
body { color: #222; background: #fff; overflow-wrap: break-word }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top }
th, td:first-child { white-space: nowrap }
figure { margin: 1em 0 }
.problem { color: #b00020; font-weight: 600 } .note { color: #8a6d00; font-weight: 600 }
.cards { display: flex; flex-wrap: wrap; gap: 1em }
.card { border: 1px solid #ddd; border-radius: 6px; padding: .6em .9em }
.card h3 { margin: 0; font-size: 13px } .card p { margin: 0; font-size: 12px; color: #555 }
img { max-width: 100%; image-rendering: pixelated } svg { display: block } figcaption { font-size: 12px; color: #555 }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The differences of a field between consecutive stored rows, in the unit of the field.

    Attributes:
        rows: the number of rows examined, starting with the first.
        median, most: the median and maximum of the differences that are not negative.
        back: how often the field goes backward.
        largest: the largest differences as ``(row, difference)``. Each gap lies before its row.
    """

    field: str
    rows: int
    median: float
    most: float
    back: int
    largest: tuple[tuple[int, float], ...]


def gaps(source: Source, field: str, *, storage_options: Mapping[str, Any] | None = None) -> Gaps:
    """Computes the gaps between timestamps (or other numbers) of consecutive rows, for the first 200,000 rows.

    Raises:
        PipelineError: the field is not a single number.
        FieldNotFoundError: there is no such field.
    """
    pipeline = pipeline_of(source, storage_options).with_stages(()).select(field)
    output = pipeline.element.outputs[0]
    if output.element_shape != () or output.dtype.kind not in "iuf":
        raise PipelineError(f"gaps: expected single numbers or times, got field '{field}' of {output.dtype}.")
    batches = pipeline.batch(4096).take(-(-_MOST_STAMPS // 4096))
    columns = [np.ma.filled(np.ma.asarray(batch[field]).astype(np.float64), np.nan) for batch in batches]
    values = np.concatenate(columns) if columns else np.zeros(0)
    steps = np.diff(values)
    known = np.flatnonzero(np.isfinite(steps))
    ahead = known[steps[known] >= 0]
    largest = ahead[np.argsort(steps[ahead], kind="stable")[::-1][:5]]
    return Gaps(
        field=field,
        rows=len(values),
        median=float(np.median(steps[ahead])) if len(ahead) else 0.0,
        most=float(steps[ahead].max()) if len(ahead) else 0.0,
        back=int(np.count_nonzero(steps[known] < 0)),
        largest=tuple((int(row) + 1, float(steps[row])) for row in largest),
    )


def html_report(
    source: Source, *, rows: int = 2000, images: int = 24, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Returns an HTML page about a dataset.

    >>> Path("report.html").write_text(html_report("data/train"))  # doctest: +SKIP

    Args:
        rows: the number of randomly sampled rows for histograms and label balance.
        images: the number of sample images.

    Raises:
        DatasetError, DecodeError: the dataset cannot be read.
        PipelineError: a number is below 1, or the pipeline is mixed or served.
    """
    pipeline = pipeline_of(source, storage_options).with_stages(())
    if min(rows, images) < 1:
        raise PipelineError(f"report: expected numbers >= 1, got {rows} rows and {images} images.")
    usable = pipeline.select(*pipeline.schema) if len(pipeline.schema) else pipeline
    report = inspect(pipeline)
    findings = find(report, pipeline.dataset)
    counted = stats(usable, rows=rows) if report.rows else None
    parts = [
        report.about()._repr_html_(),
        _findings(findings),
        _row_group_map(pipeline),
        _fields(report),
        *([] if counted is None else [_pictures(usable, images), _values(counted), _time_gaps(pipeline, report)]),
        _rows(usable) if report.rows else "",
    ]
    title = escape(", ".join(report.urls))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1>{''.join(parts)}</body></html>\n"
    )


def save_report(source: Source, path: str | os.PathLike[str], **options: Any) -> None:
    """Writes the page of `html_report` to a file, atomically.

    Raises:
        DatasetError: the file cannot be written. See also `html_report`.
    """
    page = html_report(source, **options)
    try:
        with whole_file(os.path.abspath(path)) as hidden, open(hidden, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise DatasetError(f"report {os.fspath(path)}: cannot be written: {error}") from error


def _findings(findings: Iterable[Finding]) -> str:
    lines = [
        f'<li><span class="{finding.level}">{finding.level}</span> <b>{escape(finding.what)}</b> '
        f"{escape(finding.cost)} {escape(finding.remedy)}</li>"
        for finding in findings
    ]
    text = f"<ul>{''.join(lines)}</ul>" if lines else "<p>No problems found in the layout.</p>"
    return f"<h2>Findings</h2>{text}"


def _row_group_map(pipeline: Pipeline) -> str:
    """Draws a bar for each row group, or for a sample. The height shows its rows, the color its file."""
    groups = pipeline.dataset.row_groups
    if not len(groups):
        return ""
    shown = np.unique(np.linspace(0, len(groups) - 1, min(len(groups), _MOST_GROUPS)).astype(int))
    most, width = max(int(groups.rows.max()), 1), max(1.0, 1000 / len(shown))
    bars = []
    for place, number in enumerate(shown.tolist()):
        height, hue = 80 * int(groups.rows[number]) / most, int(groups.file[number]) * 47 % 360
        title = (
            f"file {int(groups.file[number])}, row group {int(groups.group[number])}: {int(groups.rows[number]):,} rows"
        )
        bars.append(
            f'<rect x="{place * width:.1f}" y="{80 - height:.1f}" width="{max(width - 0.5, 0.5):.1f}" '
            f'height="{height:.1f}" fill="hsl({hue},55%,55%)"><title>{title}</title></rect>'
        )
    some = f", {len(shown):,} of them, evenly spaced" if len(shown) < len(groups) else ""
    box = f'viewBox="0 0 {len(shown) * width:.0f} 80" width="100%" height="80" preserveAspectRatio="none"'
    caption = f"{len(groups):,} row groups in stored order{some}; height: rows, up to {most:,}; color: file."
    return f"<h2>Row groups</h2><figure><svg {box}>{''.join(bars)}</svg><figcaption>{caption}</figcaption></figure>"


def _fields(report: DatasetReport) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes())
    return f"<h2>Fields</h2>{report.table()._repr_html_()}{f'<ul>{notes}</ul>' if notes else ''}"


def _pictures(pipeline: Pipeline, count: int) -> str:
    try:
        sheet = contact_sheet(pipeline, count, columns=8, tile=120, seed=0)
    except PipelineError:  # there is no image field
        return ""
    return (
        f'<h2>Images</h2><figure><img alt="images of {escape(sheet.field)}" src="{data_url(sheet.pixels)}">'
        f"<figcaption>{sheet.images} images of {escape(sheet.field)}, sampled at random.</figcaption></figure>"
    )


def _values(statistics: Statistics) -> str:
    cards = "".join(filter(None, map(_card, statistics.fields)))
    whole = "all" if statistics.exact else f"{statistics.rows:,} rows sampled at random from"
    total = statistics.total or statistics.rows
    return f"<h2>Values</h2><p>From {whole} {total:,} rows.</p><div class='cards'>{cards}</div>"


def _card(field: FieldStatistics) -> str:
    few = field.distinct is not None and field.distinct <= 20
    if few and field.common:
        most = max(times for _, times in field.common)
        drawing = _bars([(short_text(value, 12), times / most, f"{times:,}") for value, times in field.common])
        about = f"{field.distinct} values"
    elif field.histogram:
        drawing = _histogram(field.histogram)
        about = f"{field.least:.5g} ... {field.most:.5g}, mean {field.mean:.5g}, deviation {field.deviation:.5g}"
        if field.unit is not None and field.least is not None and field.most is not None:
            about = f"{time_text(field.least, field.unit)} ... {time_text(field.most, field.unit)}"
    elif field.lengths is not None:
        drawing, about = "", f"lengths {field.lengths[0]:,} ... {field.lengths[2]:,}, mean {field.lengths[1]:,.1f}"
    elif field.mean is not None:
        drawing, about = "", f"mean {field.mean:.5g}, deviation {field.deviation:.5g}"
    else:
        return ""
    nulls = f", {field.nulls:,} nulls" if field.nulls else ""
    nulls += f", {field.nulls_inside:,} nulls in lists" if field.nulls_inside else ""
    return f"<div class='card'><h3>{escape(field.name)}</h3>{drawing}<p>{escape(about)}{nulls}</p></div>"


def _histogram(counts: Iterable[int]) -> str:
    values = list(counts)
    most = max(values) or 1
    bars = []
    for place, value in enumerate(values):
        height = 60 * value / most
        box = f'x="{7 * place}" y="{60 - height:.1f}" width="6" height="{height:.1f}"'
        bars.append(f'<rect {box} fill="{_BLUE}"><title>{value:,}</title></rect>')
    return f'<svg width="{7 * len(values)}" height="60">{"".join(bars)}</svg>'


def _bars(values: Iterable[tuple[str, float, str]]) -> str:
    lines = []
    for place, (name, share, count) in enumerate(values):
        top, width = 16 * place, 110 * share
        lines.append(f'<text x="0" y="{top + 12}">{escape(name)}</text>')
        lines.append(f'<rect x="150" y="{top + 2}" width="{width:.1f}" height="12" fill="{_BLUE}"/>')
        lines.append(f'<text x="{154 + width:.1f}" y="{top + 12}">{count}</text>')
    return f'<svg width="320" height="{16 * len(lines) // 3}" font-size="11">{"".join(lines)}</svg>'


def _time_gaps(pipeline: Pipeline, report: DatasetReport) -> str:
    lines = []
    for field in report.fields:
        if not looks_like_times(field):
            continue
        try:
            field_gaps = gaps(pipeline, field.name)
        except ParquetryError as error:
            lines.append((field.name, "", "", "", "", without_secrets(str(error))))
            continue
        largest = ", ".join(f"{_gap(step, field)} before row {row:,}" for row, step in field_gaps.largest[:3])
        lines.append(
            (
                field_gaps.field,
                field.unit or "",
                f"{field_gaps.rows:,}",
                _gap(field_gaps.median, field),
                f"{field_gaps.back:,}",
                largest,
            )
        )
    if not lines:
        return ""
    names = ("field", "unit", "rows", "median gap", "goes backward", "largest gaps")
    return f"<h2>Timestamps</h2><p>Differences between consecutive stored rows.</p>{html_table(names, lines)}"


def _gap(step: float, field: FieldReport) -> str:
    return f"{step:,.6g}" if field.unit is None else duration_text(step, field.unit)


def _rows(pipeline: Pipeline) -> str:
    return f"<h2>First rows</h2>{first_rows_html(with_lists_as_stored(pipeline))}"
