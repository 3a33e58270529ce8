"""Formats values for people: as one short line, or as self-contained HTML (no scripts, all text escaped).

`leaves` maps the output names of a pipeline to the values in a row or batch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from datetime import timedelta
from functools import reduce
from html import escape
from typing import Any

import numpy as np

from ...schema.element import Element, Form
from ...schema.ragged import NestedArray, RaggedArray

_LETTERS = 40
_NUMBERS = 8


def leaves(element: Element, value: Any) -> dict[str, Any]:
    """Maps output names to the leaf values of a row or batch, which may nest dicts and tuples."""
    if element.form is not None:
        return dict(_in_form(element, element.form, value))
    return {output.name: reduce(operator.getitem, output.path, value) for output in element.outputs}


def _in_form(element: Element, form: Form, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(form, int):
        yield element.outputs[form].name, value
        return
    kind, *parts = form
    pairs = zip(parts, value, strict=True) if kind == "tuple" else [(part, value[key]) for key, part in parts]
    for part, each in pairs:
        yield from _in_form(element, part, each)


def short_text(value: object, letters: int = _LETTERS) -> str:
    """Formats a value as one short line: numbers and strings in full, arrays by dtype, shape and first values.

    >>> short_text(np.zeros((2, 3), np.float32))
    'float32 (2, 3) 0 0 0 0 0 0'
    """
    if value is None or value is np.ma.masked:
        return "null"
    if isinstance(value, bytes):
        text = repr(value[:letters])
        return f"{len(value):,} bytes {text[: letters - 12]}..." if len(value) > letters else text
    if isinstance(value, RaggedArray):
        return f"{value.dtype} ragged, {len(value)} values"
    if isinstance(value, NestedArray):
        text = str(value.tolist())
        return text if len(text) <= 2 * letters else f"{text[: 2 * letters - 3]}..."
    if isinstance(value, list) and any(isinstance(each, list) for each in value):
        text = _list_text(value)
        return text if len(text) <= 2 * letters else f"{text[: 2 * letters - 3]}..."
    if isinstance(value, list) and any(each is None for each in value):
        value = np.array(value, object)
    if isinstance(value, list | np.ndarray) and np.ndim(value) > 0:
        array = np.ma.asarray(value) if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
        flat = array.reshape(-1)
        kind = "" if array.dtype.kind in "OUS" else f"{array.dtype} "
        shown = " ".join(_scalar_text(each) for each in flat[:_NUMBERS])
        text = f"{kind}{tuple(array.shape)} {shown}".rstrip()
        return text[: 2 * letters - 3] + "..." if len(text) > 2 * letters or flat.size > _NUMBERS else text
    text = " ".join(_scalar_text(value).split())
    return text if len(text) <= 2 * letters else f"{text[: 2 * letters - 3]}..."


def time_text(value: float, unit: str) -> str:
    """Formats a count of a time unit, given as a numpy dtype, as a time or a duration.

    >>> time_text(1_767_225_600, "datetime64[s]"), time_text(90, "timedelta64[m]")
    ('2026-01-01 00:00:00', '1:30:00')
    """
    time = np.array(int(value), np.int64).view(unit)
    if isinstance(duration := time.item(), timedelta):
        return str(duration)
    text = str(time).replace("T", " ")
    return text.rstrip("0").removesuffix(".") if "." in text else text


def duration_text(value: float, unit: str) -> str:
    """Formats a difference between times that count a unit, given as their numpy dtype.

    >>> duration_text(90, "datetime64[m]")
    '1:30:00'
    """
    return time_text(round(value), f"timedelta64{unit[unit.index('[') :]}")


def as_times(value: Any, unit: str | None) -> Any:
    """Returns int64 numbers that count a unit of time as numpy's times, and any other value as it is.

    >>> as_times(np.int64(90), "datetime64[s]")
    np.datetime64('1970-01-01T00:01:30')
    """
    counts = unit is not None and isinstance(value, np.integer | np.ndarray) and value.dtype == np.int64
    return value.view(unit) if counts else value


def _list_text(value: object) -> str:
    return f"[{', '.join(map(_list_text, value))}]" if isinstance(value, list) else _scalar_text(value)


def _scalar_text(value: object) -> str:
    if value is None or value is np.ma.masked:
        return "null"
    if isinstance(value, np.ndarray | list | NestedArray | RaggedArray):
        return short_text(value, _LETTERS // 2)
    if isinstance(value, float | np.floating):
        return f"{float(value) + 0.0:.5g}"  # -0 is 0
    if isinstance(value, np.datetime64 | np.timedelta64) and not np.isnat(value):
        return time_text(int(value.astype(np.int64)), str(value.dtype))
    return "".join(letter if letter.isprintable() or letter.isspace() else repr(letter)[1:-1] for letter in str(value))


def note(text: str) -> str:
    """Returns one or more lines of small print as HTML."""
    style = "margin:.3em 0;font-size:12px;line-height:1.35;white-space:pre-wrap;overflow-wrap:anywhere"
    return f'<pre style="{style}">{escape(text)}</pre>'
