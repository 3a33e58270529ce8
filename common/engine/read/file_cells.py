"""`FileCells`: large values that stay in their file until a batch wants them.

In: where values lie in an open local file. Out: arrays of one layout, read straight into their places in a batch with
one copy fewer than if a block held them (`FileValues`); other values one by one, for their decoder (`FileData`).
Always holds: the file is the one that was listed, and one that is cut meanwhile is an error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...errors import DatasetError
from ...layout.file_versions import FileVersion, hold, local_version
from ...layout.files import DataFile
from ...layout.pages import FileBytes
from ...schema.codec import Codec
from ...schema.codecs import NdarrayCodec, TensorCodec
from ...schema.dtypes import delivered_dtype, is_string_like
from ...schema.field import UnischemaField
from ...schema.npy import npy_header
from ..columns.arena import SCRATCH
from .stored_cells import StoredCells, read_bytes

_MOST_FILES = 64
_MOST_GAP_BYTES = 4096  # between two values that are read by one call
_ADVICE_BYTES = 128 << 10
_MOST_BUFFERS = 512  # of one call; POSIX promises 1024 on Linux
_HEADER_BYTES = 256  # hold the header of any .npy file that numpy writes for numbers


class OpenFile:
    """A local file that is open for reading; closed when the last value that lies in it is gone."""

    def __init__(self, version: FileVersion) -> None:
        self._version = version
        self.path = version.path
        self.descriptor = os.open(version.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def current(self) -> FileVersion:
        """Its version now."""
        return local_version(self._version.store, self.path, os.fstat(self.descriptor))

    def is_as_listed(self) -> bool:
        """Whether it is the version that was listed."""
        return not self._version.became(self.current())

    def check(self) -> None:
        """Raises `DatasetError` if it changed since it was listed; to be called when something has been read."""
        hold(self._version, self.current())


class OpenFiles:
    """The files that values of loaded blocks lie in; at most some at a time. Thread-safe."""

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[FileVersion, OpenFile] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def open(self, file: DataFile) -> OpenFile | None:
        """The file; ``None`` if too many are open, or it cannot be read, or is not what was listed."""
        try:
            with self._lock:
                opened = self._files.get(file.version)
                if opened is None:
                    if len(self._files) >= _MOST_FILES:
                        return None
                    opened = self._files[file.version] = OpenFile(file.version)
            return opened if opened.is_as_listed() else None
        except OSError:
            return None  # whoever reads it next says why


@dataclass(frozen=True, slots=True, eq=False)
class FileCells:
    """Values of a column as bytes in a file.

    Attributes:
        starts, ends: the first byte of each value in the file, and the one after its last; int64.
    """

    starts: np.ndarray
    ends: np.ndarray
    file: OpenFile

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 16 * len(self.starts)

    @property
    def data(self) -> FileData:
        """The bytes of the file."""
        return FileData(self.file)

    def take(self, rows: np.ndarray) -> FileCells:
        """Some of the values."""
        return FileCells(self.starts[rows], self.ends[rows], self.file)

    def expect(self) -> None:
        """Lets the system read ahead what will be asked for soon."""
        if not hasattr(os, "posix_fadvise") or not len(self):
            return
        descriptor = self.file.descriptor
        far = np.flatnonzero(self.starts[1:] - self.ends[:-1] > _MOST_GAP_BYTES)
        for first, last in zip([0, *(far + 1).tolist()], [*far.tolist(), len(self) - 1], strict=True):
            begin, end = int(self.starts[first]), int(self.ends[last])
            if _is_cached(descriptor, begin) and _is_cached(descriptor, end - 1):
                continue
            with contextlib.suppress(OSError):  # of a file system that cannot
                for place in range(begin, end, _ADVICE_BYTES):  # the kernel takes no more of one advice
                    os.posix_fadvise(descriptor, place, min(_ADVICE_BYTES, end - place), os.POSIX_FADV_WILLNEED)

    def loaded(self) -> StoredCells:
        """The values in memory.

        Raises:
            DatasetError: the file was cut since it was opened.
        """
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.ends - self.starts)])
        places = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

        def read(view: memoryview) -> None:
            read_values(self.file, self.starts, [view[begin:end] for begin, end in places])

        return StoredCells(bounds[:-1], bounds[1:], read_bytes(int(bounds[-1]), read))


@dataclass(frozen=True, slots=True, eq=False)
class WholeFiles:
    """Values that are local files of their own; each is read when it is decoded. Used as `FileCells`.

    Attributes:
        starts, ends: where each would be, if they followed each other; int64.
    """

    starts: np.ndarray
    ends: np.ndarray
    versions: Sequence[FileVersion]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 16 * len(self.starts)

    @property
    def data(self) -> WholeFilesData:
        """The bytes of the files."""
        return WholeFilesData(self)

    def loaded(self) -> StoredCells:
        """The values in memory; raises as `read_whole`."""

        def read(view: memoryview) -> None:
            for version, begin, end in zip(self.versions, self.starts.tolist(), self.ends.tolist(), strict=True):
                read_whole(version, view[begin:end])

        return StoredCells(self.starts, self.ends, read_bytes(int(self.ends[-1]) if len(self) else 0, read))


def read_whole(version: FileVersion, place: memoryview) -> None:
    """Reads a local file.

    Raises:
        DatasetError: it is gone, is not the version that was listed, or cannot be read.
    """
    try:
        file = OpenFile(version)
        file.check()
        read_values(file, np.zeros(1, np.int64), [place])
        file.check()
    except OSError as error:
        raise unreadable(version, error) from error


def unreadable(version: FileVersion, error: Exception) -> DatasetError:
    """The error for a listed file that cannot be read."""
    return DatasetError(
        f"file {version.path}: expected a file, which was there when the folder was listed, got: {error}. Make the "
        "pipeline anew to list the folder as it is now."
    )


class WholeFilesData:
    """The bytes of files by slices, each of one file; valid until its thread asks for another one."""

    def __init__(self, cells: WholeFiles) -> None:
        self._cells = cells
        self._latest = threading.local()  # its shape is looked at before it is decoded

    def __getitem__(self, part: slice) -> memoryview:
        """Raises as `read_whole`."""
        if part.stop == part.start:
            return memoryview(b"")
        number, data = getattr(self._latest, "read", (-1, memoryview(b"")))
        wanted = int(np.searchsorted(self._cells.starts, part.start, side="right")) - 1
        if number != wanted:
            data = memoryview(bytearray(part.stop - part.start))
            read_whole(self._cells.versions[wanted], data)
            self._latest.read = wanted, data
        return data


class FileData:
    """The bytes of a file by slices; each is valid until its thread asks for the next one."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file

    def __getitem__(self, part: slice) -> memoryview:
        """Raises `DatasetError`: the file was cut since it was opened."""
        data = memoryview(SCRATCH.array("stored", (part.stop - part.start,), np.dtype(np.uint8)))  # type: ignore[arg-type]
        read_values(self._file, np.array([part.start]), [data])
        return data


