"""Reads the statistics of one column from Parquet footers: bounds and null counts of each row group.

It takes the footers in file order and returns arrays with one entry per row group. Anything that a footer leaves out,
or that does not mean the same in every file, is reported as unknown and never guessed.
"""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.process.dataclass import dataclass
from ..base.process.forks import pc
from ..schema.infer import flatten_fields
from .conforming import keeps_order
from .footer_check import has_no_known_bounds
from .int96 import footer_schema
from .writers import Trusted, trusted_bounds

UNKNOWN, IMPOSSIBLE = -1, -2
"""Null counts of a row group whose footer has none, and of one whose statistics cannot be true."""
_NARROW = frozenset({"INT_8", "INT_16", "UINT_8", "UINT_16"})
_EXACT_KINDS = (bool, int, datetime.date, datetime.datetime, decimal.Decimal)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkStatistics:
    """The statistics of one flat column, as arrays of shape ``(row groups,)``.

    Attributes:
        minimum, maximum: bounds in the column's own type, null where unknown; ``None`` if all are unknown.
        null_count: int64, `UNKNOWN` or `IMPOSSIBLE` where there is none.
        exact: whether a minimum that equals the maximum is a value the column really holds; see
        `plan.selection.pruning`.
    """

    minimum: pa.Array | None
    maximum: pa.Array | None
    null_count: np.ndarray
    exact: bool


def footer_statistics(
    footers: Iterable[pq.FileMetaData], paths: Sequence[str | None], wanted: pa.DataType | None
) -> ChunkStatistics:
    """The statistics of one column in all row groups of the given files, in the column's type in the dataset.

    Args:
        footers: of the files. They need only have the columns whose names begin like the one in ``paths``.
        paths: the column's dotted name in each file; ``None`` where a file lacks the column. If two columns of a file
            have this name, nothing is known about either.
        wanted: the column's type in the dataset; ``None`` for an unreadable column, which has no bounds.
    """
    of_group: list[pa.DataType | None] = []
    minimum: list[Any] = []
    maximum: list[Any] = []
    null_count: list[int] = []
    for footer, path in zip(footers, paths, strict=True):
        named = [kind for name, kind in bound_types(footer) if name == path]
        kinds = [named[0] if len(named) == 1 else None] * footer.num_row_groups
        number = flat_columns(footer).get(path or "") if len(named) == 1 else None
        low, high, nulls = raw_statistics([footer], [number], kinds)
        of_group += kinds
        minimum += low
        maximum += high
        null_count += nulls
    least, most = bounds_in(minimum, of_group, wanted), bounds_in(maximum, of_group, wanted)
    known = least is not None and most is not None
    return ChunkStatistics(
        minimum=least if known else None,
        maximum=most if known else None,
        null_count=np.asarray(null_count, dtype=np.int64),
        exact=bool(is_exact(minimum)),
    )


def bounds_in(values: list[Any], types: Sequence[pa.DataType | None], wanted: pa.DataType | None) -> pa.Array | None:
    """Converts the bounds of row groups to one type. ``types`` is the column's stored type in each row group."""
    bounds = None
    kinds = dict.fromkeys(types)
    for kind in kinds:
        same = values if len(kinds) == 1 else [v if t == kind else None for v, t in zip(values, types, strict=True)]
        part = convert_bounds(to_bounds(same, kind), wanted)
        if part is not None:
            bounds = part if bounds is None else pc.coalesce(bounds, part)
    return bounds


def convert_bounds(bounds: pa.Array | None, kind: pa.DataType | None) -> pa.Array | None:
    """Casts bounds to the type that values are read in; ``None`` if they might not be valid bounds in that type."""
    if bounds is None or kind is None:
        return None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if bounds.type == kind:
        return bounds
    try:
        return bounds.cast(kind) if keeps_order(bounds.type, kind) else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def raw_statistics(
    footers: Iterable[pq.FileMetaData], columns: Iterable[int | None], types: Sequence[pa.DataType | None]
) -> tuple[list[Any], list[Any], list[int]]:
    """Minimum, maximum (``None`` = unknown) and null count (negative = unknown) of each row group, as Python values.

    Args:
        columns: the number of the leaf column in each file; ``None`` where a file lacks the column.
        types: the column's stored type in each row group.
    """
    minimum: list[Any] = []
    maximum: list[Any] = []
    nulls: list[int] = []
    for footer, column in zip(footers, columns, strict=True):
        trusted = "none" if column is None else trusted_bounds(footer, footer.schema.column(column))
        for number in range(footer.num_row_groups):
            low, high, null_count = _chunk_statistics(footer, number, column, trusted)
            minimum.append(low)
            maximum.append(high)
            nulls.append(null_count)
    for kind in dict.fromkeys(types):
        if kind is None or not pa.types.is_decimal(kind):
            continue
        places = [place for place, other in enumerate(types) if other == kind]
        if _fit(kind, [bounds[place] for place in places for bounds in (minimum, maximum)]):
            continue
        for place in places:
            if not _fit(kind, [minimum[place], maximum[place]]):
                minimum[place], maximum[place], nulls[place] = None, None, IMPOSSIBLE
    return minimum, maximum, nulls


