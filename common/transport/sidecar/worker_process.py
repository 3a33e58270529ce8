"""A worker process as seen by its reader, and how to start one as a new Python process.

Workers start this way where the reader cannot be forked (see `forked_worker`).
"""

from __future__ import annotations

import socket
import subprocess
from typing import Protocol

from ...base.process.dataclass import dataclass
from ..children import start_child
from ..processes import python_command


class Process(Protocol):
    """The part of the `subprocess.Popen` interface that the owner of a worker uses."""

    pid: int

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the end. Returns the exit code, or minus the signal that ended it; ``None`` if unknown.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """

    def kill(self) -> None:
        """Kills the process, unless it has ended."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker process and our end of its connection."""

    process: Process
    connection: socket.socket

    def exit_code(self) -> int | None:
        """Returns how the process ended, as `Process.wait` does. Kills it if it does not end by itself."""
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def end(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


def start_worker(module: str = "worker") -> WorkerProcess:
    """Starts a worker, which waits for its program, or another module of this package that serves a socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        command = python_command(f"parquetry.common.transport.sidecar.{module}", "--fd", str(theirs.fileno()))
        process, _ = start_child(command, hands_over=theirs, stdin=subprocess.DEVNULL)
    except (OSError, RuntimeError):
        ours.close()
        theirs.close()
        raise
    return WorkerProcess(process, ours)
