"""Windows in shared memory: written once by the reader, mapped by every worker without a copy."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..engine.window import WindowRows
from .channel import memory_file

_TAIL = struct.Struct("<QQ")


class ExportedWindow:
    """A window in shared memory. Thread-safe.

    Its memory is freed when it is closed and nobody holds it: a job that is on its way to a worker when the iteration
    ends must not lose the descriptor that it is about to send.

    Args:
        number: names the window between reader and workers.
        rows: as planned; its cells stay with the reader.
        source: which pipeline of a mix it belongs to.
        descriptor: owned.
    """

    def __init__(self, *, number: int, rows: WindowRows, source: int, descriptor: int) -> None:
        self.number = number
        self.rows = rows
        self.source = source
        self.descriptor = descriptor
        self._users = 1
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether the owner gave the window up."""
        return self._closed

    def hold(self) -> bool:
        """Keeps the memory until `release`; False if the window is closed already."""
        with self._lock:
            if self._closed:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Ends what `hold` began."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self.descriptor)

    def close(self) -> None:
        """Gives up the owner's hold. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.release()


def export_window(
    number: int, rows: WindowRows, tables: Sequence[pa.Table], places: Sequence[str], source: int
) -> ExportedWindow:
    """Writes a window to shared memory: one Arrow IPC stream for each row group, then where they are."""
    descriptor = memory_file("window")
    ends: list[int] = []
    try:
        with os.fdopen(os.dup(descriptor), "wb", buffering=0) as raw, pa.PythonFile(raw, mode="w") as sink:
            for table in tables:
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                ends.append(sink.tell())
            meta = pickle.dumps((ends, list(places), list(rows.rows), list(rows.units)), protocol=5)
            sink.write(meta)
            sink.write(_TAIL.pack(len(meta), 0))
        return ExportedWindow(number=number, rows=rows, source=source, descriptor=descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def open_exported(descriptor: int) -> tuple[list[pa.Table], list[str], list[np.ndarray], list[int]]:
    """Maps a window: tables, places, rows, and row groups. Takes over the descriptor."""
    try:
        size = os.fstat(descriptor).st_size
        memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    length, _ = _TAIL.unpack(memory[size - _TAIL.size :])
    ends, places, rows, units = pickle.loads(memory[size - _TAIL.size - length : size - _TAIL.size])
    buffer = pa.py_buffer(memory)
    starts = [0, *ends[:-1]]
    tables = [
        pa.ipc.open_stream(buffer.slice(start, end - start)).read_all() for start, end in zip(starts, ends, strict=True)
    ]
    return tables, places, rows, units
