"""`GrowingArray`: an Arrow array that grows in temporary files, and is then mapped into memory.

It takes slices of one canonical column (see `to_canonical`), and returns all of them as one array. Numbers beneath
nulls become 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_numpy, is_number
from ...storage.temporary import TemporaryBuffer

_BITS = 8  # per byte
_NOTHING = pa.py_buffer(b"")


class GrowingArray:
    """An array in temporary files. Close it if it is not `finished`.

    Args:
        kind: the Arrow type: numbers, truth values, bytes of one length, ``large_string``, ``large_binary``, or lists
            of these.

    Raises:
        NotImplementedError: the type is another one.
        NoRoomError: temporary files cannot be created.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._length = self._nulls = self._inside = 0
        self._valid, self._truths = _Bits(), _Bits(lazily=False) if pa.types.is_boolean(kind) else None
        self._buffers: list[TemporaryBuffer] = []
        self._child: GrowingArray | None = None
        self._append, files = self._layout(kind)
        with _closing_on_error(self):
            self._buffers.extend(TemporaryBuffer() for _ in range(files))
            if self._append in (self._append_runs, self._append_lists):
                self._buffers[0].append(bytes(8))  # the first offset
            if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
                self._child = GrowingArray(kind.value_type)

    def append(self, array: pa.Array) -> None:
        """Appends a slice.

        Raises:
            NoRoomError: the disk is full.
        """
        valid = as_numpy(array.is_valid()) if array.null_count else None
        self._valid.append(valid, len(array))
        self._append(array, valid)
        self._length += len(array)
        self._nulls += array.null_count

    def finished(self) -> tuple[pa.Array, list[pa.Buffer]]:
        """Returns the array, and the mappings that hold it. It cannot grow any more.

        Raises:
            NoRoomError: there is no address space for it.
        """
        with _closing_on_error(self):
            child, maps = (None, []) if self._child is None else self._child.finished()
            bits = [self._valid] if self._truths is None else [self._valid, self._truths]
            mappings = [*(each.mapped() for each in bits), *(each.mapped() for each in self._buffers)]
            buffers = [
                None if each is None and not number else each or _NOTHING for number, each in enumerate(mappings)
            ]
            array = pa.Array.from_buffers(
                self.kind, self._length, buffers, self._nulls, children=None if child is None else [child]
            )
            return array, [*maps, *(each for each in mappings if each is not None)]

    def close(self) -> None:
        """Drops the files. Idempotent."""
        for each in (self._valid, self._truths, self._child, *self._buffers):
            if each is not None:
                each.close()

    def _layout(self, kind: pa.DataType) -> tuple[Callable[[pa.Array, np.ndarray | None], None], int]:
        """Returns how to append to an array of a type, and how many files it takes, apart from bitmaps."""
        if is_number(kind):
            return self._append_numbers, 1
        if pa.types.is_boolean(kind):
            return self._append_truths, 0
        if pa.types.is_fixed_size_binary(kind):
            return self._append_bytes, 1
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            return self._append_runs, 2
        if pa.types.is_large_list(kind):
            return self._append_lists, 1
        if pa.types.is_fixed_size_list(kind):
            return self._append_fixed_lists, 0
        raise NotImplementedError(f"arrays of type {kind}")

    def _append_numbers(self, array: pa.Array, valid: np.ndarray | None) -> None:
        present = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
        values = as_numpy(present)
        self._buffers[0].append(_bytes_of(values if valid is None else np.where(valid, values, values.dtype.type(0))))

    def _append_truths(self, array: pa.Array, valid: np.ndarray | None) -> None:
        assert self._truths is not None
        self._truths.append(as_numpy(array if valid is None else array.fill_null(False)), len(array))

    def _append_bytes(self, array: pa.Array, _: np.ndarray | None) -> None:
        width, data = array.type.byte_width, array.buffers()[1]
        if width and len(array):
            self._buffers[0].append(memoryview(data)[array.offset * width : (array.offset + len(array)) * width])

    def _append_runs(self, array: pa.Array, _: np.ndarray | None) -> None:
        first, last = self._append_ends(array)
        if last > first:
            self._buffers[1].append(memoryview(array.buffers()[2])[first:last])

    def _append_lists(self, array: pa.Array, _: np.ndarray | None) -> None:
        first, last = self._append_ends(array)
        assert self._child is not None
        self._child.append(array.values.slice(first, last - first))

    def _append_fixed_lists(self, array: pa.Array, _: np.ndarray | None) -> None:
        size = array.type.list_size
        assert self._child is not None
        self._child.append(array.values.slice(array.offset * size, len(array) * size))

    def _append_ends(self, array: pa.Array) -> tuple[int, int]:
        """Appends where the runs end. Returns the range of their values in the slice."""
        if not len(array):
            return 0, 0
        offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
        first, last = int(offsets[0]), int(offsets[-1])
        self._buffers[0].append(_bytes_of(offsets[1:] + (self._inside - first)))
        self._inside += last - first
        return first, last


class _Bits:
    """A bitmap that grows. If made ``lazily``, it takes no file until a bit is 0."""

    def __init__(self, *, lazily: bool = True) -> None:
        self._ones = 0
        self._rest = np.zeros(0, np.bool_)
        self._buffer = None if lazily else TemporaryBuffer()

    def append(self, bits: np.ndarray | None, count: int) -> None:
        """Appends ``count`` bits; ``None`` means ones."""
        if self._buffer is None:
            if bits is None or bits.all():
                self._ones += count
                return
            self._buffer = TemporaryBuffer()
            self._buffer.append(b"\xff" * (self._ones // _BITS))
            self._rest = np.ones(self._ones % _BITS, np.bool_)
        joined = np.concatenate([self._rest, np.ones(count, np.bool_) if bits is None else bits])
        whole = len(joined) // _BITS * _BITS
        self._buffer.append(_bytes_of(np.packbits(joined[:whole], bitorder="little")))
        self._rest = joined[whole:]

    def mapped(self) -> pa.Buffer | None:
        """Returns the bitmap, or ``None`` if it takes no file."""
        if self._buffer is None:
            return None
        self._buffer.append(_bytes_of(np.packbits(self._rest, bitorder="little")))
        return self._buffer.mapped()

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(np.ascontiguousarray(array).view(np.uint8).reshape(-1))  # type: ignore[arg-type]


@contextmanager
def _closing_on_error(array: GrowingArray) -> Iterator[None]:
    try:
        yield
    except BaseException:
        array.close()
        raise
