"""`FileCells`: large values that stay in their file until a batch needs them.

`FileCells` holds the offsets of values in an open local file. Arrays that share one layout are read directly into their
places in a batch, which saves the copy through a block (`FileValues`). Other values are read one by one for their
decoder (`FileData`). Pages are compared with their checksums when one of their values is first read (`UncheckedPages`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...base.errors import DatasetError, access_failed
from ...base.memory.arena import SCRATCH
from ...base.memory.arrow_views import is_number
from ...base.platform.files import is_cached, read_ahead
from ...base.process.dataclass import dataclass
from ...dataset.video.frames import EncodedFrames
from ...parquet.native_decode import OrderedNumbers
from ...parquet.pages import FileBytes
from ...schema.codec import Codec
from ...schema.codecs import NdarrayCodec, TensorCodec
from ...schema.dtypes import delivered_dtype, is_string_like
from ...schema.field import UnischemaField
from ...schema.npy import npy_header
from ...storage.file_versions import FileVersion
from .block_layout import StackedColumns
from .open_file import MOST_GAP_BYTES, OpenFile, read_values
from .stored_cells import StoredCells, read_bytes
from .unchecked_pages import UncheckedPages

_ADVICE_BYTES = 128 << 10
_MOST_AHEAD_BYTES = 1 << 30
_HEADER_BYTES = 256  # enough for the header of any .npy file that numpy writes for numbers


@dataclass(frozen=True, slots=True, eq=False)
class _Ranges:
    """Values as byte ranges; ``starts`` and ``ends`` are the offsets of each value, int64."""

    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 16 * len(self.starts)


@dataclass(frozen=True, slots=True, eq=False)
class FileCells(_Ranges):
    """Values of a column as byte ranges of a file: the offsets of each value's first byte and after its last."""

    file: OpenFile
    pages: UncheckedPages | None

    @property
    def data(self) -> FileData:
        """The content of the file, read by slices. Checks the pages of all values first, and raises as `loaded`."""
        if self.pages is not None:
            self.pages.check(self.starts)
        return FileData(self.file)

    def take(self, rows: np.ndarray | slice) -> FileCells:
        """Returns the values of the given rows."""
        return FileCells(self.starts[rows], self.ends[rows], self.file, self.pages)

    def read(self, starts: np.ndarray, places: list[memoryview]) -> None:
        """Fills each of ``places`` from the file offset in ``starts``, which is inside a value. Raises as `loaded`."""
        if self.pages is None:
            read_values(self.file, starts, places)
        else:
            self.pages.read(starts, places)

    def expect(self) -> None:
        """Asks the kernel to read the first values ahead, up to `_MOST_AHEAD_BYTES`; they will be needed soon."""
        if not len(self):
            return
        descriptor, ahead = self.file.descriptor, 0
        far = np.flatnonzero(self.starts[1:] - self.ends[:-1] > MOST_GAP_BYTES)
        for first, last in zip([0, *(far + 1).tolist()], [*far.tolist(), len(self) - 1], strict=True):
            begin, end = int(self.starts[first]), int(self.ends[last])
            if ahead > _MOST_AHEAD_BYTES:
                return
            if is_cached(descriptor, begin) and is_cached(descriptor, end - 1):
                continue
            end = min(end, begin + _MOST_AHEAD_BYTES)
            ahead += end - begin
            read_ahead(descriptor, begin, end)

    def loaded(self) -> StoredCells:
        """Reads the values into memory.

        Raises:
            DatasetError: the file is damaged, was truncated or changed since it was opened, or cannot be read.
        """
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.ends - self.starts)])
        places = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

        def read(view: memoryview) -> None:
            self.read(self.starts, [view[begin:end] for begin, end in places])

        return StoredCells(bounds[:-1], bounds[1:], read_bytes(int(bounds[-1]), read))


@dataclass(frozen=True, slots=True, eq=False)
class WholeFiles(_Ranges):
    """Values that are local files of their own, each read when it is decoded. Has the interface of `FileCells`; the
    offsets count as if all files were concatenated.
    """

    versions: Sequence[FileVersion]

    @property
    def data(self) -> WholeFilesData:
        """The content of the files, read by slices."""
        return WholeFilesData(self)

    def loaded(self) -> StoredCells:
        """Reads the values into memory. Raises as `read_whole`."""

        def read(view: memoryview) -> None:
            for version, begin, end in zip(self.versions, self.starts.tolist(), self.ends.tolist(), strict=True):
                read_whole(version, view[begin:end])

        return StoredCells(self.starts, self.ends, read_bytes(int(self.ends[-1]) if len(self) else 0, read))


def read_whole(version: FileVersion, place: memoryview) -> None:
    """Reads a local file into ``place``.

    Raises:
        DatasetError: the file is gone, is not the listed version, or cannot be read.
    """
    try:
        file = OpenFile(version)
        file.check()
        read_values(file, np.zeros(1, np.int64), [place])
        file.check()
    except OSError as error:
        raise unreadable(version, error) from error


def unreadable(version: FileVersion, error: Exception) -> DatasetError:
    """Returns the error for a listed file that cannot be read."""
    return DatasetError(
        f"file {version.path}: expected a file, which existed when the folder was listed, got: {error}. "
        f"{access_failed(error) or 'Create the pipeline again to list the folder again.'}"
    )


