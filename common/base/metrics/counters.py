"""`Counters`: counts the work of all threads and processes of an iteration, each in its own row of shared memory.

Each row has one writer, so counting takes no lock, and readers add up the rows. Work is counted per job, row group or
step, never per row. `docs/protocol.md` describes the layout, which the C++ op shares.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

import numpy as np

from ..platform.processes import delay_s, open_delays
from ..process.exit_watch import is_running
from ..process.locks import locked_within
from . import tracing

MAGIC = 2026.0
ROWS = 4096
WIDTH = 40
SIZE_BYTES = (1 + ROWS) * WIDTH * 8
_PATH_AT = 64  # the offset of the trace's path in the header
_MAGIC, _USED, _PATH_BYTES = range(3)  # indices of the header's numbers
_TOKEN = slice(32, 48)  # the bytes of the header that identify these counters


class Count(enum.IntEnum):
    """Indices of the numbers in a row. Times are in seconds, and those of parallel threads add up."""

    OWNER = 0  # the process ID, or 0 if the row is free
    ROWS = 1
    ELEMENTS = 2
    DELIVERED_BYTES = 3
    WAIT_S = 4
    STORE_S = 5
    PARQUET_S = 6
    DECODE_S = 7
    TRANSFORM_S = 8
    HAND_OVER_S = 9
    BLOCKED_S = 10  # time that making batches waited for reading
    READ_BYTES = 11
    CACHE_HITS = 12
    CACHE_MISSES = 13
    FILTERED_ROWS = 14
    RETRIES = 15
    FAILED = 16
    MEMORY_BYTES = 17  # bytes held now, not a sum over time
    BEGAN = 18  # start time, by `time.perf_counter`
    FIRST = 19  # arrival of the first element
    LAST = 20  # arrival of the latest element
    RESTARTS = 21
    SKIPPED_DECODE = 22  # rows left out, by reason
    SKIPPED_NULL = 23
    SKIPPED_TRANSFORM = 24
    CPU_S = 31  # processor time of the threads that read and decode
    WAITED_STORE_S = 32  # parts of `WAIT_S`, by cause; what remains has no measured cause
    WAITED_PARQUET_S = 33
    WAITED_DECODE_S = 34
    WAITED_TRANSFORM_S = 35
    WAITED_HAND_OVER_S = 36
    WAITED_DEVICE_COPY_S = 37


SKIPPED = {
    "DecodeError": Count.SKIPPED_DECODE,
    "NullValueError": Count.SKIPPED_NULL,
    "TransformError": Count.SKIPPED_TRANSFORM,
}
"""The counter for rows left out, by the class of their error."""
MOST_NOTED = 100
"""The maximum number of left-out rows to record."""


class SkippedRowRecord(NamedTuple):
    """A row that was left out: its error's class, and its location. ``source`` is the index of the dataset in a mix."""

    cause: str
    source: int
    row_group: int
    row: int


_NOTE = slice(25, 30)  # in a row that records a left-out row: time, reason, source, row group, row
_NOTE_TIME = 25
_PART = slice(26, 29)  # in a row that counts for a part of an iteration: iteration, worker, workers
_LEFT_BEFORE, _LEFT_OUT = 29, 30  # rows left out: before this epoch, and in total
_STAGES = slice(Count.STORE_S, Count.BLOCKED_S + 1)
_CAUSES = (Count.WAITED_STORE_S, Count.WAITED_PARQUET_S, Count.WAITED_DECODE_S, Count.WAITED_TRANSFORM_S)
_SPLIT_AFTER_S = 0.001  # a longer wait is split by cause at once,
_SPLIT_EVERY_S = 0.01  # and others after a while, with those before
_NOW = {Count.MEMORY_BYTES}
_LATEST = [Count.BEGAN, Count.FIRST, Count.LAST]
_SUMMED = [count for count in Count if count not in (Count.OWNER, *_NOW, *_LATEST)]
_PATIENCE_S = 1.0
"""How long to wait for other processes to take their rows, which takes microseconds."""
_guard = threading.RLock()  # reentrant: a finaliser may count while a row is taken
_listing = threading.RLock()  # guards `_alive`
_alive: weakref.WeakSet[Counters]


