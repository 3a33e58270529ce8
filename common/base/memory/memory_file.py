"""`memory_file`: anonymous memory with a descriptor, which other processes can map."""

from __future__ import annotations

import errno
import os
import tempfile
from functools import lru_cache

_PREFIX = "parquetry-"
_SHARED = "/dev/shm"
_OF_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # which pass


def memory_file(name: str, size_bytes: int = 0) -> int:
    """Returns a descriptor of new memory, filled with zeros. It is closed on exec, and has no name in a file system.

    A sandbox (seccomp, gVisor) may forbid memfd. The memory is then an unlinked file in ``/dev/shm``,
    with room for ``size_bytes``.

    Args:
        name: what ``/proc`` shows, after ``parquetry-``.

    Raises:
        OSError: there is neither, or no room, or too many files are open.
    """
    if has_memfd():
        descriptor = os.memfd_create(_PREFIX + name, os.MFD_CLOEXEC)
        reserve = os.ftruncate
    else:
        descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{name}-", dir=_SHARED)
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


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Takes the room for a file in ``/dev/shm`` now. Without room, a write through a mapping would kill the process."""
    if size_bytes:
        os.posix_fallocate(descriptor, 0, size_bytes)
