"""`SharedReads`: lets the loader workers of a dataset read each row group once.

Workers are forked or unpickled from the dataset, and so find the table of contents that the training process made; see
`engine.read.shared_tables`. Without one, each worker reads for itself.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any

from parquetry.common import Pipeline
from parquetry.common.engine.read.shared_tables import SharedTables, can_share, new_contents
from parquetry.common.transport.source import DEFAULT_MEMORY_BYTES

_SHARE_OF_MEMORY = 4  # all workers together share at most this fraction of the memory limit of one
_tables: dict[str, SharedTables] = {}
"""In a worker: the tables of each dataset, by the name of its table of contents."""


class SharedReads:
    """The row groups that the workers of one dataset share."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._owner = 0  # the process that made the table of contents

    def announce(self, workers: int) -> None:
        """Called in the training process when a loader begins a pass with ``workers`` workers."""
        if workers < 2 or self._owner == os.getpid() or not can_share():
            return
        with suppress(OSError):
            descriptor = new_contents()
            weakref.finalize(self, os.close, descriptor)
            self._path, self._owner = f"/proc/{os.getpid()}/fd/{descriptor}", os.getpid()

    def of_worker(self, pipeline: Pipeline, worker: int, workers: int) -> SharedTables | None:
        """In a loader worker that begins a pass: returns what it shares with the others, or ``None``."""
        if self._path is None or workers < 2:
            return None
        known = _tables.get(self._path)
        if known is not None:
            known.clear()
            return known
        with suppress(OSError, ValueError):  # unpickled later in another process
            limit = (pipeline.memory_limit or DEFAULT_MEMORY_BYTES) // _SHARE_OF_MEMORY
            _tables[self._path] = SharedTables(self._path, reader=worker, readers=workers, max_bytes=limit)
        return _tables.get(self._path)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_owner": 0}