class Counters:
    """The counters of one iteration, or of consecutive iterations of one dataset.

    Args:
        descriptor: shared memory of `SIZE_BYTES`. The caller keeps ownership. ``None`` uses private memory of this
            process.

    Raises:
        ValueError: the descriptor holds something else.
        OSError: there are too many open files, or no memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor: int | None = None
        self._rows: dict[int, memoryview[float]] = {}  # by thread
        self._before = np.zeros(WIDTH)
        self._began = self._first = 0.0
        self._unsplit_s = self._unsplit_handed_s = self._split_at = 0.0
        self._worked = (0.0,) * (_STAGES.stop - _STAGES.start)  # seconds of stages when waits were last split
        self._map(descriptor)
        if self._numbers[_MAGIC] not in (0.0, MAGIC):
            raise ValueError("counters: expected memory that holds counters.")
        if not self._numbers[_MAGIC]:
            self._memory[_TOKEN] = os.urandom(_TOKEN.stop - _TOKEN.start)
        self._numbers[_MAGIC] = MAGIC
        with _listing:
            _alive.add(self)
        if descriptor is None:
            self.trace(tracing.spool())

    def share(self, descriptor: int) -> None:
        """Moves the counters to empty shared memory. Call this before any other thread counts here."""
        kept = self._memory[: (1 + int(self._numbers[_USED])) * WIDTH * 8]
        self._map(descriptor)
        self._memory[: len(kept)] = kept

    def _map(self, descriptor: int | None) -> None:
        if descriptor is None:
            self._memory = mmap.mmap(-1, SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            memory = mmap.mmap(descriptor, SIZE_BYTES)  # raises ValueError if it is shorter
            self._descriptor = os.dup(descriptor)
            self._memory = memory
            weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._numbers = memoryview(self._memory).cast("d")
        self._rows.clear()

    @classmethod
    def at(cls, path: str, token: bytes) -> Counters:
        """Opens the counters that another process has at a path. The path may refer to another file by now.

        Raises:
            ValueError: another file is there. It is not modified.
            OSError: there is no file.
        """
        descriptor = -1
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_size == SIZE_BYTES:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            header = os.pread(descriptor, _TOKEN.stop, 0) if descriptor >= 0 else b""
            if len(header) < _TOKEN.stop or header[:8] != struct.pack("d", MAGIC) or header[_TOKEN] != token:
                raise ValueError("counters: expected memory that holds the requested counters.")
            return cls(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def token(self) -> bytes:
        """The bytes that identify these counters."""
        return self._memory[_TOKEN]

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the memory, for other processes."""
        return self._descriptor

    def bind(self) -> memoryview[float]:
        """Makes this thread count here from now on, and returns its row."""
        _counters.set(self)
        return self.row()

    def row(self) -> memoryview[float]:
        """Returns this thread's row."""
        row = self._rows.get(threading.get_ident())
        return self._take_row() if row is None else row

    def begin(self) -> None:
        """Begins an epoch: `totals` counts from here."""
        table = self._table()
        table[table[:, _NOTE_TIME] == 0, _LEFT_OUT] = 0
        self._before = self._sums()
        self.row()[Count.BEGAN] = self._began = time.perf_counter()

    def waited(self, seconds: float, end: float, *, handed_s: float = 0.0, through_workers: bool = False) -> None:
        """Records how long the consumer waited since the last call, and splits it by cause; see `split_wait`.

        Args:
            seconds, end: the wait, and when the consumer's latest element arrived.
            handed_s: the part of the wait in which the consumer's own thread converted elements. It is in this thread's
                `Count.HAND_OVER_S` already.
            through_workers: whether elements pass through loader workers. What no stage explains is then that passing.
        """
        row = self.row()
        if self._first <= self._began:
            self._first = row[Count.FIRST] = self._split_at = end
            self._worked, self._unsplit_s, self._unsplit_handed_s = self._seconds_of_stages(), 0.0, 0.0
        else:
            row[Count.WAIT_S] += seconds
            self._unsplit_s += seconds
            self._unsplit_handed_s += handed_s
            if seconds - handed_s > _SPLIT_AFTER_S or end - self._split_at > _SPLIT_EVERY_S:
                self._split_at = end
                self._split(row, through_workers=through_workers)
        row[Count.LAST] = end
        path = self.traced
        if path is not None:
            tracing.note(path, Count.WAIT_S.name, end - seconds, end)

    def copied(self, seconds: float) -> None:
        """Records that the consumer also waited while its latest element was copied to a device."""
        row = self.row()
        if self._first > self._began:
            row[Count.WAIT_S] += seconds
            row[Count.WAITED_DEVICE_COPY_S] += seconds
            row[Count.LAST] += seconds

    def _split(self, row: memoryview[float], *, through_workers: bool) -> None:
        """Divides the waits since the last call among their causes."""
        before, self._worked = self._worked, self._seconds_of_stages()
        work = [now - earlier for now, earlier in zip(self._worked, before, strict=True)]
        handed_s, wait_s = self._unsplit_handed_s, max(self._unsplit_s - self._unsplit_handed_s, 0.0)
        work[Count.HAND_OVER_S - Count.STORE_S] -= handed_s
        *parts, hand_over_s = split_wait(wait_s, work)
        if through_workers:
            hand_over_s = wait_s - sum(parts)
        for cause, seconds in zip(_CAUSES, parts, strict=True):
            row[cause] += seconds
        row[Count.WAITED_HAND_OVER_S] += hand_over_s + handed_s
        self._unsplit_s = self._unsplit_handed_s = 0.0

    def _seconds_of_stages(self) -> tuple[float, ...]:
        return tuple(self._table()[:, _STAGES].sum(axis=0).tolist())

    def totals(self) -> dict[Count, float]:
        """Returns the sums over all rows since the epoch began."""
        sums = self._sums()
        sums[_SUMMED] -= self._before[_SUMMED]
        return {count: float(sums[count]) for count in Count if count is not Count.OWNER}

    def note(self, cause: str, source: int, row_group: int, row: int) -> None:
        """Records a row that was left out, up to `MOST_NOTED` per epoch."""
        if cause not in SKIPPED or len(self._notes()) >= MOST_NOTED:
            return
        with self._locked() as is_locked:
            number = self._free_row() if is_locked else None
            if number is not None:
                place = self._numbers[number * WIDTH : (number + 1) * WIDTH]
                place[Count.OWNER] = os.getpid()
                for at, value in enumerate((time.perf_counter(), SKIPPED[cause], source, row_group, row), _NOTE_TIME):
                    place[at] = float(value)

    def count_left_out(self, what: Count, part: tuple[int, int, int], before: int, left_out: int) -> None:
        """Counts one more left-out row of a part (iteration, worker, workers).

        ``left_out`` is the total so far, ``before`` the total of other epochs. If this process is killed, another one
        continues from these numbers. So the count and the total are stored in immediate succession.
        """
        row = self.row()
        if row[_PART].tolist() != list(part) or row[_LEFT_BEFORE] != before:
            row[_LEFT_OUT] = 0.0
            for at, value in enumerate((*part, before), _PART.start):
                row[at] = float(value)
        row[what], row[_LEFT_OUT] = row[what] + 1.0, float(left_out)

    def left_out(self, part: tuple[int, int, int]) -> tuple[int, int] | None:
        """Returns a part's latest numbers in this epoch, from any process, since a part may restart in another one."""
        rows = self._table()
        counts = (rows[:, _NOTE_TIME] == 0) & (rows[:, _LEFT_OUT] > 0)
        own_rows = rows[counts & (rows[:, _PART] == part).all(axis=1)]
        return (int(own_rows[0, _LEFT_BEFORE]), int(own_rows[:, _LEFT_OUT].max())) if len(own_rows) else None

    def noted(self) -> list[SkippedRowRecord]:
        """Returns the first rows that were left out since the epoch began."""
        causes = {count: cause for cause, count in SKIPPED.items()}
        rows = sorted(self._notes().tolist())[:MOST_NOTED]
        return [SkippedRowRecord(causes[Count(int(why))], *map(int, place)) for _, why, *place in rows]

    def _notes(self) -> np.ndarray:
        table = self._table()
        began = table[:, Count.BEGAN].max(initial=0.0)
        notes: np.ndarray = table[table[:, _NOTE_TIME] > began][:, _NOTE]
        return notes

    def _table(self) -> np.ndarray:
        return np.frombuffer(self._memory, np.float64).reshape(-1, WIDTH)[1 : int(self._numbers[_USED]) + 1]

    def trace(self, path: str | None) -> None:
        """Makes all threads and processes that count here append events to this file; ``None`` stops that."""
        encoded = (path or "").encode()[: WIDTH * 8 - _PATH_AT]
        self._numbers[_PATH_BYTES] = 0.0
        self._memory[_PATH_AT : _PATH_AT + len(encoded)] = encoded
        self._numbers[_PATH_BYTES] = float(len(encoded))

    @property
    def traced(self) -> str | None:
        """The file to which events are appended."""
        size = int(self._numbers[_PATH_BYTES])
        return self._memory[_PATH_AT : _PATH_AT + size].decode() if size else None

    def _sums(self) -> np.ndarray:
        table = self._table()
        sums: np.ndarray = table.sum(axis=0)
        sums[_LATEST] = table[:, _LATEST].max(axis=0, initial=0.0)
        firsts = table[:, Count.FIRST]
        sums[Count.FIRST] = min(firsts[firsts > sums[Count.BEGAN]], default=sums[Count.FIRST])
        held = table[table[:, Count.MEMORY_BYTES] != 0]
        alive = {owner: is_running(int(owner)) for owner in set(held[:, Count.OWNER].tolist())}
        sums[Count.MEMORY_BYTES] = sum(
            held_bytes for owner, held_bytes in held[:, [Count.OWNER, Count.MEMORY_BYTES]].tolist() if alive[owner]
        )
        return sums

    def _take_row(self) -> memoryview[float]:
        with self._locked() as is_locked:
            number = self._free_row() if is_locked else None
            if number is None:  # with thousands of threads, or if another process was stopped here, it is not counted
                row = memoryview(bytearray(WIDTH * 8)).cast("d")
            else:
                row = self._numbers[number * WIDTH : (number + 1) * WIDTH]
                row[Count.OWNER] = os.getpid()
        self._rows[threading.get_ident()] = row
        return row

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Keeps other threads and processes from taking a row. Yields whether it has the lock."""
        with _guard:
            is_locked = self._descriptor is None or locked_within(
                partial(fcntl.lockf, self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), _PATIENCE_S, sleep=time.sleep
            )
            try:
                yield is_locked
            finally:
                if self._descriptor is not None and is_locked:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _free_row(self) -> int | None:
        used = int(self._numbers[_USED])
        if used < ROWS:
            self._numbers[_USED] = used + 1.0
            return used + 1
        for number in range(1, ROWS + 1):
            if not is_running(int(self._numbers[number * WIDTH])):
                self._numbers[number * WIDTH + Count.MEMORY_BYTES] = 0.0
                self._numbers[number * WIDTH + _NOTE_TIME] = 0.0
                return number
        return None


def split_wait(wait_s: float, work: Sequence[float]) -> tuple[float, ...]:
    """Splits a wait into seconds that were due to the store, Parquet, decoding, transforms and hand-over.

    Each part is proportional to what its stage did meanwhile. Reading usually runs ahead. So it counts as much as
    making batches waited for it, and never more than it took. If all stages together took less than the wait, the rest
    is in no part.

    >>> split_wait(2.0, [0.0, 0.0, 3.0, 1.0, 0.0, 0.0])
    (0.0, 0.0, 1.5, 0.5, 0.0)

    Args:
        work: seconds of threads: store, Parquet, decode, transform, hand-over, and blocked by reading.
    """
    store, parquet, *others, blocked = [max(seconds, 0.0) for seconds in work]
    share = min(blocked / (store + parquet), 1.0) if store + parquet > 0 else 0.0
    parts = [share * store, share * parquet, *others]
    total = sum(parts)
    scale = min(wait_s / total, 1.0) if total > 0 else 0.0
    return tuple(scale * part for part in parts)


class _Thread(threading.local):
    delays: _Delays | None = None
    for_others_s = 0.0


_thread = _Thread()
_counters: ContextVar[Counters | None] = ContextVar("_counters", default=None)
_alive = weakref.WeakSet()


@contextmanager
def counting(counters: Counters | None) -> Iterator[None]:
    """Makes this thread count here for the duration of the block. ``None`` changes nothing."""
    before = _counters.get()
    if counters is not None:
        counters.bind()
    try:
        yield
    finally:
        _counters.set(before)


def counters_here() -> Counters | None:
    """Returns the counters of this thread, for threads that work on its behalf."""
    return _counters.get()


def add(what: Count, amount: float) -> None:
    """Adds to a counter of this thread, if it has counters."""
    counters = _counters.get()
    if counters is not None:
        counters.row()[what] += amount


def counter_value(what: Count) -> float:
    """Returns the current value of one of this thread's counters."""
    counters = _counters.get()
    return 0.0 if counters is None else counters.row()[what]


