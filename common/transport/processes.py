"""Processes of ours: how each is started, and how it ends when a part of it fails.

`python_command`: ``python -m`` puts the working directory first, where any file called like a module of the standard
library is imported instead of it. Python 3.11 has ``-P`` against that; this way works with every Python, also with
another machine's. Where a child needs the paths of its parent, for user functions, they travel in its request.

`start_vital`: a thread that dies in silence leaves everybody who waits for it waiting for ever. So no thread of a
sidecar, a worker or a server is started in any other way.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

_RUN = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); sys.argv.pop(0); "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
SHARED = "--shared"
"""Argument of a sidecar that may open several requests, one after the other."""
RESTARTS_FLAG = "--restarts"
"""Argument of a sidecar: how often the op starts it again if it dies before it has said so itself."""
FAILED = 70
"""Exit status of a process that ended because one of its threads failed."""


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module with this Python, isolated as far as this process is.

    ``PARQUETRY_PYTHON`` names another Python, for a program that embeds this one.
    """
    isolation = {"-I": sys.flags.isolated, "-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    flags = [flag for flag, is_set in isolation.items() if is_set]
    return [os.environ.get("PARQUETRY_PYTHON") or sys.executable or "python3", *flags, "-c", _RUN, module, *arguments]


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
