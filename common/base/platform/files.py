"""Local files: scattered reads, reading ahead, files without a name, locks of one byte, and mapped memory.

Imports only the standard library: `setup.py` compiles the core where nothing else is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

UNLOCKED, WRITE_LOCKED = fcntl.F_UNLCK, fcntl.F_WRLCK
HAS_BYTE_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
"""Whether `set_byte_lock` works here."""
_FLOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length, pid
_ADVICE_BYTES = 1 << 17  # the kernel reads no more than this per call


def read_at(descriptor: int, buffers: Sequence[memoryview | bytearray], begin: int) -> int:
    """Fills buffers from the file offset ``begin`` on. Returns the number of bytes read, which may be fewer.

    Raises:
        OSError: the file cannot be read.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, buffers, begin)
    done = 0
    for buffer in (memoryview(each).cast("B") for each in buffers):
        content = os.pread(descriptor, len(buffer), begin + done)
        buffer[: len(content)] = content
        done += len(content)
        if len(content) < len(buffer):
            break
    return done


def is_cached(descriptor: int, place: int) -> bool:
    """Returns whether a byte of a file is in the page cache; ``False`` if the system does not tell."""
    try:
        return os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except (AttributeError, OSError):  # the read would block, or the file system cannot tell
        return False


def read_ahead(descriptor: int, begin: int, end: int) -> None:
    """Asks the kernel to read a part of a file soon, if it takes such advice."""
    with contextlib.suppress(AttributeError, OSError):
        for place in range(begin, end, _ADVICE_BYTES):
            os.posix_fadvise(descriptor, place, min(_ADVICE_BYTES, end - place), os.POSIX_FADV_WILLNEED)


def nameless_file(directory: str) -> int:
    """Returns the descriptor of a new file that has no name and is closed on exec.

    Raises:
        OSError: the directory is not writable, or too many files are open.
    """
    with contextlib.suppress(AttributeError, OSError):  # not every file system can
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    descriptor, path = tempfile.mkstemp(prefix="parquetry-", dir=directory)
    os.unlink(path)
    return descriptor


def set_byte_lock(descriptor: int, kind: int, start: int) -> None:
    """Locks or unlocks one byte for an open file description (``F_OFD_SETLK``, see fcntl(2)).

    Args:
        kind: `WRITE_LOCKED` or `UNLOCKED`.

    Raises:
        BlockingIOError: another open file holds the lock.
        OSError: locks do not work here.
    """
    if not HAS_BYTE_LOCKS:
        raise OSError("this system has no locks of open files")
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, 1, 0))


def lock_holder(descriptor: int) -> int | None:
    """Returns the number of the process that locks an open file; ``None`` if the system does not tell."""
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks") as file:
            held = [fields for fields in map(str.split, file) if place in fields and "->" not in fields]
    except OSError:
        return None
    pids = [int(fields[fields.index(place) - 1]) for fields in held]
    return pids[0] if pids and pids[0] > 0 else None


def mapped(descriptor: int, size_bytes: int) -> pa.Buffer:
    """Maps a file read-only. The descriptor may be closed afterwards.

    Raises:
        OSError: there is no address space for it.
    """
    import pyarrow as pa

    path = f"/proc/self/fd/{descriptor}"
    if not os.path.exists(path):
        return pa.py_buffer(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ))
    with pa.memory_map(path) as file:  # unlike `mmap`, it keeps no descriptor
        return file.read_buffer()


def forget(memory: pa.Buffer) -> None:
    """Drops the pages of a mapped file from this process's memory, on Linux. The next use maps them again."""
    advise = _madvise()
    if advise is not None and memory.size:
        advise(memory.address, memory.size, mmap.MADV_DONTNEED)


def use_huge_pages(memory: mmap.mmap) -> None:
    """Asks for large pages, if there are any."""
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """Returns the C library's ``madvise`` on Linux, where pages that are forgotten come back from the file."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
