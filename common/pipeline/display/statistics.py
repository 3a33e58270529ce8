"""`statistics_table`: the values of each field in a few words. Takes `Statistics` as a dict, as it is kept in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...base.text_table import TextTable
from .text import duration_text, short_text, time_text

_COMMON = 3


def statistics_table(statistics: Mapping[str, Any]) -> TextTable:
    """Returns a table with a line per field."""
    fields: Sequence[Mapping[str, Any]] = statistics["fields"]
    lines = [(field["name"], field.get("unit") or field["dtype"], _nulls(field), _values(field)) for field in fields]
    return TextTable(("field", "dtype", "nulls", "values"), lines, right=("nulls",))


def counted_text(statistics: Mapping[str, Any]) -> str:
    """Says how many rows were counted."""
    rows, total = statistics["rows"], statistics["total"]
    if statistics["exact"]:
        return f"all {rows:,} rows"
    return f"a sample of {rows:,}{'' if total is None else f' of {total:,}'} rows"


def normalize_lines(statistics: Mapping[str, Any]) -> list[str]:
    """Returns the ``normalize()`` call that follows from the statistics of each field of 8-bit images."""
    lines = []
    for field in statistics["fields"]:
        if field["channels"] and field["dtype"] == "uint8":
            means, deviations = ([value / 255 for value in values] for values in zip(*field["channels"], strict=True))
            lines.append(f'normalize("{field["name"]}", mean=({_numbers(means)}), std=({_numbers(deviations)}))')
    return lines


def _nulls(field: Mapping[str, Any]) -> str:
    inside = field.get("nulls_inside", 0)
    return f"{field['nulls']:,}" + (f" + {inside:,} in lists" if inside else "")


def _values(field: Mapping[str, Any]) -> str:
    """Says in a few words which values a field has."""
    unit, lengths, said = field.get("unit"), field["lengths"], []
    if field["least"] is not None:
        said.append(f"{_number(field['least'], unit)} ... {_number(field['most'], unit)}")
        if field["channels"]:
            means, deviations = zip(*field["channels"], strict=True)
            said.append(f"mean ({_numbers(means)}), deviation ({_numbers(deviations)}) of its channels")
        else:
            said.append(f"mean {_number(field['mean'], unit)}, deviation {_spread(field['deviation'], unit)}")
    if field["quantiles"]:
        said.append(f"median {_number(field['quantiles'][4], unit)}")
    if field["nans"]:
        said.append(f"{field['nans']:,} NaN")
    ranges = [", ".join(said)] if said else []
    common = [(value, times) for value, times in field["common"][:_COMMON] if times > 1]
    if field["distinct"] is not None and common:
        shown = ", ".join(f"{_value(value, unit)} ({times:,})" for value, times in common)
        more = ", ..." if field["distinct"] > len(common) else ""
        ranges.append(f"{field['distinct']:,} distinct: {shown}{more}")
    elif field["distinct"] is not None and not said:
        ranges.append(f"{field['distinct']:,} distinct")
    if lengths is not None:
        least, mean, most = lengths
        ranges.append(f"length {least:,}" if least == most else f"length {least:,} ... {most:,}, mean {mean:,.1f}")
    return "; ".join(ranges)


def _value(value: object, unit: str | None) -> str:
    if unit is not None and isinstance(value, int) and not isinstance(value, bool):
        return time_text(value, unit)
    return short_text(value, 20)


def _number(value: float | None, unit: str | None) -> str:
    if value is None or unit is None:
        return "" if value is None else f"{value:.5g}"
    return time_text(value, unit)


def _spread(value: float | None, unit: str | None) -> str:
    if value is None or unit is None:
        return _number(value, None)
    return duration_text(value, unit)


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
