"""Row-group statistics of a column as arrays over all row groups, and the size in bytes of columns in a row group.

They come from the partition directories, the row-group index, or the footers. All three give the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow, as_numpy
from ...dataset.dataset import StoredDataset
from ...parquet.chunk_statistics import UNKNOWN, convert_bounds, footer_statistics
from ...parquet.native_decode import facts_of
from .possible import believed
from .pruning import ColumnStatistics

_MOST_AT_ONCE, _CHUNKS_AT_ONCE = 256, 1 << 12


def column_statistics(dataset: StoredDataset, name: str) -> ColumnStatistics:
    """Returns the statistics of a column in each row group, in the column's type in the dataset, without reading it.

    Statistics count as unknown if they are missing, if they cannot be true, or if Arrow orders values of the type
    differently.
    """
    return believed(stated_statistics(dataset, name))


def stated_statistics(dataset: StoredDataset, name: str) -> ColumnStatistics:
    """As `column_statistics`, including statistics that cannot be true."""
    if name in dataset.partitions:
        return _of_partition(dataset, name)
    statistics = dataset.index.statistics(name) if dataset.index is not None else None
    kind = dataset.types.get(name)
    if statistics is None:
        paths = [dataset.stored_name(file, name) for file in range(len(dataset.files))]
        statistics = footer_statistics(dataset.footers_of(paths), paths, kind)
    null_count = statistics.null_count
    if "." in name and _may_be_dictionary_of_text(kind):
        null_count = _unknown_where(null_count == 0, null_count)  # Arrow does not count the nulls of enclosing structs
    if name in dataset.columns and dataset.columns[name].is_image_struct:
        null_count = _unknown_where(null_count > 0, null_count)  # some may be images in other files, which is an error
    return ColumnStatistics(
        minimum=convert_bounds(statistics.minimum, kind),
        maximum=convert_bounds(statistics.maximum, kind),
        null_count=null_count,
        num_rows=dataset.row_groups.rows,
        exact=statistics.exact,
    )


def _unknown_where(chosen: np.ndarray, null_count: np.ndarray) -> np.ndarray:
    return np.where(chosen, UNKNOWN, null_count)


def _may_be_dictionary_of_text(kind: pa.DataType | None) -> bool:
    """Whether a file may hold the column as a dictionary, which Parquet does only for text and bytes."""
    if kind is None or pa.types.is_dictionary(kind):
        return True
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def column_bytes(dataset: StoredDataset, row_group: int, names: Sequence[str]) -> int:
    """Returns the stored (compressed) bytes of the given columns of one row group."""
    return _bytes(dataset, row_group, names, "stored")


def decoded_bytes(dataset: StoredDataset, row_group: int, names: Sequence[str]) -> int:
    """Returns the decompressed bytes of columns of one row group: about their size in memory before decoding."""
    return _bytes(dataset, row_group, names, "decoded")


def _bytes(dataset: StoredDataset, row_group: int, names: Sequence[str], kind: Literal["stored", "decoded"]) -> int:
    names = [name for name in dataset.read_names(names) if name not in dataset.partitions]
    if not names:
        return 0
    indexed = dataset.index.bytes_of(kind, names) if dataset.index is not None else None
    if indexed is not None:
        return int(indexed[row_group])
    file = int(dataset.row_groups.file[row_group])
    columns = [stored for name in names if (stored := dataset.stored_name(file, name)) is not None]
    total = _footer_bytes(dataset, row_group, tuple(columns))[kind == "decoded"]
    beside = any(name in dataset.columns and dataset.columns[name].in_files for name in names)
    return total + (int(dataset.listed_bytes[row_group]) if beside else 0)


def _footer_bytes(dataset: StoredDataset, row_group: int, columns: tuple[str, ...]) -> tuple[int, int]:
    """Returns the stored and the decompressed bytes of columns of a row group, by their names in its file.

    Those of its neighbors in the file are looked up along with it: by itself, each would take longer than reading it.
    """
    at_once = max(1, min(_MOST_AT_ONCE, _CHUNKS_AT_ONCE // max(len(columns), 1)))
    portion = row_group // at_once
    files, key = dataset.row_groups.file, (int(dataset.row_groups.file[row_group]), portion, columns)
    sizes = dataset.chunk_bytes.get(key)
    if sizes is None:
        neighbors = np.flatnonzero(files[portion * at_once : (portion + 1) * at_once] == key[0]) + portion * at_once
        described = dataset.group_footers(neighbors.tolist(), frozenset(columns))
        facts = facts_of(described, described[0].columns.field_numbers(columns))
        totals = (facts[name].sum(axis=1).tolist() for name in ("stored_bytes", "unpacked_bytes"))
        sizes = dict(zip(neighbors.tolist(), zip(*totals, strict=True), strict=True))
        dataset.chunk_bytes.keep(key, sizes)
    return sizes[row_group]


def _of_partition(dataset: StoredDataset, name: str) -> ColumnStatistics:
    values = dataset.partitions[name].take(as_arrow(dataset.row_groups.file))
    rows = dataset.row_groups.rows
    return ColumnStatistics(
        minimum=values,
        maximum=values,
        null_count=np.where(as_numpy(values.is_null()), rows, 0),
        num_rows=rows,
        exact=True,
    )
