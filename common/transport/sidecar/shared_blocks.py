"""Blocks in shared memory. The reader writes each block once, and every worker maps it without a copy."""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import struct
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow, from_stream, write_stream
from ...base.platform.memory_file import memory_file
from ...base.process.dataclass import dataclass
from ...dataset.video.frames import EncodedFrames
from ...engine.read.file_cells import FileCells, Part, RowGroupColumns, WholeFiles
from ...engine.read.large_blocks import BlockColumns, LargeColumns
from ...engine.read.stored_cells import StoredCells
from ...parquet.nested import one_array
from ...plan.block_reads import BlockRows
from ...plan.selection.rows import RowNumbers
from ...storage.temporary import NoRoomError, telling_of_room, temporary_directory, temporary_file

_LOGGER = logging.getLogger(__name__)
_TAIL = struct.Struct("<QQ")
_ALIGNMENT = 64
_PIECE_BYTES = 16 << 20
_NOTHING = np.zeros(0, np.int64)


class ExportedBlock:
    """A block in shared memory. Thread-safe.

    The memory is freed once the block is closed and all holds are released. If the iteration ends while a job is on its
    way to a worker, the job must not lose the descriptor that it is about to send.

    Args:
        number: identifies the block between the reader and its workers.
        rows: the planned rows. Their values stay with the reader.
        source: the pipeline of a mix to which the block belongs.
        descriptor: the shared memory; owned by this object.
    """

    def __init__(self, *, number: int, rows: BlockRows, source: int, descriptor: int) -> None:
        self.number = number
        self.rows = rows
        self.source = source
        self.descriptor = descriptor
        self._users = 1
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether the owner has closed the block."""
        return self._closed

    def hold(self) -> bool:
        """Keeps the memory until `release`. Returns ``False`` if the block is already closed."""
        with self._lock:
            if self._closed:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Undoes one `hold`."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self.descriptor)

    def close(self) -> None:
        """Releases the owner's hold. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.release()


def export_block(
    number: int, rows: BlockRows, parts: BlockColumns, places: Sequence[str], source: int
) -> ExportedBlock:
    """Writes a block to shared memory: the columns of each row group, then an index of where they are.

    A large block goes to a temporary file instead, if there is room.
    """
    if isinstance(parts, LargeColumns):
        try:
            with telling_of_room():
                directory = temporary_directory(sum(each.size for each in parts.maps))
                return _exported(temporary_file(directory), number, rows, parts, places, source)
        except NoRoomError as error:
            _LOGGER.warning("A block larger than memory_limit goes through shared memory: %s", error)
    return _exported(memory_file("block"), number, rows, parts, places, source)


def _exported(
    descriptor: int, number: int, rows: BlockRows, parts: BlockColumns, places: Sequence[str], source: int
) -> ExportedBlock:
    large = isinstance(parts, LargeColumns)
    try:
        with os.fdopen(os.dup(descriptor), "wb", buffering=0) as raw, pa.PythonFile(raw, mode="w") as sink:
            if isinstance(parts, LargeColumns):
                where = [_write_columns(sink, parts.parts)]
            else:
                where = [_write_columns(sink, [(column,) for column in part.columns]) for part in parts]
            meta = pickle.dumps((where, list(places), list(rows.rows), list(rows.row_groups), large), protocol=5)
            sink.write(meta)
            sink.write(_TAIL.pack(len(meta), 0))
        return ExportedBlock(number=number, rows=rows, source=source, descriptor=descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def open_exported(descriptor: int) -> tuple[BlockColumns, list[str], list[RowNumbers], list[int]]:
    """Maps a block. Takes ownership of the descriptor.

    Returns:
        The columns, the places, the rows, and the row groups.
    """
    try:
        size = os.fstat(descriptor).st_size
        memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    length, _ = _TAIL.unpack(memory[size - _TAIL.size :])
    where, places, rows, row_groups, large = pickle.loads(memory[size - _TAIL.size - length : size - _TAIL.size])
    buffer = pa.py_buffer(memory)
    parts = [_columns_at(buffer, part) for part in where]
    if large:
        return LargeColumns(tuple((column,) for column in parts[0].columns), (buffer,)), places, rows, row_groups
    return parts, places, rows, row_groups


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the columns of one row group are stored.

    Attributes:
        table: the byte range (begin, end) of an Arrow IPC stream with all Arrow columns.
        cells: for each column of `StoredCells`: its number, byte range (begin, end), starts and ends.
        frames: the columns of frames, with their numbers.
    """

    table: tuple[int, int]
    cells: tuple[tuple[int, int, int, np.ndarray, np.ndarray], ...]
    frames: tuple[tuple[int, EncodedFrames], ...]
    count: int


def _write_columns(sink: pa.NativeFile, columns: Sequence[Sequence[Part]]) -> _Columns:
    """Writes columns, each given in parts. Only a column of values in files has several parts."""
    columns = [[as_arrow(part) if isinstance(part, np.ndarray) else part for part in parts] for parts in columns]
    arrays = {str(number): part for number, (part, *_) in enumerate(columns) if isinstance(part, pa.Array)}
    begin = sink.tell()
    table = pa.table(arrays)
    write_stream(sink, table)
    end = sink.tell()
    cells, frames = [], []
    for number, parts in enumerate(columns):
        if isinstance(parts[0], pa.Array):
            continue
        if isinstance(parts[0], EncodedFrames):
            frames.append((number, parts[0]))
            continue
        first, bounds = sink.tell(), [(_NOTHING, _NOTHING)]
        for values in _loaded(parts):
            moved = sink.tell() - first
            bounds.append((values.starts + moved, values.ends + moved))
            sink.write(pa.py_buffer(values.data))
        starts, ends = (np.concatenate(each) for each in zip(*bounds, strict=True))
        cells.append((number, first, sink.tell(), starts, ends))
    sink.write(bytes(-sink.tell() % _ALIGNMENT))
    return _Columns((begin, end), tuple(cells), tuple(frames), len(columns))


def _loaded(parts: Sequence[Part]) -> Iterator[StoredCells]:
    """Yields values in order. Those in files are read about `_PIECE_BYTES` at a time."""
    for part in parts:
        if isinstance(part, FileCells):
            piece = np.cumsum(part.ends - part.starts) // _PIECE_BYTES
            cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(part)]
            for first, last in pairwise(cuts):
                yield part.take(slice(first, last)).loaded()
        elif isinstance(part, WholeFiles):
            yield part.loaded()
        elif isinstance(part, StoredCells):
            yield part


def _columns_at(buffer: pa.Buffer, where: _Columns) -> RowGroupColumns:
    begin, end = where.table
    table = from_stream(buffer.slice(begin, end - begin))
    columns: list[Part | None] = [None] * where.count
    for number, frames in where.frames:
        columns[number] = frames
    for name, column in zip(table.column_names, table.columns, strict=True):
        columns[int(name)] = one_array(column)
    for number, first, last, starts, ends in where.cells:
        columns[number] = StoredCells(starts, ends, np.frombuffer(buffer, np.uint8, last - first, first))
    return RowGroupColumns(tuple(column for column in columns if column is not None))
