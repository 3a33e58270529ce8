"""`SharedReads`: the loader workers of a dataset read each row group once, and map it from each other's memory.

Every worker needs some rows of each row group. The first one reads it and puts the table into a memory file; the others
open that file by its name in ``/proc``. A table of contents, in a memory file of the training process, says who holds
which table (`SharedTables`). Nothing has a name in a file system, so nothing is left when processes are killed.

The last worker that took a table holds it for the next one, and the previous owner releases it. After every worker has
taken it, it is freed. A mapped table stays valid until its reader drops it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import from_stream, stream_bytes, write_stream
from ...base.platform.files import HAS_BYTE_LOCKS, UNLOCKED, WRITE_LOCKED, set_byte_lock
from ...base.platform.memory_file import has_memfd, has_shared_paths, is_memory, memory_file, shared_path
from ...base.process.forks import ForkLock
from ...base.process.locks import PATIENCE_S, locked_within
from .claims import Claims
from .passed_pages import PASSED_PAGES

_LOGGER = logging.getLogger(__name__)
_NUMBERS = ("state", "process", "descriptor", "inode", "size", "taken", "number")
_SLOT = np.dtype([("key", "<u8"), *((name, "<i8") for name in _NUMBERS)])
_FREE, _WRITING, _READY, _UNWANTED = range(4)
_SLOTS = 128  # each table takes a descriptor of the process that holds it
_BITS = 63  # of the number that says which readers took a table; readers beyond them share bits
_CONTENTS = "contents"
_CONTENTS_BYTES = _SLOT.itemsize * _SLOTS
_BUSY = 1 << 61  # the byte to lock while using the table of contents; claims lock smaller ones
_DIGEST_BYTES = 16
_FAILURES = (OSError, ValueError, MemoryError, pa.ArrowException)
_FEWEST_READERS = 2
_tables: dict[str, SharedTables] = {}
"""In a worker: the tables of each dataset, by the name of its table of contents."""
_MOST_REFUSED = 3
"""After this many tables that did not fit, workers stop waiting for each other: no table would come."""


class SharedReads:
    """The row groups that the workers of one dataset share.

    Workers are forked or unpickled from the dataset, and so find the table of contents that the training process made.
    Without one, each worker reads for itself.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._owner = 0  # the process that made the table of contents
        self._pages: str | None = None  # see `PassedPages.share`

    def announce(self, workers: int) -> None:
        """Called in the training process when a loader begins a pass with ``workers`` workers."""
        if workers:
            self._pages = PASSED_PAGES.share()
        if workers < _FEWEST_READERS or self._owner == os.getpid() or not can_share():
            return
        with contextlib.suppress(OSError):
            descriptor = new_contents()
            weakref.finalize(self, os.close, descriptor)
            self._path, self._owner = shared_path(descriptor), os.getpid()

    def of_worker(self, worker: int, workers: int, max_bytes: int) -> SharedTables | None:
        """In a loader worker that begins a pass: returns what it shares with the others, or ``None``.

        Args:
            max_bytes: a limit for the tables of all workers together.
        """
        PASSED_PAGES.join(self._pages)
        if self._path is None or workers < _FEWEST_READERS:
            return None
        known = _tables.get(self._path)
        if known is not None:
            known.clear()
            return known
        with contextlib.suppress(OSError, ValueError):  # unpickled later in another process
            _tables[self._path] = SharedTables(self._path, reader=worker, readers=workers, max_bytes=max_bytes)
        return _tables.get(self._path)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_owner": 0, "_pages": self._pages}


def can_share() -> bool:
    """Whether the system has what it takes: memory files, ``/proc``, and locks that belong to an open file."""
    return has_memfd() and HAS_BYTE_LOCKS and has_shared_paths()


def new_contents() -> int:
    """Returns the descriptor of an empty table of contents. Workers open it by its name in ``/proc``.

    Raises:
        OSError: too many open files, or no memory.
    """
    return memory_file(_CONTENTS, _CONTENTS_BYTES)


