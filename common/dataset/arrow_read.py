"""`read_group` reads columns of one row group with Arrow and checks them against their checksums and the footer.

It takes a row group and a function that chooses the columns, and returns an Arrow table with the columns as stored.
Every column has as many rows as the footer says. Anything wrong with a file raises a single error that names the file,
row group and column. `read_slices` returns the same rows in slices, for row groups that are too large to read whole.
If `read_group` is told how much memory it may use, it first checks whether the row group fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError
from ..base.memory.lru_cache import LRUCache
from ..base.process.dataclass import dataclass
from ..base.process.forks import cached_property
from ..base.urls import clean_cause
from ..parquet.checksums import WRONG_CHECKSUMS, require_checksums
from ..parquet.footers import CLEANED, REMOVED, remedy, why
from ..parquet.group_footers import GroupFooter
from ..parquet.int96 import bytes_footer, decode_int96
from ..parquet.native_decode import read_by_core
from ..parquet.nested import as_stored
from ..parquet.value_bounds import chunks_of, expanded_bytes, most_bytes, slice_rows, values_in_pages
from ..storage.chunk_ranges import ChunkFile
from ..storage.retries import is_local, retry_if_damaged
from ..storage.store_answers import StoreError
from ..storage.stores import without_subtrees
from .row_groups import StoredFiles, describe_row_group, most_bytes_of_many
from .store_reads import RowGroupRun, download_chunks, fetch_chunks

DAMAGE = (pa.ArrowException, OSError, ValueError, IndexError, MemoryError, OverflowError)
"""The exceptions that pyarrow raises for damaged files."""
_SLICE_BUFFER_BYTES = 1 << 18
_BITS = 8  # per byte
_SLICE_ROWS = 1 << 16
_MOST_GROWTH = 1000  # of large columns, from the file to memory
_MOST_FITTING = 1 << 16  # of row groups and columns that were read last
_LEVEL_ENCODINGS = frozenset({"RLE", "BIT_PACKED"})
_RARE_ENCODINGS = frozenset({"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"})


class TooLargeError(Exception):
    """A row group takes more memory than there is room for, so it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSize:
    """How much is read at once.

    Attributes:
        slice_bytes: about how much a slice of a row group takes; ``None`` for all rows at once.
        room_bytes: the memory for all rows; ``None`` = no limit.
        run: the row groups that are fetched from a store in the same requests; ``None`` = each by itself. Slices are
            always fetched by themselves.
    """

    slice_bytes: int | None = None
    room_bytes: int | None = None
    run: RowGroupRun | None = None


WHOLE = ReadSize()
_DAMAGED = "The file is damaged: write it again."


def read_parts(
    dataset: StoredFiles,
    row_group: int,
    choose: Callable[[pa.Schema], Sequence[str]],
    size: ReadSize,
    *,
    names: frozenset[str] | None = None,
    pre_buffer: bool,
    advice: str,
) -> Iterable[tuple[int, pa.Table]]:
    """Reads some columns of one row group by `read_slices` or `read_group`. Yields tables and their numbers of rows."""
    if size.slice_bytes is not None:
        return read_slices(dataset, row_group, choose, names=names, slice_bytes=size.slice_bytes, advice=advice)
    table = read_group(
        dataset,
        row_group,
        choose,
        names=names,
        pre_buffer=pre_buffer,
        advice=advice,
        room_bytes=size.room_bytes,
        run=size.run,
    )
    return [(int(dataset.row_groups.rows[row_group]), table)]


def read_group(
    dataset: StoredFiles,
    row_group: int,
    choose: Callable[[pa.Schema], Sequence[str]],
    *,
    names: frozenset[str] | None = None,
    pre_buffer: bool,
    advice: str,
    room_bytes: int | None = None,
    run: RowGroupRun | None = None,
    **options: Any,
) -> pa.Table:
    """Reads some columns of one row group.

    Args:
        choose: returns the column names to read, given the file's `footer_schema`. Struct members have dotted names.
        names: the columns of the file that `choose` is asked about, at least; ``None`` for all. See `group_footer`.
        pre_buffer: whether Arrow fetches all columns of a local file at once.
        advice: tells the user what to do about an unreadable file; ends the error message.
        room_bytes: the memory for the columns; ``None`` = no limit.
        run: as in `ReadSize`.
        options: passed to ``pyarrow.parquet.ParquetFile``.

    Raises:
        DatasetError: the file cannot be read or is damaged. The message names the file, row group and column.
        TooLargeError: there is no room for the columns.
    """
    options["pre_buffer"] = pre_buffer and is_local(dataset.filesystem)
    place = describe_row_group(dataset, row_group)

    def read() -> pa.Table:
        with _opened_group(dataset, row_group, choose, advice, options, names=names, run=run) as opened:
            if room_bytes is not None and _size_of(opened, opened.columns, room_bytes) > room_bytes:
                raise TooLargeError
            table = _read_table(dataset, opened, place)
            rows = int(dataset.row_groups.rows[row_group])
            check_counts(table, rows, place, _advised(_DAMAGED, opened.described))
            return _as_described(opened, table, place)

    return retry_if_damaged(dataset.filesystem, read, place)


