"""Commands that show a chain: what it reads, what it returns, how fast: ``explain``, ``head``, ``plot``, ``bench``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ...base.errors import ParquetryError, PipelineError, SchemaError
from .output import Shown, StorageOptions, Url, command, facts, new_console, storage_options_of, table

if TYPE_CHECKING:
    import numpy as np

    from ...pipeline.pipeline import Pipeline
    from ..reports.rows import Preview, PreviewField

Chain = Annotated[
    str, typer.Argument(metavar="CHAIN", help="Verbs as in Python: 'where(field(\"a\") > 3).shuffle(1000).batch(64)'.")
]
Count = Annotated[int, typer.Option("--rows", "-n", min=0, help="The number of rows (of batches, after batch()).")]

_FEW_FIELDS = 8
_TERMINAL_TILE = 64


def register(app: typer.Typer) -> None:
    """Adds the commands to the app."""
    command(
        app,
        "parquetry head data/train -n 3",
        'parquetry head data/train \'select("image", "label")\'',
        "parquetry head data/train -n 10 --seed 7",
    )(head)
    command(
        app,
        "parquetry plot data/train -n 8 --png sheet.png",
        "parquetry plot data/drive 'ngram([\"image\"], length=5)' -n 3",
        "parquetry plot data/text --tokenizer tokenizer.json",
    )(plot)
    command(app, "parquetry explain data/train 'where(field(\"speed\") > 3).shuffle(10000).batch(64)'")(explain)
    command(app, "parquetry bench data/train 'shuffle(10000).resize(\"image\", (224, 224)).batch(64)'")(bench)


def head(
    url: Url,
    chain: Chain = "",
    rows: Count = 5,
    skip: int = 0,
    sample: Annotated[bool, typer.Option("--sample", help="Draw the rows at random.")] = False,
    seed: Annotated[int | None, typer.Option(help="The seed of a random sample; it gives the same rows.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Show the first rows, or a random sample."""
    from ..reports.rows import preview

    pipeline, refused = opened_to_show(url, chain, storage_option)
    drawn = sample or seed is not None
    return with_refused(_previewed(preview(pipeline, rows, first=skip, sample=drawn, seed=seed)), refused)


def _previewed(report: Preview) -> Shown:
    """Shows a row per line, if there are few fields of single values; else a field per line, with rows side by side."""
    from ...pipeline.display.text import as_times, short_text

    def cell(field: PreviewField, value: object) -> str:
        kind = f"{field.dtype} {field.shape} "  # which other columns have
        return short_text(as_times(value, field.unit), 20).removeprefix(kind)

    def dtype(field: PreviewField) -> str:
        return field.dtype if field.unit in (None, field.dtype) else f"{field.dtype} ({field.unit})"

    many = "" if report.length is None else f" of {report.length:,}"
    counted = f"{len(report.elements)}{many} elements"
    if report.fields and len(report.fields) <= _FEW_FIELDS and not any(field.shape for field in report.fields):
        lines = table(*(f"{field.name}\n{dtype(field)}" for field in report.fields))
        for element in report.elements:
            lines.add_row(*(cell(field, element.get(field.name)) for field in report.fields))
        return Shown(report.to_json(), (lines, "", counted))
    columns = table("field", "dtype", "shape", *(f"row {number}" for number in range(len(report.elements))))
    for field in report.fields:
        cells = [cell(field, element.get(field.name)) for element in report.elements]
        columns.add_row(field.name, dtype(field), str(field.shape) if field.shape else "", *cells)
    return Shown(report.to_json(), (columns, "", counted))


def plot(
    url: Url,
    chain: Chain = "",
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

    pipeline, _ = opened_to_show(url, chain, storage_option)
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
        raise PipelineError(f"plot: expected a field of token lists, got {field!r}; there are: {', '.join(names)}.")
    tokenizer, name = pictures.load_tokenizer(path), field or names[0]
    report = preview(pipeline, rows, sample=seed is not None, seed=seed)
    texts = [pictures.decoded_tokens(row[name], tokenizer) for row in report.elements]
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
    from ...base.urls import url_without_secrets, without_secrets

    pipeline = opened(url, chain, storage_option)
    lines = without_secrets(pipeline.explain())
    value = {
        "urls": list(map(url_without_secrets, pipeline.urls)),
        "chain": [str(stage) for stage in pipeline.stages],
        "plan": lines.splitlines(),
    }
    return Shown(value, (lines,))


def bench(
    url: Url,
    chain: Chain = "",
    seconds: Annotated[float, typer.Option(help="Seconds per run; there are three or four runs.")] = 3.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default: one per processor.")] = None,
    storage_option: StorageOptions = None,
) -> Shown:
    """Measure how fast a chain is on this machine, which stage limits it, and what to change."""
    from ...pipeline.explain import bytes_text
    from ..reports.benching import bench as measure

    report = measure(opened(url, chain, storage_option), seconds=seconds, workers=workers)
    runs = table("run", "rows/s", "MiB/s", "processors busy", right=("rows/s", "MiB/s", "processors busy"))
    for run in (report.whole, *report.runs):
        runs.add_row(run.name, f"{run.rows_per_s:,.0f}", f"{run.mib_per_s:,.1f}", f"{run.processors:.1f}")
    parts = table("stage", "time per row", "share", "", right=("time per row", "share"))
    for part in report.parts:
        parts.add_row(part.stage, f"{part.microseconds:,.1f} us", f"{part.share:.0%}", "█" * round(30 * part.share))
    about = {
        "planning": f"{report.planning_s:.2f} s",
        "first element": f"{report.first_s:.2f} s, {bytes_text(report.element_bytes)}",
        "stored": f"{bytes_text(report.stored_row_bytes)} a row",
        "workers": report.workers,
    }
    advice = [f"- {line}" for line in report.advice]
    return Shown(report, (facts(about), "", runs, "", parts, "", f"bound by: {report.bound}", *advice))


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
        refused = dict(bare.dataset.refused) if bare.source.single else {}
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
