"""A pytest plugin that hides what only Linux has, so that tests run as on a laptop: ``make test-laptop``.

It removes functions and constants of the standard library; and for the code of parquetry, nothing exists below ``/proc``, ``/sys``
and ``/dev/shm``. It cannot show that macOS works, only that nothing of this is needed. Load it before parquetry: ``-p laptop``.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import mmap
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any

HIDDEN = {
    fcntl: ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"),
    mmap: ("MADV_HUGEPAGE",),
    os: (
        *("eventfd", "memfd_create", "pidfd_open", "posix_fadvise", "posix_fallocate", "preadv", "pwritev"),
        *("sched_getaffinity", "sched_setaffinity", "O_TMPFILE", "O_DIRECT", "O_PATH", "RWF_NOWAIT"),
    ),
    signal: ("pidfd_send_signal",),
    socket: ("MSG_CMSG_CLOEXEC", "SOCK_SEQPACKET", "SO_PEERCRED"),
}
PLACES = ("/proc/", "/sys/", "/dev/shm")
ASKING = ("access", "listdir", "lstat", "open", "readlink", "scandir", "stat", "statvfs")


def hide() -> None:
    """Hides everything in this process."""
    for module, names in HIDDEN.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]  # what it found out when it was imported
    builtins.open = _without_places(open)  # type: ignore[assignment]
    for name in ASKING:
        setattr(os, name, _without_places(getattr(os, name)))


def _without_places(function: Callable[..., Any]) -> Callable[..., Any]:
    def without(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if text.startswith(PLACES) and _is_for_parquetry():
            if function is access:
                return False
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return function(path, *arguments, **options)

    return without


def _is_for_parquetry() -> bool:
    """Whether the nearest caller outside the standard library is parquetry."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name not in sys.stdlib_module_names or name == "__main__":
            return bool(name == "parquetry")
        frame = frame.f_back  # type: ignore[assignment]
    return False


access = os.access
assert not [name for name in sys.modules if name.startswith("parquetry")], "load it before parquetry: -p laptop"
hide()
