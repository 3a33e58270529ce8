"""Reads from outside whether some thread of a Python process holds the interpreter's lock, without stopping it.

Takes process ids; gives shares of samples in which the lock was held. The lock is a structure in the interpreter's
static memory: the thread state that held it last, then an int that is 1 while it is held. Its place is found in this
process, as the only such pair whose int falls to 0 while a call releases the lock; other processes of the same
interpreter have it at the same distance from where the file is mapped. Works with CPython 3.11 to 3.13.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_TRIES = 100
_WORD_BYTES = 8


class LockError(Exception):
    """Raised if the lock can't be observed: no right to read the process's memory, or another interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the int is: at a distance from the beginning of a mapped file."""

    file: str
    distance_bytes: int

    def address(self, pid: int) -> int | None:
        """Returns its address in a process; ``None`` if the process doesn't run this interpreter."""
        begins = [begin for begin, _, file in _mappings(pid) if file == self.file]
        return min(begins) + self.distance_bytes if begins else None


def place() -> Place:
    """Finds the lock in this process.

    Raises:
        LockError: it isn't found, as in an interpreter without such a lock.
    """
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    file, end = next((file, end) for begin, end, file in _mappings(os.getpid()) if begin <= runtime < end)
    begins = min(begin for begin, _, other in _mappings(os.getpid()) if other == file)
    for _ in range(_TRIES):  # another thread may hold the lock while this one has released it
        found = list(_candidates(runtime, end - runtime))
        if len(found) == 1:
            return Place(file=file, distance_bytes=runtime - begins + found[0])
    raise LockError(
        "finding the interpreter's lock failed: expected CPython 3.11 to 3.13 with a lock. Use one of them."
    )


def _candidates(address: int, size: int) -> Iterator[int]:
    """Yields offsets of ints behind a pointer to this thread's state that are 1 with the lock, and 0 without it."""
    own = ctypes.pythonapi.PyThreadState_Get
    own.restype = ctypes.c_void_p
    state = struct.pack("P", own())
    with_lock = _copy(ctypes.PyDLL(None), address, size)
    without = _copy(ctypes.CDLL(None), address, size)
    at = with_lock.find(state)
    while at >= 0:
        after = at + _WORD_BYTES
        ints = [struct.unpack_from("i", copy, after)[0] for copy in (with_lock, without) if after + 4 <= size]
        if ints == [1, 0] and without[at:after] == state:
            yield after
        at = with_lock.find(state, after)


def _copy(library: ctypes.CDLL, address: int, size: int) -> bytes:
    """Copies memory; a `ctypes.CDLL` releases the lock during the call, a `ctypes.PyDLL` keeps it."""
    target = ctypes.create_string_buffer(size)
    library.memcpy(target, ctypes.c_void_p(address), ctypes.c_size_t(size))
    return target.raw


def _mappings(pid: int) -> Iterator[tuple[int, int, str]]:
    """Yields begin, end and file of each mapping; zeroed data behind a file's own counts as the file's."""
    file = ""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as lines:
        for line in lines:
            span, *_, last = line.split(maxsplit=5)
            file = last.strip() if last.startswith("/") else file
            begin, _, end = span.partition("-")
            yield int(begin, 16), int(end, 16), file


def shares(pids: Sequence[int], *, seconds: float, rate: float = 1_000.0) -> dict[int, float]:
    """Returns the share of samples in which the lock was held, for each process that runs this interpreter.

    Samples come at random intervals, so that they can't keep step with what they look at.

    Raises:
        LockError: reading the memory of a process is not allowed.
    """
    where = place()
    samples = 0
    end = time.perf_counter() + seconds
    with ExitStack() as stack:
        opened = {pid: stack.enter_context(_opened(where, pid)) for pid in pids}
        words = {pid: word for pid, word in opened.items() if word is not None}
        held = dict.fromkeys(words, 0)
        while not samples or time.perf_counter() < end:
            time.sleep(random.expovariate(rate))
            samples += 1
            for pid, (file, address) in words.items():
                held[pid] += any(os.pread(file, 4, address))  # reads nothing from a process that has ended
    return {pid: count / samples for pid, count in held.items()}


@contextmanager
def _opened(where: Place, pid: int) -> Iterator[tuple[int, int] | None]:
    """Gives the memory of a process as an open file, and the address there."""
    try:
        address = where.address(pid)
        file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except PermissionError as error:
        raise LockError(
            f"reading the memory of process {pid} failed: {error}. Run as root, or with the right to trace processes "
            "(sysctl kernel.yama.ptrace_scope=0; for a container, --cap-add SYS_PTRACE)."
        ) from error
    try:
        yield (file, address) if address is not None else None
    finally:
        os.close(file)
