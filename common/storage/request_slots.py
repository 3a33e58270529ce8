"""Limits how many requests a user's processes on one machine send to one store at a time.

A store's endpoint has as many slots as `most_requests` says. A read takes one before it asks (`Slots.taken`), and more
for ranges that it fetches at once, if some are free (`spare_slots`). So no read waits for a slot while it holds one.

A slot is a byte of a file, locked by a process (POSIX record locks). The kernel unlocks it when the process ends,
however it ends, and a forked child does not inherit the lock. One file, which stays empty, serves all endpoints: bytes
beyond its end can be locked, too. It is in ``/dev/shm`` if there is one. Without the file, each process counts for
itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache

from ..base.platform.memory_file import shared_directory
from ..base.process.forks import ForkLock
from ..base.progress import pause, warning_seconds

_LOGGER = logging.getLogger(__name__)
MOST_REQUESTS = 64
"""The requests to one store at a time; ``PARQUETRY_STORE_REQUESTS`` replaces it."""
PATIENCE_S = 150.0
"""How long to wait for a slot. Reads take no longer, so by then a stopped process must be holding the slots."""
_SLOT_BITS = 20
_ENDPOINT_BITS = 42  # with those of a slot, less than a file offset has
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_POLL_S, _LONGEST_POLL_S = 0.002, 0.02
_known: dict[tuple[str, str], Slots] = {}
_lock = ForkLock()
_here = threading.local()


def most_requests() -> int:
    """Returns how many requests one store may have at a time; 0 = any number."""
    with suppress(ValueError):
        return min(max(0, int(os.environ.get("PARQUETRY_STORE_REQUESTS", MOST_REQUESTS))), 1 << _SLOT_BITS)
    return MOST_REQUESTS


def slots_of(endpoint: str) -> Slots:
    """Returns the slots of a store's endpoint, the same ones in all processes of this user and machine."""
    directory = _directory()
    with _lock:
        if (directory, endpoint) not in _known:
            _known[directory, endpoint] = Slots(directory, endpoint)
        return _known[directory, endpoint]


@contextmanager
def using(held: SlotLease | None) -> Iterator[None]:
    """While the block runs, reads in this thread take no slots of their own, because a caller holds some for them."""
    before = held_here()
    _here.held = held
    try:
        yield
    finally:
        _here.held = before


def held_here() -> SlotLease | None:
    """Returns the slots that a caller holds for this thread; ``None`` if it is not in a read from a store."""
    lease: SlotLease | None = getattr(_here, "held", None)
    return lease


def spare_slots(most: int) -> int:
    """Takes up to ``most`` more slots for the read that runs in this thread. Returns how many were free."""
    held = held_here()
    return most if held is None else held.extend(most)


class Slots:
    """The slots of one endpoint. Thread-safe.

    Args:
        directory: where the file of slots is; empty = this process counts for itself.
        endpoint: see `stores.endpoint_of`.
    """

    def __init__(self, directory: str, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = ForkLock()
        self._taken: set[int] = set()
        self._pid = os.getpid()
        self._none_before_s = 0.0  # when to ask the kernel again
        self._file: int | None = None
        if directory:
            with suppress(OSError):
                self._file = _file_in(directory)
        digest = hashlib.blake2b(endpoint.encode(), digest_size=8).digest()
        self._begin = int.from_bytes(digest, "little") % (1 << _ENDPOINT_BITS) << _SLOT_BITS

    @contextmanager
    def taken(self) -> Iterator[SlotLease]:
        """Waits for a slot. Holds it, and those that `SlotLease.extend` adds, while the block runs.

        After `PATIENCE_S` without a free slot, the block runs without one.

        Raises:
            PipelineError: this thread's work is cancelled.
        """
        held = SlotLease(self)
        try:
            if held_here() is None:
                self._wait(held)
            yield held
        finally:
            held.close()

    def try_one(self) -> int | None:
        """Takes a slot if one is free. Returns its number; -1 if the number of requests is not limited."""
        most = most_requests()
        if not most:
            return -1
        with self._lock:
            self._forget_parent()
            if len(self._taken) >= most or time.monotonic() < self._none_before_s:
                return None
            first = random.randrange(most)
            for slot in ((first + number) % most for number in range(most)):
                if slot not in self._taken and self._locks(slot):
                    self._taken.add(slot)
                    return slot
            self._none_before_s = time.monotonic() + _POLL_S
            return None

    def release(self, slot: int) -> None:
        """Gives a slot back."""
        with self._lock:
            self._forget_parent()
            if slot in self._taken:
                self._taken.discard(slot)
                self._none_before_s = 0.0
                if self._file is not None:
                    with suppress(OSError):
                        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._begin + slot)

    def _locks(self, slot: int) -> bool:
        if self._file is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._begin + slot)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        except OSError:  # locks do not work here, so this process counts for itself
            self._file = None
        return True

    def _forget_parent(self) -> None:
        """In a forked child: the slots of the parent are not ours."""
        if self._pid != os.getpid():
            self._taken, self._pid, self._none_before_s = set(), os.getpid(), 0.0

    def _wait(self, held: SlotLease) -> None:
        began, poll_s, warns = time.monotonic(), _POLL_S, True
        while not held.extend(1):
            waited_s = time.monotonic() - began
            if warns and waited_s >= warning_seconds():
                warns = False
                _LOGGER.warning(
                    "%s: waited %.0f s for one of the %d requests that are allowed at a time. If the store allows "
                    "more, set PARQUETRY_STORE_REQUESTS.",
                    self._endpoint,
                    waited_s,
                    most_requests(),
                )
            if waited_s >= PATIENCE_S:
                _LOGGER.warning("%s: still no free slot, asking without one.", self._endpoint)
                return
            pause(random.uniform(_POLL_S, poll_s))
            poll_s = min(2 * poll_s, _LONGEST_POLL_S)


class SlotLease:
    """The slots that one read has taken. Thread-safe."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._numbers: list[int] = []
        self._cancels: dict[object, Callable[[], object]] = {}
        self._is_open = True
        self._lock = threading.Lock()

    def extend(self, most: int) -> int:
        """Takes up to ``most`` more slots without waiting, and returns how many; 0 once it is closed."""
        for count in range(most):
            slot = self._slots.try_one()
            if slot is None:
                return count
            with self._lock:
                if self._is_open:
                    self._numbers.append(slot)
                    continue
            self._slots.release(slot)
            return count
        return most

    @contextmanager
    def when_closed(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Calls ``cancel`` if the lease is closed before the end of the block, which waits for an answer."""
        key = object()
        with self._lock:
            is_open = self._is_open
            self._cancels[key] = cancel
        try:
            if not is_open:
                cancel()
            yield
        finally:
            with self._lock:
                self._cancels.pop(key, None)

    def close(self) -> None:
        """Gives all slots back, even if the read is still under way: nobody waits for it any more. Idempotent."""
        with self._lock:
            self._is_open = False
            numbers, self._numbers = self._numbers, []
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel()
        for slot in numbers:
            self._slots.release(slot)


@cache
def _file_in(directory: str) -> int:
    """Opens the file of slots. It is never closed, because that would unlock all slots of this process."""
    return os.open(f"{directory}/requests", _FLAGS, 0o600)


@lru_cache(maxsize=1)
def _directory() -> str:
    """Returns this user's directory for the files of slots; empty if there is none that only this user may change."""
    path = f"{shared_directory()}/parquetry-{os.getuid()}"
    with suppress(OSError):
        os.mkdir(path, 0o700)
    with suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return path
    return ""
