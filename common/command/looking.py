"""Commands that show stored data or the output of a chain: ``explain``, ``inspect``, ``head``, ``sample``, ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from ..errors import ParquetryError, PipelineError, SchemaError
from .output import Shown, StorageOptions, Url, command, facts, new_console, storage_options_of, table

if TYPE_CHECKING:
    import numpy as np

    from ..pipeline.pipeline import Pipeline
    from ..reports.inspecting import DatasetReport
    from ..reports.linting import Finding
    from ..reports.rows import Preview, PreviewField

Chain = Annotated[
    str, typer.Argument(metavar="CHAIN", help="Verbs as in Python: 'where(field(\"a\") > 3).shuffle(1000).batch(64)'.")
]
Count = Annotated[int, typer.Option("--rows", "-n", min=0, help="The number of rows (of batches, after batch()).")]

_TERMINAL_TILE = 64


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    command(app, "parquetry inspect data/train", "parquetry inspect data/train --html report.html")(inspect)
    command(app, "parquetry head data/train -n 3", 'parquetry head data/train \'select("image", "label")\'')(head)
    command(app, "parquetry sample data/train -n 10 --seed 7")(sample)
    command(
        app,
        "parquetry show data/train -n 8 --png sheet.png",
        "parquetry show data/drive --chain 'ngram([\"image\"], length=5)' -n 3",
        "parquetry show data/text --tokenizer tokenizer.json",
    )(show)
    command(app, "parquetry explain data/train 'where(field(\"speed\") > 3).shuffle(10000).batch(64)'")(explain)


def inspect(
    url: Url,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page instead.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Show the schema, files, row groups, compression and statistics of a dataset, and anything unusual."""
    from ..reports.inspecting import inspect as inspect_dataset
    from ..reports.inspecting import pipeline_of
    from ..reports.linting import find

    pipeline = pipeline_of(url, storage_options_of(storage_option))
    if html is not None:
        from ..reports.page import save_report

        save_report(pipeline, html)
        return Shown({"html": html}, (f"written to {html}",))
    report = inspect_dataset(pipeline)
    findings = find(report, pipeline.dataset)
    return Shown({"dataset": report, "findings": findings}, (*_described(report), "", *finding_lines(findings)))


def _described(report: DatasetReport) -> Iterable[RenderableType]:
    from ..pipeline.explain import bytes_text

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


def head(url: Url, chain: Chain = "", rows: Count = 5, skip: int = 0, storage_option: StorageOptions = None) -> Shown:
    """Show the first rows."""
    from ..reports.rows import preview

    pipeline, refused = opened_to_show(url, chain, storage_option)
    return with_refused(_previewed(preview(pipeline, rows, first=skip)), refused)


def sample(
    url: Url, chain: Chain = "", rows: Count = 5, seed: int | None = None, storage_option: StorageOptions = None
) -> Shown:
    """Show a random sample of rows. The same seed gives the same rows."""
    from ..reports.rows import preview

    pipeline, refused = opened_to_show(url, chain, storage_option)
    return with_refused(_previewed(preview(pipeline, rows, sample=True, seed=seed)), refused)


def _previewed(found: Preview) -> Shown:
    """Shows rows side by side: one column per row, one line per field."""
    from ..display.text import short_text, time_text

    def cell(field: PreviewField, value: Any) -> str:
        if field.unit is not None and isinstance(value, Integral):
            return time_text(int(value), field.unit)
        return short_text(value, 20).removeprefix(f"{field.dtype} {field.shape} ")  # it is in the columns before

    columns = table("field", "dtype", "shape", *(f"row {number}" for number in range(len(found.elements))))
    for field in found.fields:
        cells = [cell(field, element.get(field.name)) for element in found.elements]
        dtype = field.dtype if field.unit in (None, field.dtype) else f"{field.dtype} ({field.unit})"
        columns.add_row(field.name, dtype, str(field.shape) if field.shape else "", *cells)
    many = "" if found.length is None else f" of {found.length:,}"
    return Shown(found.to_json(), (columns, "", f"{len(found.elements)}{many} elements"))