def _fit(kind: pa.DataType, bounds: list[Any]) -> bool:
    """Whether decimals have no more digits than their type, which Parquet stores in a wider one."""
    try:
        pa.array(bounds, kind)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return False
    return True


def bound_types(footer: pq.FileMetaData) -> list[tuple[str, pa.DataType]]:
    """The type of each column's bounds, by dotted path."""
    return [
        (path, column.type.value_type if pa.types.is_dictionary(column.type) else column.type)
        for path, column in flatten_fields(footer_schema(footer))
    ]


def to_bounds(values: list[Any], arrow: pa.DataType | None) -> pa.Array | None:
    """Bounds as an array; ``None`` if there are none, or if one does not fit the type."""
    if arrow is None or all(value is None for value in values):
        return None
    try:
        return pa.array(values, arrow)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return None


def is_exact(minimum: list[Any]) -> bool | None:
    """Whether the bounds are values that occur in the column; ``None`` if there are no bounds."""
    sample = next((value for value in minimum if value is not None), None)
    return None if sample is None else isinstance(sample, _EXACT_KINDS)


def belongs(leaf: str, names: Collection[str]) -> bool:
    """Whether a Parquet leaf column belongs to one of the named fields. Pass a set if there are many."""
    if leaf in names or any(leaf[:place] in names for place, letter in enumerate(leaf) if letter == "."):
        return True
    top, found, part = leaf.rpartition(".key_value.")
    return bool(found) and part in ("key", "value") and f"{top}.{part}" in names


def leaf_columns(footer: pq.FileMetaData) -> dict[str, int]:
    """The number of each leaf column by path. Paths that occur twice (``x.y``, and ``y`` in ``x``) are left out."""
    schema = footer.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    times = Counter(paths)
    return {path: number for number, path in enumerate(paths) if times[path] == 1}


def flat_columns(footer: pq.FileMetaData) -> dict[str, int]:
    """The `leaf_columns` that are not repeated: with one value per row, their bounds are bounds of the rows."""
    schema = footer.schema
    return {
        path: number for path, number in leaf_columns(footer).items() if schema.column(number).max_repetition_level == 0
    }


def _chunk_statistics(
    footer: pq.FileMetaData, group: int, column: int | None, trusted: Trusted
) -> tuple[Any, Any, int]:
    if column is None:
        return None, None, UNKNOWN
    chunk, described = footer.row_group(group).column(column), footer.schema.column(column)
    if has_no_known_bounds(described):
        return None, None, UNKNOWN
    try:
        statistics = chunk.statistics
        if statistics is None:
            return None, None, UNKNOWN
        null_count = statistics.null_count if statistics.has_null_count else UNKNOWN
        if statistics.has_null_count and (null_count < 0 or (null_count and not described.max_definition_level)):
            return None, None, IMPOSSIBLE
        if not statistics.has_min_max or trusted == "none":
            return None, None, null_count
        if trusted == "equal" and statistics.min_raw != statistics.max_raw:
            return None, None, null_count
        if statistics.logical_type.type in ("TIMESTAMP", "TIME"):  # raw counts: Python's times have no nanoseconds
            return statistics.min_raw, statistics.max_raw, null_count
        bounds, stored = (statistics.min, statistics.max), (statistics.min_raw, statistics.max_raw)
        if described.converted_type in _NARROW and bounds != stored:  # Arrow has cut them to the width of the type
            return None, None, IMPOSSIBLE
        return *bounds, null_count
    except (pa.ArrowException, ValueError, OverflowError, UnicodeDecodeError):
        return None, None, UNKNOWN  # pyarrow cannot represent the type: unknown, so it prunes nothing
