"""Events of a trace. Each thread appends whole lines to one file, a line per job, row group or wait.

Without a trace, the cost is one comparison. `recording.trace` starts a trace and converts the lines to a file.
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
_lock = threading.RLock()  # reentrant: a finaliser may run during `note`
_open: tuple[str, int] | None = None  # the current file for events, and its descriptor


def spool() -> str | None:
    """Returns the file for the events of new counters while this process is traced."""
    return os.environ.get(ENVIRONMENT)


def note(path: str, what: str, begin: float, end: float) -> None:
    """Appends an event. Failures are ignored."""
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
    """Whether this process has a trace file open."""
    return _open is not None


def close() -> None:
    """Closes the file of a trace that has ended. The next event opens it again."""
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
    """Resets a forked child: another thread of its parent may have held the lock."""
    global _lock
    _lock = threading.RLock()
    _close()


os.register_at_fork(after_in_child=_forget)
