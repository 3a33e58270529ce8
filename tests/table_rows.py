"""Rows of tables to compare: as sorted tuples of plain values; and a small table to write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from parquetry.common import Pipeline


def rows_of(pipeline: Pipeline, *names: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a pipeline, sorted; nulls first."""
    return sorted_rows(tuple(plain(row[name]) for name in names) for row in pipeline)


def rows_in(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Returns the rows of an Arrow table, sorted; nulls first."""
    return sorted_rows(tuple(row[name] for name in names) for row in table.to_pylist())


def sorted_rows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sorts rows; nulls come first."""
    return sorted(rows, key=lambda row: [(value is not None, value if value is not None else 0) for value in row])


def numbers(first: int, stop: int) -> pa.Table:
    """Returns a table of ``id`` and ``name``."""
    names = pa.array([f"n{i}" for i in range(first, stop)], pa.string())
    return pa.table({"id": pa.array(range(first, stop), pa.int64()), "name": names})


def plain(value: Any) -> Any:
    """Returns a value of Python for one of numpy."""
    return value.tolist() if hasattr(value, "tolist") else value
