"""Threads that a process cannot do without: one that fails is reported, and ends what waits for it.

A thread that dies in silence leaves everybody who waits for it waiting for ever. So no thread of a sidecar, a worker or
a server is started in any other way.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

FAILED = 70
"""Exit status of a process that ended because one of its threads failed."""


def report() -> None:
    """Prints the exception that is being handled to stderr."""
    with suppress(Exception):  # stderr may be gone
        traceback.print_exc()
        sys.stderr.flush()


def end_process() -> None:
    """Reports the exception that is being handled, and ends this process at once."""
    report()
    os._exit(FAILED)


def start_vital(
    body: Callable[[], object], *, name: str, failed: Callable[[], object] = end_process
) -> threading.Thread:
    """Starts a daemon thread.

    Args:
        failed: called inside ``except`` when ``body`` raises; must wake everybody who waits for the thread. Ends the
            process unless given, which is right in every process that is ours alone.
    """

    def run() -> None:
        try:
            body()
        except BaseException:
            failed()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