def _read_table(dataset: StoredFiles, opened: _OpenGroup, place: str) -> pa.Table:
    """Reads the columns of a row group, with the compiled core where it can, and with Arrow otherwise.

    What the core reads is never much larger than in the file.
    """
    columns = read_by_core(
        opened.source,
        opened.described,
        opened.columns,
        path=opened.path,
        key=opened.key,
        checked=dataset.verify != "never",
    )
    others = [name for name in opened.columns if name not in columns]
    if others:
        _check_size(dataset, opened, others, place)
    if not columns:
        return opened.reader.read_row_group(opened.group, columns=others, use_threads=False)
    schema = opened.file_columns.arrow
    fields = [schema.field(name) for name in columns]
    arrays = list(columns.values())
    if others:
        table = opened.reader.read_row_group(opened.group, columns=others, use_threads=False)
        fields, arrays = [*fields, *table.schema], [*arrays, *table.columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=schema.metadata))


def read_slices(
    dataset: StoredFiles,
    row_group: int,
    choose: Callable[[pa.Schema], Sequence[str]],
    *,
    names: frozenset[str] | None = None,
    slice_bytes: int,
    advice: str,
    **options: Any,
) -> Iterator[tuple[int, pa.Table]]:
    """Reads some columns of one row group page by page, and yields slices and their numbers of rows.

    Slices take about ``slice_bytes``. Column chunks from a store go through a temporary file. Whatever is open is
    closed when the iterator ends or is closed. See `read_group` for the arguments.

    Raises:
        DatasetError: as for `read_group`.
        NoRoomError: there is no room for a temporary file.
    """
    rows, end = int(dataset.row_groups.rows[row_group]), 0
    local = is_local(dataset.filesystem)
    options |= {"pre_buffer": False, "buffer_size": _SLICE_BUFFER_BYTES if local else 0}
    with _opened_group(dataset, row_group, choose, advice, options, names=names, on_disk=not local) as opened:
        reader, group, wanted = opened.reader, opened.group, opened.columns
        if not wanted:
            yield from ((min(_SLICE_ROWS, rows - first), pa.table({})) for first in range(0, rows, _SLICE_ROWS))
            return
        place = describe_row_group(dataset, row_group)
        _check_size(dataset, opened, wanted, place)
        leaves = opened.file_columns.numbers(wanted)
        count = slice_rows(opened.source, reader, group, leaves, slice_bytes=slice_bytes)
        most, size = most_bytes_of_many(dataset.max_value_bytes), 0
        for batch in reader.iter_batches(count, row_groups=[group], columns=wanted, use_threads=False):
            end += batch.num_rows
            size += sum(map(expanded_bytes, batch.columns))
            if size > most and size > (most := _most_grown(opened, wanted, most)):
                raise _grown(place, most)
            yield batch.num_rows, _as_described(opened, pa.Table.from_batches([batch]), place, end - batch.num_rows)
        if end != rows:  # Arrow stops at the end of the shortest column
            counts = {name: _count(reader, group, name) for name in wanted}
            name = next((name for name in wanted if counts[name] != rows), wanted[0])
            raise _short(place, name, rows, min(end, counts[name]), _advised(_DAMAGED, opened.described))


def _as_described(opened: _OpenGroup, table: pa.Table, place: str, first_row: int = 0) -> pa.Table:
    """Returns columns that Arrow read with the types of `_OpenGroup.stored`."""
    table = as_stored(table)
    return decode_int96(table, opened.file_columns.stored, place, first_row) if opened.file_columns.has_int96 else table


def count_rows(dataset: StoredFiles, row_group: int, *, advice: str) -> int:
    """Reads every column of a row group with Arrow and compares all checksums. Returns how many rows there are.

    Arrow reads no more rows than the footer says, so the headers of the pages are counted, too.

    Raises:
        DatasetError: as for `read_group`, except that a wrong number of rows is not an error.
    """
    options = {"pre_buffer": False, "page_checksum_verification": True}
    place = describe_row_group(dataset, row_group)
    with _opened_group(dataset, row_group, lambda schema: schema.names, advice, options) as opened:
        _check_size(dataset, opened, opened.columns, place)
        rows = int(opened.reader.read_row_group(opened.group, use_threads=False).num_rows)
        counts = values_in_pages(opened.source, opened.footer, opened.group)
        chunks = chunks_of(opened.footer, opened.group, range(len(counts)))
        pages = list(zip(counts, chunks, strict=True))
        flat = [count for count, chunk in pages if not chunk.column.max_repetition_level]
        if max(flat, default=rows) > rows:
            return max(flat)
        for count, chunk in pages:  # of lists, whose rows the headers do not count
            if count > chunk.metadata.num_values:
                raise DatasetError(
                    f"{place}: expected {chunk.metadata.num_values} values in the pages of column "
                    f"'{chunk.column.path}', as the footer says, got {count}. {advice}"
                )
        return rows


