"""``python -m parquetry.common.sidecar --fd N``: the reader process of one trainer; ``serve``: see `arrow_stream`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

from ..errors import SidecarError
from ..transport.processes import RESTARTS_FLAG, SHARED, end_process
from ..transport.sidecar.channel import Channel, read_request
from ..transport.sidecar.protocol import MessageType
from ..transport.sidecar.stream import exit_with
from ..transport.sidecar.worker_process import WorkerProcess, start_worker


def main() -> None:
    """Serves the inherited socket until the trainer closes it or is gone."""
    if sys.argv[1:2] == ["serve"]:
        from ..arrow_stream.command import main as serve

        sys.exit(serve(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m parquetry.common.sidecar", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the trainer's socket")
    parser.add_argument(SHARED, action="store_true", help="it may open several requests, one after the other")
    parser.add_argument(RESTARTS_FLAG, help="how often the trainer starts it again if it dies; for the trainer alone")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's; it ends us by closing the connection
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")  # here and in workers: as many images at once as processors
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
    except Exception:
        end_process()
    logging.basicConfig(format="parquetry sidecar: %(levelname)s %(message)s", level=logging.WARNING)

    from .server import Server  # after the workers have started: they need but a part of it

    exit_with(connection)  # also in the middle of planning; not before, because a process with threads cannot be forked
    server = Server(channel, start, started)
    try:
        server.serve(first)
        server.close()
    except BaseException:
        end_process()
    os._exit(0)  # nothing here may wait for a thread that is decoding for nobody


def _worker_starter(channel: Channel) -> Callable[[], WorkerProcess]:
    """What starts a worker, now and later; a forked one never comes back from here."""

    from ..transport.sidecar.forked_worker import Template, can_fork  # with all that a worker imports

    return Template(in_child=channel.close).start if can_fork() else start_worker


if __name__ == "__main__":
    main()
