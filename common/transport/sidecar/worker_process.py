"""A worker process as its reader sees it, and how one is started by itself.

So start the replacements of workers that died, and all workers where the reader cannot be forked (`forked_worker`).
"""

from __future__ import annotations

import socket
import subprocess
from dataclasses import dataclass
from typing import Protocol

from ..processes import python_command


class Process(Protocol):
    """What a worker's owner asks of the process; the part of `subprocess.Popen` that it needs."""

    pid: int

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, or minus the signal that ended it, once it has ended; ``None`` if nobody knows.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """

    def kill(self) -> None:
        """Ends it at once, unless it has ended."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker process and our end of its connection."""

    process: Process
    connection: socket.socket

    def exit_code(self) -> int | None:
        """How it ended, as `Process.wait` (waits for that; one that does not end by itself is killed)."""
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
    """Starts one worker, which waits for its program; or another module of this package that serves a socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    command = python_command(f"parquetry.common.transport.sidecar.{module}", "--fd", str(theirs.fileno()))
    try:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return WorkerProcess(process, ours)