def add_time(what: Count, begin: float, end: float | None = None, *, less: float = 0.0) -> None:
    """Adds a time span minus ``less`` seconds to a counter of this thread, and records the span in the trace."""
    counters = _counters.get()
    if counters is None:
        return
    if end is None:
        end = time.perf_counter()
    passed = end - begin - less
    if passed > 0:
        counters.row()[what] += passed
    if counters._numbers[_PATH_BYTES] and (path := counters.traced) is not None:
        tracing.note(path, what.name, begin, end)
    elif tracing.is_open():
        tracing.close()


def waited_for_another(seconds: float) -> None:
    """Records that this thread waited while another reader read the same row group."""
    _thread.for_others_s += seconds


class Reading:
    """Times a block that reads: CPU time counts as Parquet time, sleep as store time.

    Time in which the thread could run but got no processor is not store time. Linux reports how long that was. Nor is
    time spent waiting for another reader (`waited_for_another`), which counts that read itself.
    """

    __slots__ = ("_begin", "_busy", "_for_others_s")

    def __enter__(self) -> None:
        self._begin, self._busy, self._for_others_s = time.perf_counter(), time.thread_time(), _thread.for_others_s

    def __exit__(self, *_: object) -> None:
        counters = _counters.get()
        if counters is None:
            return
        end = time.perf_counter()
        busy = time.thread_time() - self._busy
        row = counters.row()
        row[Count.CPU_S] += busy
        idle = max(end - self._begin - busy, 0.0)
        if idle > _LEAST_IDLE_S:
            idle = max(idle - _newly_delayed(), 0.0)
        else:
            busy, idle = busy + idle, 0.0
        row[Count.STORE_S] += max(idle - (_thread.for_others_s - self._for_others_s), 0.0)
        add_time(Count.PARQUET_S, self._begin, end, less=end - self._begin - busy)


