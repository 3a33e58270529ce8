"""Events of a trace: each thread appends one line for each job, row group or wait to one file, whole.

A trace that nobody asked for costs a look at one number; `recording.trace` asks for one, and makes a file of the lines.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress

ENVIRONMENT = "PARQUETRY_TRACE_SPOOL"
_NAMES = {
    "WAIT_S": "wait for an element",
    "STORE_S": "read",
    "PARQUET_S": "load a row group",
    "DECODE_S": "decode",
    "TRANSFORM_S": "transform",
    "HAND_OVER_S": "hand over",
    "BLOCKED_S": "wait for a row group",
}
_lock = threading.RLock()  # also for a finaliser in the middle of a note
_open: tuple[str, int] | None = None  # the file that events go to now, and its descriptor


def spool() -> str | None:
    """The file that events of new counters go to while this process is traced."""
    return os.environ.get(ENVIRONMENT)


def note(path: str, what: str, begin: float, end: float) -> None:
    """Appends an event; of no effect where that fails."""
    event = {
        "name": _NAMES.get(what, what),
        "ph": "X",
        "ts": begin * 1e6,
        "dur": (end - begin) * 1e6,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
    }
    named = threading.current_thread().name
    line = (json.dumps({**event, "args": {"thread": named}}) + "\n").encode()
    with _lock, suppress(OSError):
        os.write(_opened(path), line)


def is_open() -> bool:
    """Whether this process holds a trace's file open."""
    return _open is not None


def close() -> None:
    """Lets go of the file of a trace that has ended; another event opens it again."""
    with _lock:
        _close()


def _opened(path: str) -> int:
    global _open
    if _open is None or _open[0] != path:
        _close()
        _open = path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    return _open[1]


def _close() -> None:
    global _open
    held, _open = _open, None
    if held is not None:
        with suppress(OSError):
            os.close(held[1])


def _forget() -> None:
    """In a forked child: another thread of its parent may have held the lock."""
    global _lock
    _lock = threading.RLock()
    _close()


os.register_at_fork(after_in_child=_forget)
