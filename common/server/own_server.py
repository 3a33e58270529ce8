"""`OwnServer`: a server process that a trainer starts for itself, and that ends with the trainer."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from ..base.errors import SidecarError
from ..transport.children import start_child
from ..transport.processes import python_command, report, start_vital
from ..transport.served.address import ServerAddress
from ..transport.sidecar.request import request_text

if TYPE_CHECKING:
    from ..pipeline.pipeline import Pipeline

_END_S = 5.0
_running: set[OwnServer] = set()


class OwnServer:
    """A server process for one pipeline of this process, on a socket that only this user can access.

    Raises:
        SidecarError: the server could not be started.
        PipelineError: the pipeline cannot be sent to another process.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        request = request_text({"pipeline": pipeline.to_json(), "sys_path": sys.path, "versions": pipeline.versions})
        command = python_command("parquetry.common.server")
        try:
            self._process, _ = start_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except (OSError, RuntimeError) as error:
            raise SidecarError(f"server could not be started with {command}: {error}.") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._closed = False
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        with self._process.stdout as output:
            line = output.readline().decode()
        if not line.startswith("serving at "):
            self._process.kill()
            code = self._process.wait()
            self._process.stdin.close()
            raise SidecarError(
                f"server for this pipeline: expected it to start, got exit status {code}. "
                "Its messages are on standard error."
            )
        self.address = ServerAddress(url=line.removeprefix("serving at ").strip())
        _running.add(self)

    @property
    def pid(self) -> int:
        """Process ID of the server."""
        return self._process.pid

    def close(self) -> None:
        """Lets the server end after its last reader, without waiting for it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        start_vital(self._reap, name="parquetry-reap", failed=report)

    def end(self) -> None:
        """Ends the server immediately and disconnects its readers. Idempotent."""
        self._closed = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _running.discard(self)

    def _reap(self) -> None:
        self._process.wait()
        _running.discard(self)


def _end_all() -> None:
    for server in list(_running):
        server.end()


atexit.register(_end_all)
