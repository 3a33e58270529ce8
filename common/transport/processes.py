"""How our child processes are started, and how they end when a part of them fails.

`python_command`: ``python -m`` puts the working directory first on the import path, so a file there can shadow a module
of the standard library. Python 3.11 has ``-P`` to prevent that. Our way works with every Python, including those of
other machines. If user functions need the import paths of the parent, those travel in the request.

`start_vital`: a thread that dies silently leaves its consumers waiting forever. All threads of a sidecar, a worker or a
server are therefore started this way.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

from ..base.errors import SidecarError
from ..base.threads import start_thread

_RUN = (
    "import os, sys; os.environ.setdefault('OPENBLAS_NUM_THREADS', '1'); "  # each worker has a processor of its own
    "sys.path[:1] == [''] and sys.path.pop(0); sys.argv.pop(0); "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
SHARED = "--shared"
"""Argument that lets a sidecar open several requests, one after the other."""
RESTARTS_FLAG = "--restarts"
"""Argument that tells the op how often to restart a sidecar that dies before it has answered."""
STALL_TIMEOUT_FLAG = "--stall-timeout-ms"
"""Argument that tells the op how long a sidecar that has not answered yet may stay inactive, in milliseconds."""
FAILED = 70
"""The exit status of a process in which a vital thread failed."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module with this Python, as isolated as this process.

    ``PARQUETRY_PYTHON`` names another Python, for programs that embed Python.

    Raises:
        SidecarError: nothing says which Python this is.
    """
    python = os.environ.get("PARQUETRY_PYTHON") or sys.executable
    if not python:
        raise SidecarError(
            "sidecar: expected the path of this Python in sys.executable, got an empty one, as in programs that embed "
            "Python. Set the environment variable PARQUETRY_PYTHON to a Python in which parquetry is installed, or use "
            "executor='threads'."
        )
    isolation = {"-I": sys.flags.isolated, "-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    flags = [flag for flag, is_set in isolation.items() if is_set]
    return [python, *flags, "-c", _RUN, module, *arguments]


def report() -> None:
    """Prints the current exception to stderr."""
    with suppress(Exception):  # stderr may be closed
        traceback.print_exc()
        sys.stderr.flush()


def end_process() -> None:
    """Reports the current exception, and ends this process at once."""
    report()
    os._exit(FAILED)


def start_vital(
    body: Callable[[], object], *, name: str, failed: Callable[[], object] = end_process
) -> threading.Thread:
    """Starts a daemon thread.

    Args:
        failed: called inside ``except`` when ``body`` raises. It must wake everyone who waits for the thread. The
            default ends the process, which is right in every process that runs only our code.

    Raises:
        ResourceError: the system allows no more threads.
    """

    def run() -> None:
        try:
            body()
        except BaseException:
            failed()

    thread = threading.Thread(target=run, name=name, daemon=True)
    start_thread(thread)
    return thread
