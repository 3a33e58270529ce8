"""Columns that are stored although the directories of their files name them, too: ``k=1/part.parquet`` with a ``k``.

The directory counts, as in `pyarrow.dataset`, DuckDB, Polars and Spark. The functions here say which columns that
concerns, and compare directories with the bounds in footers or in the row-group index.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..memory.arrow_views import as_arrow, as_numpy
from ..process.forks import pc
from ..schema.field import Unischema
from .chunk_statistics import ChunkStatistics, convert_bounds, footer_statistics
from .file_schemas import FileSchema
from .files import DataFile
from .index import RowGroupIndex
from .partitions import is_written_as_text

_MOST_FILES = 1000  # whose footers are compared for a warning
_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()


class Footers(Protocol):
    """What is asked about a dataset here."""

    @property
    def files(self) -> Sequence[DataFile]:
        """All files, in path order."""

    @property
    def footers(self) -> Sequence[pq.FileMetaData]:
        """The footer of each file."""

    @property
    def index(self) -> RowGroupIndex | None:
        """The row-group index, if there is one."""


def stored_keys(
    files: Iterable[DataFile], declared: Unischema | None, schemas: Sequence[FileSchema]
) -> dict[str, bool]:
    """The names of directories that some files also store, each with whether the directories replace the column.

    They replace numbers, text, times and decimals. No directory can name a list, a struct, or encoded bytes.
    """
    keys = {key for file in files for key, _ in file.partition}
    stored = {key for key in keys if any(key in schema.names for schema in schemas)}
    return {key: _is_replaced(key, declared, schemas) for key in sorted(stored)}


def _is_replaced(key: str, declared: Unischema | None, schemas: Sequence[FileSchema]) -> bool:
    if declared is not None and key in declared:
        field = declared[key]
        return not field.shape and not field.storage.coded and is_written_as_text(field.dtype)
    kinds = [column.type for schema in schemas for column in schema.arrow if column.name == key]
    return bool(kinds) and all(map(_names_values, kinds))


def _names_values(kind: pa.DataType) -> bool:
    """Whether the names of directories can stand for values of a type."""
    if pa.types.is_dictionary(kind):
        return _names_values(kind.value_type)
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_date)
    return (
        pa.types.is_null(kind) or pa.types.is_timestamp(kind) or _is_text(kind) or any(check(kind) for check in checks)
    )


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def agree(dataset: Footers, key: str, values: pa.Array, files: Collection[int]) -> bool:
    """Whether the bounds prove that a stored column has the value of the directory in every row of some files."""
    file, same, _ = _compared(dataset, key, values, sorted(files))
    return set(file.tolist()) >= set(files) and bool(same.all())


def warn_of_differences(dataset: Footers, root: str, key: str, values: pa.Array, schemas: Sequence[FileSchema]) -> None:
    """Warns once if a stored column has other values than the directories, as its type or its bounds prove."""
    if (root, key) in _warned:
        return
    kinds = {column.type: schema for schema in schemas for column in schema.arrow if column.name == key}
    other = next(
        (
            schema
            for kind, schema in kinds.items()
            if not pa.types.is_null(kind) and _is_text(kind) != _is_text(values.type)
        ),
        None,
    )
    count = len(dataset.files)
    numbers = np.unique(np.linspace(0, count - 1, min(count, _MOST_FILES)).astype(np.int64)).tolist()
    file, differs = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    needs_footers = dataset.index is not None and dataset.index.statistics(key) is None  # too much for a warning
    if other is None and not needs_footers:
        file, _, differs = _compared(dataset, key, values, numbers)
    if other is not None or differs.any():
        example = other.first if other is not None else int(file[int(np.argmax(differs))])
        _warned.add((root, key))
        _LOGGER.warning(
            "dataset '%s': field '%s' is stored in the files and named by their directories, and the values differ, "
            "such as in %s. The directories count. 'parquetry verify' names every such file; write these without the "
            "column, or rename one of both.",
            root,
            key,
            dataset.files[example].shown_path,
        )


def _compared(
    dataset: Footers, key: str, values: pa.Array, files: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the file of each row group of some files that has rows, whether all of its values are the directory's,
    and whether some are not. Both are false if the bounds prove neither.
    """
    known: ChunkStatistics | None = None
    if dataset.index is not None:
        file, rows, known = dataset.index.file, dataset.index.rows, dataset.index.statistics(key)
    if known is None:
        footers = [dataset.footers[number] for number in files]
        file = np.repeat(np.asarray(files, np.int64), [footer.num_row_groups for footer in footers])
        rows = np.array([f.row_group(n).num_rows for f in footers for n in range(f.num_row_groups)], np.int64)
        known = footer_statistics(footers, [key] * len(footers), values.type)
    chosen = np.isin(file, np.asarray(files, np.int64)) & (rows > 0)
    value = values.take(as_arrow(file))
    is_null = as_numpy(value.is_null())
    same = is_null & (known.null_count == rows)
    differs = is_null & (known.null_count >= 0) & (known.null_count < rows)
    low, high = convert_bounds(known.minimum, values.type), convert_bounds(known.maximum, values.type)
    if low is not None and high is not None:
        no_nulls, some_nulls = known.null_count == 0, known.null_count > 0
        try:
            same |= no_nulls & _true(pc.and_(pc.equal(low, value), pc.equal(high, value)))
            outside = pc.and_(pc.less_equal(low, high), pc.or_(pc.less(value, low), pc.greater(value, high)))
            differs |= _true(outside) | (_true(pc.less(low, high)) & known.exact)
        except pa.ArrowNotImplementedError:  # float16 in some releases
            return file[chosen], np.zeros(chosen.sum(), np.bool_), np.zeros(chosen.sum(), np.bool_)
        differs |= ~is_null & as_numpy(low.is_valid()) & some_nulls
    return file[chosen], same[chosen], differs[chosen]


def _true(answers: pa.Array) -> np.ndarray:
    return as_numpy(answers.fill_null(False))
