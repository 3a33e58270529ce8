"""`rewrite` writes the rows of a dataset in a new order, with new row groups, files and codecs.

Stored values are copied unchanged, except for fields with a new codec, which are decoded and encoded. The target
appears complete or not at all. Memory is bounded: a sort of more than 512 MiB distributes the rows to temporary files,
one per contiguous range of the result.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from ...base.errors import DatasetError, PipelineError, SchemaError
from ...base.memory.arrow_views import from_stream, write_stream
from ...dataset.dataset import LABELS_KEY, StoredDataset
from ...engine.read.fetch import Fetcher
from ...engine.run.row_group_loop import tables_ahead
from ...parquet.nested import take_rows, wide
from ...pipeline.pipeline import Pipeline
from ...plan.plan import Plan
from ...schema.codec import Codec
from ...schema.encoding import encode_rows
from ...schema.field import Unischema, UnischemaField
from ...storage.filesystem import resolve
from ...write.metadata_file import read_metadata, write_metadata
from ...write.writer import DatasetWriter
from .copy_job import check_apart
from .copying import CopyReport, check_selects, patterns_of, places_of, stored_schema, to_stored

_CHUNK_BYTES = 64 << 20
_KEPT_BYTES = 512 << 20
_MOST_FILES = 256
_DECODED_ROWS = 64


def rewrite(
    source: str | os.PathLike[str] | Pipeline,
    target: str | os.PathLike[str],
    fields: str | Sequence[str] | None = None,
    *,
    where: object = None,
    sort_by: str | Sequence[str] = (),
    codecs: Mapping[str, Codec] | None = None,
    row_group_rows: int | None = None,
    row_group_bytes: int | None = None,
    files: int = 1,
    partition_by: str | Sequence[str] | None = None,
    compression: str | None = "auto",
    progress: bool = True,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> CopyReport:
    """Rewrites a dataset in a layout that suits training.

    Row groups have equal sizes, plain columns have dictionaries and statistics, and encoded images are not compressed
    a second time. If you only need a copy, use `copy`, which can resume after an interruption.

    >>> rewrite("raw", "train", sort_by="stamp", row_group_rows=1_000)  # doctest: +SKIP

    Args:
        source: a URL, or a pipeline with only ``select``, ``where``, ``take`` and ``skip``.
        target: a directory that is empty or does not exist.
        fields: names or regexes of the fields to write; ``None`` = all.
        where: writes only rows that match this filter: a ``pyarrow.compute.Expression`` or DNF tuples.
        sort_by: the fields to sort by, most significant first; ``"-name"`` for descending order. The sort is stable.
            Nulls come last. More than 512 MiB are sorted with files in the system's temporary directory (set ``TMPDIR``
            to use another), which needs space for all rows. They are removed at the end, on an error and on Ctrl-C.
        codecs: new codecs for some fields, such as ``{"image": CompressedImageCodec("jpeg", 90)}``.
        row_group_rows, row_group_bytes, files, compression: see `DatasetWriter`.
        partition_by: fields that become directories; ``None`` = the partition fields of the source that are written.
        progress: shows a progress bar.
        source_options, target_options: arguments for fsspec.

    Raises:
        DatasetError: the target already holds a dataset, or the file system refused. No partial dataset is left.
        FieldNotFoundError, SchemaError, PipelineError: the arguments do not fit the source.
    """
    source = getattr(source, "pipeline", source)
    pipeline = source if isinstance(source, Pipeline) else Pipeline(source, storage_options=source_options)
    pipeline = pipeline if where is None else pipeline.where(where)
    pipeline = pipeline if fields is None else pipeline.select(*([fields] if isinstance(fields, str) else fields))
    rows = _Rows(pipeline, codecs or {})
    filesystem, root = resolve(target, storage_options=target_options)
    check_apart(filesystem, root, places_of(rows.dataset), patterns_of(rows.dataset))
    keys = [sort_by] if isinstance(sort_by, str) else list(sort_by)
    order = _sorted(rows, keys) if keys else None
    if partition_by is None:
        partition_by = [name for name in rows.schema.fields if name in rows.dataset.partitions]
    with (
        DatasetWriter(
            target,
            rows.schema,
            row_group_rows=row_group_rows,
            row_group_bytes=row_group_bytes,
            partition_by=partition_by,
            files=files,
            compression=compression,
            storage_options=target_options,
        ) as writer,
        tqdm(total=rows.count, desc="rewriting", unit="row", disable=not progress) as bar,
    ):
        writer.expect_rows(rows.count)
        with closing(rows.as_stored() if order is None else rows.in_order(order)) as tables:
            for table in tables:
                writer.write_stored(table)
                bar.update(table.num_rows)
    labels = {name: names for name, names in rows.dataset.labels.items() if name in rows.schema}
    schema = read_metadata(filesystem, root)
    if labels and schema is not None:
        metadata = {**(schema.metadata or {}), LABELS_KEY: json.dumps(labels).encode()}
        write_metadata(filesystem, root, schema, metadata)
    written = Pipeline(target, storage_options=target_options).dataset
    return CopyReport(rows=rows.count, files=len(written.files), schema=rows.schema, resumed_stripes=0)


class _Rows:
    """The selected rows of a pipeline as stored columns, with the new codecs applied."""

    def __init__(self, pipeline: Pipeline, codecs: Mapping[str, Codec]) -> None:
        check_selects(pipeline, "rewrite")
        plan = pipeline.plan()
        assert isinstance(plan, Plan)  # true for a pipeline over one dataset
        self.dataset: StoredDataset = plan.dataset
        self.rows = plan.selection.rows
        self.count = self.rows.total
        self._fields = list(plan.program.fields)
        names = [field.name for field in self._fields]
        unknown = [name for name in codecs if name not in names]
        if unknown:
            raise PipelineError(f"rewrite: expected codecs for fields of {', '.join(names)}, got '{unknown[0]}'.")
        kept = stored_schema(self.dataset, self._fields)
        self.schema = Unischema(
            kept.name,
            [field.replace(codec=codecs[field.name]) if field.name in codecs else field for field in kept],
        )
        self._coded = [self.schema[name] for name in codecs]
        _check_codable(self._coded)
        self._source_rows = pipeline.select(*codecs).at_epoch(0) if codecs else None
        self._plain = Unischema(kept.name, [field for field in kept if field.name not in codecs])
        self._fetcher = Fetcher(self.dataset, list(self._plain))

    def column(self, name: str) -> pa.ChunkedArray:
        """Reads one column of all rows, in stored order."""
        fetcher = Fetcher(self.dataset, [self.dataset.schema[name]])
        columns = [table.column(0) for table in tables_ahead(fetcher, self.rows, self._row_groups())]
        return pa.chunked_array([chunk for part in columns for chunk in part.chunks], type=self.dataset.types[name])

    def as_stored(self) -> Generator[pa.Table, None, None]:
        """Yields all rows in stored order, one row group at a time."""
        with closing(self._tables()) as tables:
            for row_group, table in zip(self._row_groups(), tables, strict=True):
                first = int(self.rows.before[row_group])
                yield self._finished(table, np.arange(first, first + table.num_rows))

    def in_order(self, order: np.ndarray) -> Generator[pa.Table, None, None]:
        """Yields all rows in a new order. ``order`` (int64) lists the row number for each position of the result.

        Each row group is read once. Rows that do not fit in memory are distributed to temporary files, one per range of
        the result.
        """
        with closing(self._tables()) as tables:
            held, held_bytes, held_rows = [], 0, 0
            for table in tables:
                held.append(table)
                held_bytes, held_rows = held_bytes + table.nbytes, held_rows + table.num_rows
                if held_bytes > _KEPT_BYTES:
                    break
            total_bytes = max(1, held_bytes * self.count // max(1, held_rows))
            size = max(1, self.count * max(_CHUNK_BYTES, total_bytes // _MOST_FILES) // total_bytes)
            if held_rows < self.count:
                with closing(_reordered(chain(_emptied(held), tables), order, size)) as reordered:
                    for table, numbers in reordered:
                        yield self._finished(table, numbers)
            elif held:
                whole = pa.concat_tables(map(_widened, held)).combine_chunks()
                held.clear()
                for start in range(0, len(order), size):
                    numbers = order[start : start + size]
                    yield self._finished(take_rows(whole, pa.array(numbers)), numbers)

    def _row_groups(self) -> list[int]:
        numbers: list[int] = np.flatnonzero(self.rows.counts > 0).tolist()
        return numbers

    def _tables(self) -> Generator[pa.Table, None, None]:
        """Yields the columns to copy, for the selected rows of each row group."""
        with closing(tables_ahead(self._fetcher, self.rows, self._row_groups())) as tables:
            for table in tables:
                yield to_stored(self._plain, table)

    def _finished(self, table: pa.Table, numbers: np.ndarray) -> pa.Table:
        """Adds the columns with new codecs, and returns all columns in schema order."""
        for field in self._coded:
            parts = [
                self._encoded(field, numbers[start : start + _DECODED_ROWS])
                for start in range(0, len(numbers), _DECODED_ROWS)
            ]
            table = table.append_column(field.name, pa.chunked_array(parts, field.storage.arrow_type(field)))
        return table.select(list(self.schema.fields))

    def _encoded(self, field: UnischemaField, numbers: np.ndarray) -> pa.Array:
        assert self._source_rows is not None  # set if there are codecs
        rows = [{field.name: row[field.name]} for row in self._source_rows[numbers]]
        return encode_rows(Unischema("encoded", [field]), rows)[field.name]


def _check_codable(fields: Sequence[UnischemaField]) -> None:
    for field in fields:
        if not (isinstance(field.dtype, np.dtype) and field.dtype.kind in "biuf"):
            raise SchemaError(f"rewrite: expected numbers for another codec, field '{field.name}' has {field.dtype}.")


def _emptied(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yields each table and drops it from the list."""
    while tables:
        yield tables.pop(0)