class WholeFilesData:
    """The bytes of whole files as slices, one file each. A slice is valid until the same thread takes another."""

    def __init__(self, cells: WholeFiles) -> None:
        self._cells = cells
        self._latest = threading.local()  # a value is read twice: for its shape, then to decode it

    def __getitem__(self, part: slice) -> memoryview:
        """Raises as `read_whole`."""
        if part.stop == part.start:
            return memoryview(b"")
        number, data = getattr(self._latest, "read", (-1, memoryview(b"")))
        cell = int(np.searchsorted(self._cells.starts, part.start, side="right")) - 1
        if number != cell:
            data = memoryview(bytearray(part.stop - part.start))
            read_whole(self._cells.versions[cell], data)
            self._latest.read = cell, data
        return data


class FileData:
    """The bytes of a file as slices. A slice is valid until the same thread takes another."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file

    def __getitem__(self, part: slice) -> memoryview:
        """Raises `DatasetError` if the file was truncated or changed since it was opened, or cannot be read."""
        data = memoryview(SCRATCH.array("stored", (part.stop - part.start,), np.dtype(np.uint8)))  # type: ignore[arg-type]
        read_values(self._file, np.array([part.start]), [data])
        return data


def stays_in_file(field: UnischemaField) -> bool:
    """Returns whether a field is stored as raw array bytes of one length, with or without a header."""
    raw = isinstance(field.storage, TensorCodec) or type(field.storage) is NdarrayCodec
    return raw and field.is_fixed and not is_string_like(field.dtype) and sys.byteorder == "little"


class FileValues:
    """Arrays of one dtype and shape in a file, used like one array ``[n, *shape]``.

    Args:
        cells: the stored values.
        starts: the file offset of each array's data.
    """

    def __init__(self, cells: FileCells, starts: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._cells = cells
        self._starts = starts
        self.dtype = dtype
        self.shape = (len(starts), *shape)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> np.ndarray:
        out = np.empty((1, *self.shape[1:]), self.dtype)
        self.read(np.array([number]), out)
        result: np.ndarray = out[0]
        return result

    def read(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Reads some of the arrays into ``out``, ``[len(numbers), *shape]``.

        Raises:
            DatasetError: as `FileCells.loaded`.
        """
        if not out.flags.c_contiguous or out.dtype.itemsize != self.dtype.itemsize:
            for number, place in zip(numbers, out, strict=True):
                place[...] = self[int(number)]
            return
        if not out.size:
            return
        view = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # an array is a buffer
        size = out.nbytes // len(numbers)
        places = [view[number * size : (number + 1) * size] for number in range(len(numbers))]
        self._cells.read(self._starts[numbers], places)


def file_values(field: UnischemaField, codec: Codec, cells: FileCells) -> FileValues | None:
    """Returns the arrays of a field, or ``None`` if the stored values differ in length or header."""
    if not len(cells) or (cells.ends - cells.starts != cells.ends[0] - cells.starts[0]).any():
        return None
    length = int(cells.ends[0] - cells.starts[0])
    shape = tuple(axis or 0 for axis in field.shape)
    if isinstance(codec, TensorCodec):
        fits = length == codec.value_bytes(field)
        return FileValues(cells, cells.starts, delivered_dtype(field.dtype), shape) if fits else None
    stored = FileBytes(cells.file.descriptor, 0, int(cells.ends.max()))
    try:
        first = stored.read(int(cells.starts[0]), int(cells.starts[0]) + min(length, _HEADER_BYTES))
        header = npy_header(first, length)
        heads = stored.heads(cells.starts, header.data_offset)
    except ValueError:
        return None  # the general path reports which row is damaged
    same = header.shape == shape and header.dtype == field.dtype and not header.fortran_order
    if not same or not header.data_bytes or (heads != heads[0]).any():
        return None
    return FileValues(cells, cells.starts + header.data_offset, delivered_dtype(field.dtype), shape)


InMemory: TypeAlias = pa.Array | StoredCells
Part: TypeAlias = np.ndarray | InMemory | FileCells | WholeFiles | EncodedFrames | OrderedNumbers
"""One field of one row group: numbers without nulls as an array of numpy, an Arrow array in canonical form, large
encoded values in memory or in files, frames of videos, or numbers in the order of the items."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupColumns:
    """The fields of a row group: one part per field, all of the same length.

    Attributes:
        stacked: the memory of those that are in the order of items.
    """

    columns: tuple[Part, ...]
    stacked: Sequence[StackedColumns] = ()

    def check(self, rows: int, place: str) -> None:
        """Raises `DatasetError` unless each column has ``rows`` values. Gathering does not check bounds."""
        for number, column in enumerate(self.columns):
            if len(column) != rows:
                check_length(number, len(column), rows, place)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(map(_memory_of, self.columns))


def _memory_of(part: Part) -> int:
    if isinstance(part, np.ndarray):
        return part.nbytes
    if isinstance(part, OrderedNumbers):
        return part.values.nbytes
    if isinstance(part, pa.Array) and is_number(part.type):
        bits: int = part.type.bit_width
        return len(part) * (bits + 1) // 8  # a value and a bit; Arrow would look at the buffers
    return int(part.nbytes)


def check_length(number: int, length: int, rows: int, place: str) -> None:
    """Raises `DatasetError` unless a column has ``rows`` values."""
    if length != rows:
        raise DatasetError(
            f"{place}: expected {rows} values of column {number}, got {length}. The file is damaged: write it again."
        )