_LEAST_IDLE_S = 1e-3


class _Delays:
    """The time that a thread waited for a processor, as Linux counts it."""

    def __init__(self) -> None:
        self._so_far_s = 0.0
        self._file = open_delays()
        if self._file is not None:
            weakref.finalize(self, os.close, self._file).atexit = False

    def newly(self) -> float:
        """Returns the seconds since the last call, or 0 if the system does not report them."""
        delayed = None if self._file is None else delay_s(self._file)
        if delayed is None:
            return 0.0
        before, self._so_far_s = self._so_far_s, delayed
        return delayed - before


def _newly_delayed() -> float:
    """Returns the seconds that this thread waited for a processor since the last call."""
    if _thread.delays is None:
        _thread.delays = _Delays()
    return _thread.delays.newly()


def longest_path_bytes() -> int:
    """Returns the maximum length of a trace's path."""
    return WIDTH * 8 - _PATH_AT


def all_counters() -> list[Counters]:
    """Returns all counters of this process."""
    with _listing:
        return list(_alive)


def _forget() -> None:
    """Resets a forked child: the rows belong to its parent's threads."""
    global _guard, _listing, _thread
    _guard, _listing = threading.RLock(), threading.RLock()
    _thread = _Thread()
    _counters.set(None)
    for counters in list(_alive):
        counters._rows = {}


os.register_at_fork(after_in_child=_forget)
