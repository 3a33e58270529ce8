"""Columns that are stored although the directories of their files name them, too: ``k=1/part.parquet`` with a ``k``.

The directory counts, as in `pyarrow.dataset`, DuckDB, Polars and Spark. The functions here say which columns that
concerns, and compare directories with the bounds in footers or in the row-group index.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.memory.arrow_views import as_arrow, as_numpy, is_bytes, is_text
from ..base.process.forks import pc
from ..parquet.chunk_statistics import ChunkStatistics, convert_bounds, footer_statistics
from ..schema.field import Unischema
from ..storage.files import DataFile
from .file_schemas import FileSchema
from .index import RowGroupIndex

_MOST_FILES = 1000  # whose footers are compared for a warning
_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()


class Footers(Protocol):
    """What is asked about a dataset here."""

    @property
    def files(self) -> Sequence[DataFile]:
        """All files, in path order."""

    def footers_of(self, paths: Sequence[str | None], files: Sequence[int] | None = None) -> Iterator[pq.FileMetaData]:
        """Yields the footers of some files with the statistics of a column."""

    @property
    def has_footers(self) -> bool:
        """Whether the footers of all files were read."""

    @property
    def index(self) -> RowGroupIndex | None:
        """The row-group index, if there is one."""


def stored_keys(
    files: Iterable[DataFile], declared: Unischema | None, schemas: Sequence[FileSchema]
) -> dict[str, bool]:
    """Returns the names of directories that some files also store, each with whether it replaces the column.

    They replace numbers, text, bytes, dates, timestamps and decimals. No directory can name lists, structs or encoded
    values.
    """
    keys = {key for file in files for key, _ in file.partition}
    stored = {key for key in keys if any(key in schema.names for schema in schemas)}
    return {key: _is_replaced(key, declared, schemas) for key in sorted(stored)}


def _is_replaced(key: str, declared: Unischema | None, schemas: Sequence[FileSchema]) -> bool:
    if declared is not None and key in declared and (declared[key].shape or declared[key].storage.coded):
        return False
    kinds = _kinds(key, schemas)
    return bool(kinds) and all(map(_names_values, kinds))


def _kinds(key: str, schemas: Sequence[FileSchema]) -> dict[pa.DataType, int]:
    """The types of a stored column, each with the number of a file that has it."""
    kinds: dict[pa.DataType, int] = {}
    for schema in schemas:
        for column in schema.arrow:
            if column.name == key:
                kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
                kinds.setdefault(kind, schema.first)
    return kinds


def _names_values(kind: pa.DataType) -> bool:
    """Whether the names of directories can stand for values of a type."""
    return (
        is_text(kind)
        or (is_bytes(kind) and not pa.types.is_fixed_size_binary(kind))
        or any(
            check(kind)
            for check in (
                pa.types.is_null,
                pa.types.is_integer,
                pa.types.is_floating,
                pa.types.is_boolean,
                pa.types.is_decimal,
                pa.types.is_date,
                pa.types.is_timestamp,
            )
        )
    )


def agree(dataset: Footers, key: str, values: pa.Array, files: Collection[int]) -> bool:
    """Whether the bounds prove that a stored column has the value of the directory in every row of some files."""
    file, same, _ = _compared(dataset, key, values, sorted(files))
    return set(file.tolist()) >= set(files) and bool(same.all())


def warn_of_differences(dataset: Footers, root: str, key: str, values: pa.Array, schemas: Sequence[FileSchema]) -> None:
    """Warns once if a stored column has other values than the directories, as its type or its bounds prove.

    It reads nothing: if neither the footers were read nor an index has the bounds, it warns of types only.
    """
    if (root, key) in _warned:
        return
    example = _unlike_in_type(dataset, key, values, schemas)
    if example is None and _has_bounds(dataset, key):
        count = len(dataset.files)
        numbers = np.unique(np.linspace(0, count - 1, min(count, _MOST_FILES)).astype(np.int64)).tolist()
        file, _, differs = _compared(dataset, key, values, numbers)
        example = int(file[int(np.argmax(differs))]) if differs.any() else None
    if example is not None:
        _warned.add((root, key))
        _LOGGER.warning(
            "dataset '%s': field '%s' is stored in the files and named by their directories, and the values differ, "
            "such as in %s. The directories count. 'parquetry verify' names every such file; write these without the "
            "column, or rename one of both.",
            root,
            key,
            dataset.files[example].shown_path,
        )


def _has_bounds(dataset: Footers, key: str) -> bool:
    return dataset.has_footers or (dataset.index is not None and dataset.index.statistics(key) is not None)


def _unlike_in_type(dataset: Footers, key: str, values: pa.Array, schemas: Sequence[FileSchema]) -> int | None:
    """The number of a file that stores text where directories count as numbers, or the reverse, and other values."""
    for kind, file in _kinds(key, schemas).items():
        if pa.types.is_null(kind) or is_text(kind) == is_text(values.type) or not values[file].is_valid:
            continue
        try:
            value = values.slice(file, 1).cast(pa.string()).cast(kind)[0]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return file
        if _has_bounds(dataset, key) and _compared(dataset, key, pa.repeat(value, len(values)), [file])[2].any():
            return file
    return None


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
        footers = list(dataset.footers_of([key] * len(files), files))
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
