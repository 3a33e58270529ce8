"""``python -m parquetry.common.sidecar --fd N``: the reader process of a trainer; ``serve``: its own batch server."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from ..base.errors import ResourceError, SidecarError, limit_reached
from ..base.process.exit_watch import end_with_parent
from ..base.process.lazy_names import without_collections
from ..transport.processes import FAILED, RESTARTS_FLAG, SHARED, STALL_TIMEOUT_FLAG, end_process
from ..transport.sidecar.channel import Channel, read_request
from ..transport.sidecar.protocol import MessageType
from ..transport.sidecar.worker_process import WorkerProcess, exit_with, start_worker


def main() -> None:
    """Serves the inherited socket until the trainer closes it or ends."""
    parser = argparse.ArgumentParser(prog="python -m parquetry.common.sidecar", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the trainer's socket")
    parser.add_argument(SHARED, action="store_true", help="allow several requests, one after the other")
    parser.add_argument(RESTARTS_FLAG, help="how often the trainer restarts it if it dies; ignored here")
    parser.add_argument(STALL_TIMEOUT_FLAG, help="how long the trainer lets it stay inactive; ignored here")
    arguments = parser.parse_args()
    end_with_parent()
    # The trainer handles Ctrl-C and ends this process by closing the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Here and in the workers, each processor works on its own image.
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    connection = socket.socket(fileno=arguments.fd)
    channel = Channel(connection)
    try:
        first = channel.receive()
        if first is None:
            return
        if first.type != MessageType.OPEN:
            raise SidecarError(f"sidecar message: expected OPEN first, got {first.type.name}.")
        count = read_request(first).get("start_workers", 0)
        start = _worker_starter(channel) if count else start_worker
        started = [start() for _ in range(count)]
    except Exception as error:
        _end_with(channel, error)
    logging.basicConfig(format="parquetry sidecar: %(levelname)s %(message)s", level=logging.WARNING)

    with without_collections():  # after the workers have started, because they need only a part of what this imports
        from .server import Server

        gc.freeze()  # collections leave out what these made

    # Works even during planning. It comes this late because a process cannot be forked once it has threads.
    try:
        exit_with(connection)
    except ResourceError as error:
        _end_with(channel, error)
    server = Server(channel, start, started)
    try:
        server.serve(first)
        server.close()
    except BaseException:
        end_process()
    os._exit(0)  # without waiting for threads that still decode


def _end_with(channel: Channel, error: Exception) -> NoReturn:
    """Ends the process. If it has too few resources, the trainer is told so: it would only start another in vain."""
    if not limit_reached(error):
        end_process()
    from .connection import ClientConnection

    ClientConnection(channel).send_error(0, error)
    os._exit(FAILED)


def _worker_starter(channel: Channel) -> Callable[[], WorkerProcess]:
    """Returns the function that starts workers. In the template and its workers, this never returns."""

    with without_collections():
        from ..transport.sidecar.forked_worker import Template, can_fork  # imports everything that a worker needs

        gc.freeze()

    return Template(in_child=channel.close).start if can_fork() else start_worker


if __name__ == "__main__":
    main()