class SharedTables:
    """Tables that this process shares with others. Thread-safe.

    It implements `engine.read.column_reader.TableCache`. Whatever fails counts as a missing table.

    Args:
        path: the table of contents; see `new_contents`.
        reader, readers: the number of this process among those that share, and how many they are.
        max_bytes: a limit for all tables together.

    Raises:
        OSError, ValueError: the process that made the table of contents is gone, or has closed it.
    """

    def __init__(self, path: str, *, reader: int, readers: int, max_bytes: int) -> None:
        self._bit = 1 << reader % _BITS
        self._all = (1 << min(readers, _BITS)) - 1
        self._max_bytes = max_bytes
        # An open file of its own, so that its locks exclude other processes.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not is_memory(shared_path(self._descriptor), _CONTENTS):
                raise ValueError(f"expected a table of contents, got another file: {path}")
            memory = mmap.mmap(self._descriptor, _CONTENTS_BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._slots = np.frombuffer(memory, _SLOT)
        self._claims = Claims("of the loader's workers", file=path)
        self._held: dict[int, int] = {}  # the descriptors of tables that this process holds, by slot
        self._lock = ForkLock()
        self._refused = 0
        self._gave_up = False

    def get(self, key: str) -> pa.Table | None:
        """Returns the table under a key, or ``None``. Its columns point into memory that processes share."""
        digest = _digest(key)
        try:
            with self._contents() as slots:
                at = _find(slots, digest)
                slot = None if at is None else slots[at].copy()
            if at is None or slot is None or slot["state"] != _READY:
                return None
            descriptor = _opened(slot)
            if descriptor is None:
                return None
            try:
                table = _mapped(descriptor, int(slot["size"]), digest)
                with self._contents() as slots:
                    if slots["inode"][at] == slot["inode"] and slots["state"][at] == _READY:
                        descriptor = self._take(slots, at, descriptor)
            finally:
                if descriptor is not None:
                    os.close(descriptor)
        except _FAILURES:
            return None
        return table

    def claim(self, key: str, size_bytes: int = 0) -> AbstractContextManager[bool]:
        """Claims a missing table while the block runs. Yields whether another reader had claimed it; see `Claims`."""
        if self._refused >= _MOST_REFUSED:
            return contextlib.nullcontext(False)
        return self._claims.claim(_digest(key).hex(), size_bytes)

    def put(self, key: str, table: pa.Table) -> None:
        """Shares a table if there is room for it."""
        digest = _digest(key)
        try:
            descriptor = memory_file("table")
        except _FAILURES:
            return
        at = None
        try:
            size = stream_bytes(table) + _DIGEST_BYTES
            at = self._reserve(digest, size, descriptor)
            if at is None:
                return
            _write(descriptor, table, digest)
            with self._contents() as slots:
                if slots["inode"][at] == os.fstat(descriptor).st_ino:
                    slots["state"][at] = _READY
                    descriptor, self._held[at] = -1, descriptor
        except _FAILURES:
            if at is not None:
                with contextlib.suppress(*_FAILURES), self._contents() as slots:
                    slots[at] = 0
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def clear(self) -> None:
        """Releases all tables that this process holds."""
        with contextlib.suppress(*_FAILURES), self._contents() as slots:
            for at, descriptor in self._held.items():
                slots[at] = 0
                os.close(descriptor)
            self._held.clear()

    def close(self) -> None:
        """Releases everything. Do not use the object afterwards."""
        self.clear()
        os.close(self._descriptor)

    @contextlib.contextmanager
    def _contents(self) -> Iterator[np.ndarray]:
        """Excludes other processes and threads from the table of contents, and releases what others hold by now."""
        with self._lock:
            self._lock_contents()
            try:
                self._release_tables()
                yield self._slots
            finally:
                set_byte_lock(self._descriptor, UNLOCKED, _BUSY)

    def _lock_contents(self) -> None:
        lock = partial(set_byte_lock, self._descriptor, WRITE_LOCKED, _BUSY)
        if locked_within(lock, 0 if self._gave_up else PATIENCE_S):
            return
        if not self._gave_up:
            self._gave_up = True
            _LOGGER.warning(
                "another loader worker has been using the table of shared row groups for %.0f s, and was probably "
                "stopped; this worker reads on by itself.",
                PATIENCE_S,
            )
        raise TimeoutError("the table of contents is in use")

    def _release_tables(self) -> None:
        for at, descriptor in list(self._held.items()):
            slot = self._slots[at]
            is_ours = slot["process"] == os.getpid() and slot["descriptor"] == descriptor
            if is_ours and slot["state"] == _UNWANTED:
                self._slots[at] = 0
            if not is_ours or slot["state"] != _READY:
                os.close(self._held.pop(at))

    def _take(self, slots: np.ndarray, at: int, descriptor: int) -> int | None:
        """Counts a reader, and makes this process hold the table. Returns the descriptor if it is the last reader."""
        slots["taken"][at] |= self._bit
        before = self._held.pop(at, None)
        if before is not None:
            os.close(before)
        if slots["taken"][at] == self._all:
            slots[at] = 0
            return descriptor
        slots["process"][at], slots["descriptor"][at] = os.getpid(), descriptor
        self._held[at] = descriptor
        return None

    def _reserve(self, digest: bytes, size: int, descriptor: int) -> int | None:
        """Returns a slot for a table that this process writes, or ``None`` if it is there already or has no room."""
        with self._contents() as slots:
            slot = _find(slots, digest)
            if slot is not None and _is_held(slots[slot]):
                return None
            if slot is not None or not self._has_room(slots, size):
                for used in np.flatnonzero(slots["state"]):
                    if not _is_held(slots[used]):
                        slots[used] = 0
            if not self._has_room(slots, size):
                self._give_up_oldest(slots, size)
                self._refused += 1
                return None
            self._refused = 0
            at = int(np.flatnonzero(slots["state"] == _FREE)[0])
            number = int(slots["number"].max()) + 1
            inode = os.fstat(descriptor).st_ino
            slots[at] = (_key(digest), _WRITING, os.getpid(), descriptor, inode, size, self._bit, number)
            return at

    def _has_room(self, slots: np.ndarray, size: int) -> bool:
        return int(slots["size"].sum()) + size <= self._max_bytes and bool((slots["state"] == _FREE).any())

    def _give_up_oldest(self, slots: np.ndarray, size: int) -> None:
        """Makes room for the next table: marks the oldest ones, which their holders then release."""
        ready = np.flatnonzero(slots["state"] == _READY)
        excess_bytes = int(slots["size"][slots["state"] != _UNWANTED].sum()) + size - self._max_bytes
        for at in ready[np.argsort(slots["number"][ready])]:
            slots["state"][at] = _UNWANTED
            excess_bytes -= int(slots["size"][at])
            if excess_bytes <= 0:
                break


def _find(slots: np.ndarray, digest: bytes) -> int | None:
    matches = np.flatnonzero((slots["key"] == _key(digest)) & (slots["state"] != _FREE))
    return int(matches[0]) if len(matches) else None


def _is_held(slot: np.void) -> bool:
    """Whether the process that holds a table is alive and still has it."""
    try:
        return os.stat(_place(slot)).st_ino == int(slot["inode"])
    except OSError:
        return False


def _opened(slot: np.void) -> int | None:
    """Opens a table, or returns ``None`` if its holder has released it."""
    if not _is_held(slot):
        return None
    descriptor = os.open(_place(slot), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if status.st_ino == slot["inode"] and status.st_size == slot["size"]:
        return descriptor
    os.close(descriptor)
    return None


def _place(slot: np.void) -> str:
    return shared_path(slot["descriptor"], slot["process"])


def _mapped(descriptor: int, size: int, digest: bytes) -> pa.Table:
    memory = pa.py_buffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    if memory.slice(size - _DIGEST_BYTES).to_pybytes() != digest:
        raise ValueError("expected the table of the requested key, got another one.")
    return from_stream(memory.slice(0, size - _DIGEST_BYTES))


def _write(descriptor: int, table: pa.Table, digest: bytes) -> None:
    with pa.OSFile(shared_path(descriptor), "wb") as file:
        write_stream(file, table)
        file.write(digest)


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).digest()


def _key(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")