def _is_cached(descriptor: int, place: int) -> bool:
    """Whether the system has a byte of a file at hand."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    try:
        return os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except OSError:  # it would have to wait, or cannot tell
        return False


def stays_in_file(field: UnischemaField) -> bool:
    """Whether stored values of a field are its array's own bytes, at most behind a header, all of one length."""
    raw = isinstance(field.storage, TensorCodec) or type(field.storage) is NdarrayCodec
    return raw and field.is_fixed and not is_string_like(field.dtype) and sys.byteorder == "little"


class FileValues:
    """Arrays of one dtype and shape that lie in a file; used like an array of them, ``[n, *shape]``.

    Args:
        starts: the first byte of each array's own bytes in the file.
    """

    def __init__(self, file: OpenFile, starts: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file = file
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
            DatasetError: the file was cut since it was opened, or cannot be read.
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
        read_values(self._file, self._starts[numbers], places)


def file_values(field: UnischemaField, codec: Codec, cells: FileCells) -> FileValues | None:
    """The arrays of a field; ``None`` where the stored values differ in more than their content."""
    if not len(cells) or (cells.ends - cells.starts != cells.ends[0] - cells.starts[0]).any():
        return None
    length = int(cells.ends[0] - cells.starts[0])
    shape = tuple(axis or 0 for axis in field.shape)
    if isinstance(codec, TensorCodec):
        fits = length == codec.value_bytes(field)
        return FileValues(cells.file, cells.starts, delivered_dtype(field.dtype), shape) if fits else None
    stored = FileBytes(cells.file.descriptor, 0, int(cells.ends.max()))
    try:
        first = stored.read(int(cells.starts[0]), int(cells.starts[0]) + min(length, _HEADER_BYTES))
        header = npy_header(first, length)
        heads = stored.heads(cells.starts, header.data_offset)
    except ValueError:
        return None  # the plain path says which row is broken
    same = header.shape == shape and header.dtype == field.dtype and not header.fortran_order
    if not same or not header.data_bytes or (heads != heads[0]).any():
        return None
    return FileValues(cells.file, cells.starts + header.data_offset, delivered_dtype(field.dtype), shape)


def read_values(file: OpenFile, starts: np.ndarray, places: list[memoryview]) -> None:
    """Reads bytes into places, from each start on; those that follow each other closely by one call.

    Raises:
        DatasetError: the file was cut or changed since it was opened, or cannot be read.
    """
    if not places:
        return
    scratch = memoryview(bytearray(_MOST_GAP_BYTES))
    begins = starts.tolist()
    try:
        buffers, begin, end = [places[0]], begins[0], begins[0] + len(places[0])
        for start, place in zip(begins[1:], places[1:], strict=True):
            gap = start - end
            if not 0 <= gap <= _MOST_GAP_BYTES or len(buffers) >= _MOST_BUFFERS:
                _read_all(file, buffers, begin)
                buffers, begin = [place], start
            else:
                buffers += [scratch[:gap], place] if gap else [place]
            end = start + len(place)
        _read_all(file, buffers, begin)
        file.check()
    except DatasetError:
        raise
    except OSError as error:
        raise DatasetError(f"file {file.path}: expected to go on reading it, got: {error}.") from error


def _read_all(file: OpenFile, buffers: list[memoryview], begin: int) -> None:
    wanted = sum(map(len, buffers))
    while True:
        read = os.preadv(file.descriptor, buffers, begin)
        wanted -= read
        if wanted == 0:
            return
        if read == 0:
            file.check()
            raise DatasetError(
                f"file {file.path}: expected {wanted} more bytes at {begin}, got its end. Write it again."
            )
        begin += read
        while read >= len(buffers[0]):
            read -= len(buffers.pop(0))
        buffers[0] = buffers[0][read:]


InMemory: TypeAlias = pa.Array | StoredCells
Part: TypeAlias = InMemory | FileCells | WholeFiles
"""One field of one row group: an Arrow array in canonical form, or large values where they lie, in memory or a file."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupColumns:
    """One part for each field, all of the same length."""

    columns: tuple[Part, ...]

    def check(self, rows: int, place: str) -> None:
        """Raises `DatasetError` for a column without a value for each of the rows: gathering looks at no bounds."""
        for number, column in enumerate(self.columns):
            if len(column) != rows:
                raise DatasetError(
                    f"{place}: expected {rows} values of column {number}, got {len(column)}. "
                    "The file is damaged: write it again."
                )

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(column.nbytes for column in self.columns)