class _OpenGroup:
    """A row group of an open file. Arrow's reader is made when it is first needed.

    Attributes:
        source: the file.
        described: what its footer says about the row group.
        group: the number of the row group in that footer.
        path: where the file is on a local disk; ``None`` if it is not.
        key: names the version of the file, and the row group.
        file_columns: the columns that the footer describes. Arrow's reader gives INT96 timestamps as bytes.
        columns: the columns to read.
    """

    def __init__(
        self,
        source: pa.NativeFile,
        described: GroupFooter,
        *,
        path: str | None,
        key: str,
        options: dict[str, Any],
    ) -> None:
        self.source = source
        self.described = described
        self.group = described.group
        self.path = path
        self.key = key
        self.columns: Sequence[str] = ()
        self.file_columns = described.columns
        self._options = options

    @property
    def footer(self) -> pq.FileMetaData:
        """A footer that describes the row group."""
        return self.described.footer

    @cached_property
    def reader(self) -> pq.ParquetFile:
        """Arrow's reader. It need not be closed, because it does not own the file."""
        footer = bytes_footer(self.footer, self.key) if self.file_columns.has_int96 else self.footer
        return pq.ParquetFile(self.source, metadata=footer, **self._options)


@contextmanager
def _opened_group(
    dataset: StoredFiles,
    row_group: int,
    choose: Callable[[pa.Schema], Sequence[str]],
    advice: str,
    options: dict[str, Any],
    *,
    names: frozenset[str] | None = None,
    on_disk: bool = False,
    run: RowGroupRun | None = None,
) -> Iterator[_OpenGroup]:
    """Yields an open row group.

    Translates errors of the block.

    Args:
        names: see `read_group`.
        on_disk: whether column chunks from a store are kept in a temporary file instead of in memory.
        run: as in `ReadSize`.
    """
    file = int(dataset.row_groups.file[row_group])
    place = describe_row_group(dataset, row_group)
    described = dataset.group_footer(row_group, names)
    advice = _advised(advice, described)
    options = {"page_checksum_verification": dataset.verify != "never", **options}
    columns: Sequence[str] = ()
    stored: dict[str, Any] = {}
    try:
        with ExitStack() as stack:
            chunks = None if is_local(dataset.filesystem) else ChunkFile(dataset.files[file].size_bytes)
            source = stack.enter_context(dataset.open(file)) if chunks is None else pa.PythonFile(chunks, mode="r")
            opened = _OpenGroup(
                source,
                described,
                path=without_subtrees(dataset.filesystem, dataset.files[file].path)[1] if chunks is None else None,
                key=f"{dataset.files[file].version.key}\0{dataset.row_groups.group[row_group]}",
                options=options,
            )
            columns = opened.columns = opened.file_columns.with_whole_extensions(choose(opened.file_columns.stored))
            if chunks is not None:
                held = (
                    download_chunks(dataset, row_group, columns, names)
                    if on_disk
                    else fetch_chunks(dataset, row_group, columns, names, run)
                )
                chunks.hold(*held)
            if dataset.verify == "always":
                require_checksums(source, opened.footer, opened.group, opened.file_columns.numbers(columns), place)
            try:
                yield opened
            except (ParquetryError, TooLargeError):
                raise
            except DAMAGE:
                columns = [_damaged(opened.reader, opened.group, columns)]
                stored = _storage(opened, columns)
                raise
    except (ParquetryError, TooLargeError):
        raise
    except StoreError as error:
        raise DatasetError(f"{place}: cannot be read, {error}. {error.advice}") from clean_cause(error)
    except FileNotFoundError as error:
        cleaned = "" if dataset.table is None or dataset.table.is_manifest else CLEANED
        raise DatasetError(f"{place}: the file {REMOVED}{cleaned}.") from clean_cause(error)
    except DAMAGE as error:
        expected = f"readable columns {list(columns)}" if columns else "a readable file"
        if "CRC" in str(error):
            advice = f"{advice} {WRONG_CHECKSUMS}"
        raise DatasetError(
            f"{place}: expected {expected}, got: {why(error)}. {remedy(error, advice, **stored)}"
        ) from clean_cause(error)


