"""`memory_file`: anonymous memory with a descriptor, which other processes map, most by its `shared_path`."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from functools import lru_cache

_PREFIX = "parquetry-"
_SHARED = "/dev/shm"
_OF_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # which pass
_PR_GET_DUMPABLE = 3  # linux/prctl.h


def memory_file(name: str, size_bytes: int = 0) -> int:
    """Returns a descriptor of new memory, filled with zeros. It is closed on exec, and has no name in a file system.

    A sandbox (seccomp, gVisor) may forbid memfd. The memory is then an unlinked file in ``/dev/shm``,
    with room for ``size_bytes``; without that directory, as on macOS, a temporary file.

    Args:
        name: what ``/proc`` shows, after ``parquetry-``.

    Raises:
        OSError: there is neither, or no room, or too many files are open.
    """
    if has_memfd():
        descriptor = os.memfd_create(_PREFIX + name, os.MFD_CLOEXEC)
        reserve = os.ftruncate
    else:
        directory = _SHARED if os.path.isdir(_SHARED) else None
        descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{name}-", dir=directory)
        os.unlink(path)
        reserve = _allocate
    try:
        reserve(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@lru_cache(maxsize=1)
def has_memfd() -> bool:
    """Whether this process may create memory files. The function may exist although the system refuses the call."""
    try:
        os.close(os.memfd_create(_PREFIX + "probe", os.MFD_CLOEXEC))
    except (AttributeError, OSError) as error:
        return getattr(error, "errno", None) in _OF_LIMITS
    return True


def shared_path(descriptor: int, process: int | None = None) -> str:
    """Returns the path under which processes of this user can open a file of this process, or of another one.

    Without ``/proc``, nothing is there, and whoever opens it gets `FileNotFoundError`.
    """
    return f"/proc/{os.getpid() if process is None else process}/fd/{descriptor}"


def is_memory(place: int | str, name: str) -> bool:
    """Returns whether a descriptor of this process, or a `shared_path`, leads to memory that was made under this name.

    A path leads to another file once its process has closed the memory.

    Raises:
        OSError: there is nothing.
    """
    path = place if isinstance(place, str) else f"/proc/self/fd/{place}"
    return os.readlink(path).startswith((f"/memfd:{_PREFIX}{name} ", f"{_SHARED}/{_PREFIX}{name}-"))


def has_shared_paths() -> bool:
    """Whether this process's files have a `shared_path`."""
    return os.path.isdir("/proc/self/fd")


@lru_cache(maxsize=1)
def is_visible() -> bool:
    """Whether other processes of this user can open this process's files by their `shared_path`.

    They cannot if this process asked the kernel to hide it (prctl(2), ``PR_SET_DUMPABLE``).
    """
    try:
        return has_shared_paths() and ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
    except (OSError, AttributeError):
        return False


def shared_memory_room() -> tuple[int, int] | None:
    """Returns the free and all bytes of ``/dev/shm``; ``None`` without it."""
    try:
        space = os.statvfs(_SHARED)
    except OSError:
        return None
    return space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize


def shared_directory() -> str:
    """Returns a directory in memory that all users may write to, or else that of temporary files."""
    return _SHARED if os.access(_SHARED, os.W_OK | os.X_OK) else tempfile.gettempdir()


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Takes the room for a file in ``/dev/shm`` now. Without room, a write through a mapping would kill the process."""
    if size_bytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