def _reordered(
    tables: Iterable[pa.Table], order: np.ndarray, size: int
) -> Generator[tuple[pa.Table, np.ndarray], None, None]:
    """Yields rows in a new order with their numbers, about ``size`` rows at a time, through temporary files.

    Each file holds the rows of one range of the result, block by block in the order of reading, and in final order
    within a block. If rows differ in size, a file may be much larger than the others. Its rows are distributed again.
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    stretches = np.arange(size, len(order) + size, size)
    firsts: list[int] = []
    first = 0
    with tempfile.TemporaryDirectory(prefix="parquetry-") as directory:
        paths = [os.path.join(directory, f"{number}.arrows") for number in range(len(stretches))]
        for block in _blocks(tables):
            places = place[first : first + block.num_rows]
            sorting = np.argsort(places)
            block = take_rows(block, pa.array(sorting))
            ends = np.searchsorted(places[sorting], stretches).tolist()
            for path, (begin, end) in zip(paths, pairwise([0, *ends]), strict=True):
                if begin < end:
                    _append(path, block.slice(begin, end - begin))
            firsts.append(first)
            first += block.num_rows
        for path, begin in zip(paths, range(0, len(order), size), strict=True):
            numbers = order[begin : begin + size]
            stored = np.argsort(np.searchsorted(firsts, numbers, side="right"), kind="stable")
            back = np.empty(len(numbers), np.int64)
            back[stored] = np.arange(len(numbers))
            pieces = min(-(-os.path.getsize(path) // _KEPT_BYTES), _MOST_FILES)
            if pieces > 1 and len(numbers) > 1:
                with closing(_reordered(_read(path), back, -(-len(numbers) // pieces))) as reordered:
                    for table, places in reordered:
                        yield table, numbers[stored[places]]
            else:
                yield take_rows(pa.concat_tables(_read(path)), pa.array(back)), numbers


def _blocks(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Joins tables into large blocks, so that each file receives few large pieces."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(_widened(table))
        if sum(each.nbytes for each in held) >= _CHUNK_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _widened(table: pa.Table) -> pa.Table:
    """Casts to types with 64-bit offsets, so that tables of any size can be joined and sliced."""
    return table.cast(pa.schema([field.with_type(wide(field.type)) for field in table.schema]))


def _append(path: str, rows: pa.Table) -> None:
    try:
        with open(path, "ab") as file:
            write_stream(file, rows)
    except OSError as error:
        raise DatasetError(
            f"rewrite: temporary file {path}: cannot be written: {error}. Sorting needs space for all rows in "
            f"'{tempfile.gettempdir()}'. To use another directory, set the environment variable TMPDIR."
        ) from error


def _read(path: str) -> Iterator[pa.Table]:
    """Yields the tables written to a file, then removes the file."""
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        while file.tell() < end:
            yield from_stream(file)
    os.remove(path)


def _sorted(rows: _Rows, keys: Sequence[str]) -> np.ndarray:
    """Returns the row number for each position of the sorted result."""
    names = [key.removeprefix("-") for key in keys]
    for name in names:
        field = rows.dataset.schema[name]
        if field.shape or field.storage.coded:
            raise SchemaError(f"rewrite: expected single plain values to sort by, got field '{name}' of {field.shape}.")
    numbers = [str(number) for number in range(len(keys))]  # Arrow takes some names, such as ".a", for paths
    table = pa.table([_sortable(rows.column(name)) for name in names], names=numbers)
    directions = ["descending" if key.startswith("-") else "ascending" for key in keys]
    sort_keys = list(zip(numbers, directions, strict=True))
    order: np.ndarray = pc.sort_indices(table, sort_keys=sort_keys).to_numpy().astype(np.int64)
    return order


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Casts the column to a type that Arrow can sort."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