def show(
    url: Url,
    chain: Chain = "",
    chain_option: Annotated[
        str, typer.Option("--chain", metavar="CHAIN", help="The chain, if not given as an argument.")
    ] = "",
    rows: Count = 4,
    field: Annotated[
        str | None, typer.Option(help="The field to show; default: the first one with images or tokens.")
    ] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write a contact sheet instead.")] = None,
    columns: Annotated[int, typer.Option(min=1, help="Images per line.")] = 4,
    tile: Annotated[int, typer.Option(min=1, help="Width and height of each image in the PNG, in pixels.")] = 256,
    seed: Annotated[int | None, typer.Option(help="Sample rows at random with this seed.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FILE", help="A tokenizer.json; shows tokens as text.")
    ] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Show images in the terminal or as a PNG, windows as film strips, and tokens as text."""
    from ..reports import pictures

    if chain and chain_option:
        raise PipelineError("show: expected one chain, got one as an argument and one from --chain.")
    pipeline, _ = opened_to_show(url, chain or chain_option, storage_option)
    if tokenizer is not None:
        return _tokens(pipeline, tokenizer, field, rows, seed)
    if png is not None:
        sheet = pictures.contact_sheet(pipeline, rows, field=field, columns=columns, tile=tile, seed=seed)
        pictures.save_png(sheet.pixels, png)
        value = {"png": png, "field": sheet.field, "images": sheet.images, "shape": sheet.pixels.shape}
        return Shown(value, (f"{sheet.images} images of '{sheet.field}' in {png}",))
    console = new_console()
    sheet = pictures.contact_sheet(
        pipeline, rows, field=field, columns=columns, tile=_TERMINAL_TILE, max_width=console.width, seed=seed
    )
    value = {"field": sheet.field, "images": sheet.images, "captions": sheet.captions}
    if console.color_system is None:
        return Shown(value, ("This output has no colors. Use --png to write an image.", *sheet.captions))
    return Shown(value, (half_blocks(sheet.pixels), "", *sheet.captions))


def _tokens(pipeline: Pipeline, path: str, field: str | None, rows: int, seed: int | None) -> Shown:
    from ..reports import pictures
    from ..reports.rows import preview

    names = pictures.token_fields(pipeline)
    if (field is not None and field not in names) or not names:
        raise PipelineError(f"show: expected a field of token lists, got {field!r}; there are: {', '.join(names)}.")
    tokenizer, name = pictures.load_tokenizer(path), field or names[0]
    found = preview(pipeline, rows, sample=seed is not None, seed=seed)
    texts = [pictures.decoded_tokens(row[name], tokenizer) for row in found.elements]
    parts = [f"{number}: {text}" for number, text in enumerate(texts)]
    return Shown({"field": name, "texts": texts}, tuple(parts))


def half_blocks(pixels: np.ndarray) -> Text:
    """Renders an image (uint8 ``(H, W, 3)``) as text. Each character shows two pixels, one above the other."""
    if len(pixels) % 2:
        pixels = pixels[:-1]
    result = Text(no_wrap=True, overflow="crop")
    for above, below in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        for (r, g, b), (s, h, c) in zip(above, below, strict=True):
            result.append("\N{UPPER HALF BLOCK}", style=f"rgb({r},{g},{b}) on rgb({s},{h},{c})")
        result.append("\n")
    return result


def explain(url: Url, chain: Chain = "", storage_option: StorageOptions = None) -> Shown:
    """Explain what a chain of verbs reads, in which order, and what it returns."""
    from ..urls import url_without_secrets, without_secrets

    pipeline = opened(url, chain, storage_option)
    lines = without_secrets(pipeline.explain())
    value = {
        "urls": list(map(url_without_secrets, pipeline.urls)),
        "chain": [str(stage) for stage in pipeline.stages],
        "plan": lines.splitlines(),
    }
    return Shown(value, (lines,))


def opened(url: str, chain: str, storage_option: list[str] | None) -> Pipeline:
    """Opens a URL as a pipeline, and applies a chain to it."""
    from ..reports.chain import apply_chain
    from ..reports.inspecting import open_url

    return apply_chain(open_url(url, storage_options_of(storage_option)), chain)


def opened_to_show(url: str, chain: str, storage_option: list[str] | None) -> tuple[Pipeline, dict[str, str]]:
    """Like `opened`, but leaves out columns that cannot become tensors.

    Returns:
        The pipeline, and the reason for each column that was left out, by name.
    """
    pipeline = opened(url, chain, storage_option)
    try:
        _ = pipeline.element
    except SchemaError:
        from ..reports.chain import apply_chain

        bare = pipeline.with_stages(())
        refused = {} if bare.mixture is not None else dict(bare.dataset.refused)
        if not refused or not len(bare.schema):
            raise
        usable = apply_chain(bare.select(*bare.schema), chain)
        with suppress(ParquetryError):  # fails if the chain names a refused column
            _ = usable.element
            return usable, refused
        raise
    return pipeline, {}


def with_refused(shown: Shown, refused: Mapping[str, str]) -> Shown:
    """Adds the columns that were left out, and why, to a result."""
    if not refused:
        return shown
    from ..reports.values import to_json

    value = {**to_json(shown.value), "refused": refused}
    return replace(shown, value=value, parts=(*shown.parts, *(f"not shown: {reason}" for reason in refused.values())))
