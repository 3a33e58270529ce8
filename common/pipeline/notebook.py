"""`notebook_html`: renders a pipeline for a notebook: the chain, its fields, the first rows, and the plan.

The result is self-contained HTML. `notebook_html` shows what it can and never raises, because a notebook would then
show the error instead of the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any, Protocol, TypeVar

from ..base.errors import DecodeError
from ..base.text_table import table_of_html
from ..schema.element import OutputField
from ..schema.field import Unischema
from ..stages.base import Decision
from ..stages.nested import Nested, with_lists_to_show
from .display.images import data_url, fitted, images_of, is_image, laid_out
from .display.text import as_times, leaves, note, short_text
from .step_iterator import Iterated, executor_of

_ROWS = 3
_BATCH_ROWS = 8
_STEPS = 12
_TILE = 64


class ShownPipeline(Iterated, Protocol):
    """The part of a `Pipeline` that a notebook shows."""

    @property
    def schema(self) -> Unischema: ...

    def head(self, count: int) -> list[Any]: ...

    def explain(self) -> str: ...


Shown = TypeVar("Shown", bound=ShownPipeline)
Found = TypeVar("Found")


def works_on_values(pipeline: ShownPipeline) -> bool:
    """Whether verbs work on stored values, or the fields are not those of one dataset in this process."""
    working = (stage.decides is Decision.FIELDS and not stage.keeps_values for stage in pipeline.stages)
    return not pipeline.source.single or any(working)


def with_lists_as_stored(pipeline: Shown) -> Shown:
    """Lets plain nested lists have any lengths, unless a verb works on the values of fields.

    Such verbs expect arrays.
    """
    if works_on_values(pipeline):
        return pipeline
    lists = [field for field in pipeline.schema if field.is_list and len(field.shape) > 1 and None in field.shape]
    if not lists:
        return pipeline
    shown: Shown = pipeline.with_stages((Nested(tuple(re.escape(field.name) for field in lists)), *pipeline.stages))
    return shown


def showing_nulls(pipeline: Shown, read: Callable[[Shown], Found]) -> Found:
    """Calls ``read`` on a pipeline; if lists hold nulls, calls it again on a pipeline that shows them as ``None``.

    After verbs that work on values, and in a sidecar, such lists remain an error, as in iteration.
    """
    try:
        return read(pipeline)
    except DecodeError:
        if works_on_values(pipeline) or executor_of(pipeline) == "sidecar":
            raise
        lists = tuple(re.escape(field.name) for field in pipeline.schema if field.is_list)
        if not lists:
            raise
        return read(pipeline.with_stages(with_lists_to_show(pipeline.stages, lists)))


def notebook_html(shown: str, pipeline: ShownPipeline | None) -> str:
    """Renders an object with verbs as HTML.

    Args:
        shown: the object's ``repr``.
        pipeline: the object's pipeline; ``None`` if only a running graph knows it.
    """
    parts = [note(shown)]
    if pipeline is not None:
        for part in (_fields, first_rows_html, _plan):
            try:
                parts.append(part(pipeline))
            except Exception as error:  # from the dataset, a library, or a user function
                parts.append(note(f"{type(error).__name__}: {error}"))
                break
    return f"<div>{''.join(parts)}</div>"


def _fields(pipeline: ShownPipeline) -> str:
    return pipeline.element._repr_html_()


def first_rows_html(pipeline: ShownPipeline) -> str:
    """The first rows, or the first batch, as a table: images as thumbnails, windows of images as strips."""
    if not pipeline.plan().numbered:
        return note("Its rows cannot be read by number. Iterate it to see some.")
    element = pipeline.element
    elements = showing_nulls(pipeline, lambda shown: shown.head(1 if element.batched else _ROWS))
    rows = [leaves(element, each) for each in elements]
    if not rows:
        return note("It is empty.")
    titles = ["first batch"] if element.batched else [f"row {number}" for number in range(len(rows))]
    lines = [
        [escape(output.name), *(_cell(output, row[output.name], batched=element.batched) for row in rows)]
        for output in element.outputs
    ]
    return table_of_html(("field", *titles), lines)


def _cell(output: OutputField, value: Any, *, batched: bool) -> str:
    """A thumbnail, a strip for a window, or a row of thumbnails for a batch; other values as text."""
    if not is_image(output) or value is None:
        return escape(short_text(as_times(value, output.time), 24))
    values = [value[row] for row in range(min(len(value), _BATCH_ROWS))] if batched else [value]
    strips = [images_of(each, output)[:_STEPS] for each in values]
    lines = strips if output.window is not None else [[image for strip in strips for image in strip]]
    pixels = laid_out([[fitted(image, _TILE) for image in line] for line in lines], _TILE)
    return f'<img alt="{escape(output.name)}" src="{data_url(pixels)}" style="max-width:none">'


def _plan(pipeline: ShownPipeline) -> str:
    lines = pipeline.explain().splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith("An epoch reads")), 0)
    return f"<details><summary>plan</summary>{note(chr(10).join(lines[begin:]))}</details>"