def _check_size(dataset: StoredFiles, opened: _OpenGroup, columns: Sequence[str], place: str) -> None:
    """Raises `DatasetError` if the columns are far larger than in their file. Remembers those that are not.

    Raises:
        ValueError: a page header is malformed.
    """
    most = most_bytes_of_many(dataset.max_value_bytes)
    key = opened.key, tuple(columns), most
    if _fitting.get(key):
        return
    size = _size_of(opened, columns, most, by_pages=True)
    if size > most and _size_of(opened, columns, grown := _most_grown(opened, columns, most), by_pages=True) > grown:
        raise _grown(place, grown)
    _fitting.keep(key, True)


_fitting: LRUCache[tuple[str, tuple[str, ...], int], bool] = LRUCache(_MOST_FITTING)


def _most_grown(opened: _OpenGroup, columns: Sequence[str], most: int) -> int:
    """Returns how many bytes the columns may take in memory: ``most``, or many times their size in the file."""
    chunks = chunks_of(opened.footer, opened.group, opened.file_columns.numbers(columns))
    return max(most, _MOST_GROWTH * sum(int(chunk.metadata.total_compressed_size) for chunk in chunks))


def _grown(place: str, most: int) -> DatasetError:
    return DatasetError(
        f"{place}: expected columns of at most {most} bytes in memory, got more, which is over {_MOST_GROWTH} times "
        "their size in the file. If they are right, pass a larger max_value_bytes."
    )


def _size_of(opened: _OpenGroup, columns: Sequence[str], enough: int, *, by_pages: bool = False) -> int:
    """Returns the bytes of columns in memory, or more; see `most_bytes`."""
    rows = opened.described.rows
    schema = opened.file_columns.arrow
    total, others = 0, []
    for name in columns:
        place = schema.get_field_index(name)
        kind = schema.field(place).type if place >= 0 else None
        if kind is not None and pa.types.is_primitive(kind):
            total += rows * kind.bit_width
        else:
            others.append(name)
    total //= _BITS
    if others:
        leaves = opened.file_columns.numbers(others)
        rest = enough - total
        total += most_bytes(opened.source, opened.reader, opened.group, leaves, enough=rest, by_pages=by_pages)
    return int(total)


def check_counts(table: pa.Table, rows: int, place: str, advice: str = _DAMAGED) -> None:
    """Checks that each column of a row group has as many rows as the footer says. Arrow does not check this.

    Raises:
        DatasetError: a column has more or fewer values.
    """
    with suppress(pa.ArrowInvalid):
        table.validate()  # all columns have one length; much faster than looking at each
        if table.num_rows == rows:
            return
    for name, column in zip(table.column_names, table.columns, strict=True):
        if len(column) != rows:
            raise _short(place, name, rows, len(column), advice)


def _short(place: str, column: str, rows: int, found: int, advice: str) -> DatasetError:
    return DatasetError(
        f"{place}: expected {rows} rows of column '{column}', as the footer says, got {found}. {advice}"
    )


def _advised(advice: str, described: GroupFooter) -> str:
    """Returns what to do about a row group that cannot be read, also if the row-group index is wrong about it."""
    if not described.index:
        return advice
    return f"{advice} If it is whole, write_index() makes a new {described.index}, which says where its columns are."


def _damaged(reader: pq.ParquetFile, group: int, columns: Sequence[str]) -> str:
    """Names the first column that cannot be read by itself, or all columns if each of them can."""
    for name in columns:
        try:
            _count(reader, group, name)
        except DAMAGE:
            return name
    return ", ".join(columns)


def _storage(opened: _OpenGroup, columns: Sequence[str]) -> dict[str, Any]:
    """How some columns of a row group are stored, for `remedy`."""
    row_group = opened.footer.row_group(opened.group)
    chunks = [row_group.column(leaf) for leaf in opened.file_columns.numbers(columns)]
    encodings = sorted({name for chunk in chunks for name in chunk.encodings} - _LEVEL_ENCODINGS)
    codecs = sorted({chunk.compression for chunk in chunks} - {"UNCOMPRESSED"})
    parts = [f"encoding {', '.join(encodings)}"] * bool(encodings) + [f"compression {', '.join(codecs)}"] * bool(codecs)
    return {
        "stored": f"column '{', '.join(columns)}' ({'; '.join(parts)})" if parts else "it",
        "is_rare": bool(_RARE_ENCODINGS.intersection(encodings)),
    }


def _count(reader: pq.ParquetFile, group: int, column: str) -> int:
    """Reads a column of a row group in slices. Returns how many rows it has."""
    slices = reader.iter_batches(_SLICE_ROWS, row_groups=[group], columns=[column], use_threads=False)
    return sum(batch.num_rows for batch in slices)
