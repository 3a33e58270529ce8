"""``python -m parquetry.common.sidecar --fd N``: the reader process of one trainer; ``serve``: see `arrow_stream`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys

from .channel import Channel, read_request
from .protocol import MessageType
from .worker_process import start_worker


def main() -> None:
    """Serves the inherited socket until the trainer closes it or is gone."""
    if sys.argv[1:2] == ["serve"]:
        from ..arrow_stream.command import main as serve

        sys.exit(serve(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m parquetry.common.sidecar", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the trainer's socket")
    arguments = parser.parse_args()
    logging.basicConfig(format="parquetry sidecar: %(levelname)s %(message)s", level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's; it ends us by closing the connection
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")  # here and in workers: as many images at once as processors
    channel = Channel(socket.socket(fileno=arguments.fd))
    first = channel.receive()
    if first is None or first.type != MessageType.OPEN:
        return
    started = [start_worker() for _ in range(read_request(first).get("start_workers", 0))]

    from .server import Server  # after the workers have started: they import while we do

    server = Server(channel, started)
    try:
        server.serve(first)
    finally:
        server.close()
        os._exit(0)  # nothing here may wait for a thread that is decoding for nobody


if __name__ == "__main__":
    main()
