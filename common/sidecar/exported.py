"""Windows in shared memory: written once by the reader, mapped by every worker without a copy."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..engine.window import WindowRows
from .channel import memory_file

_TAIL = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedWindow:
    """A window in shared memory.

    Attributes:
        number: names the window between reader and workers.
        rows: as planned; its cells stay with the reader.
        source: which pipeline of a mix it belongs to.
        descriptor: owned; see `close`.
    """

    number: int
    rows: WindowRows
    source: int
    descriptor: int
    num_bytes: int

    def close(self) -> None:
        """Frees the memory once no worker maps it any more."""
        os.close(self.descriptor)


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
            meta = pickle.dumps((ends, list(places), list(rows.rows)), protocol=5)
            sink.write(meta)
            sink.write(_TAIL.pack(len(meta), 0))
        return ExportedWindow(
            number=number, rows=rows, source=source, descriptor=descriptor, num_bytes=os.fstat(descriptor).st_size
        )
    except BaseException:
        os.close(descriptor)
        raise


def open_exported(descriptor: int) -> tuple[list[pa.Table], list[str], list[np.ndarray]]:
    """Maps a window: tables, places, and rows. Takes over the descriptor."""
    try:
        size = os.fstat(descriptor).st_size
        memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    length, _ = _TAIL.unpack(memory[size - _TAIL.size :])
    ends, places, rows = pickle.loads(memory[size - _TAIL.size - length : size - _TAIL.size])
    buffer = pa.py_buffer(memory)
    starts = [0, *ends[:-1]]
    tables = [
        pa.ipc.open_stream(buffer.slice(start, end - start)).read_all() for start, end in zip(starts, ends, strict=True)
    ]
    return tables, places, rows
