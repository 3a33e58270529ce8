"""``python -m parquetry.common.sidecar serve``: a server in a process of its own, ended by one signal.

It serves the pipeline of a JSON file (``json.dump(pipeline.to_json(), file)``) until SIGTERM or SIGINT, and then exits
with status 0. With ``-`` the pipeline is one line on standard input, and the server ends when that is closed and its
last client has left, and leaves SIGINT to whoever started it: that is how a trainer starts one of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ParquetryError, PipelineError
from ..transport.processes import start_vital
from .endpoints import private_directory

if TYPE_CHECKING:
    from .server import ArrowServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is told to stop; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="parquetry server: %(levelname)s %(message)s", level=logging.WARNING)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN if options.pipeline == "-" else lambda *_: stop.set())
    directory = None
    try:
        if options.listen is None:
            directory = private_directory()
        _run(options, options.listen or f"unix:{directory}/control", stop)
    except (ParquetryError, OSError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


def _run(options: argparse.Namespace, listen: str, stop: threading.Event) -> None:
    from ..pipeline.pipeline import Pipeline  # --help needs none of it
    from .server import ArrowServer

    value = _read(options.pipeline)
    sys.path[:] = [*value.get("sys_path", []), *(path for path in sys.path if path not in value.get("sys_path", []))]
    pipeline = Pipeline.from_json(value.get("pipeline", value))
    if "versions" in value:
        pipeline.hold_to(value["versions"])
    with ArrowServer(
        pipeline,
        listen,
        token_file=options.token_file,
        tls_cert_file=options.tls_cert,
        tls_key_file=options.tls_key,
    ) as server:
        print(f"serving at {server.address}", flush=True)
        if options.pipeline == "-":
            start_vital(partial(_end_with_stdin, server, stop), name="parquetry-stdin")
        stop.wait()


def _read(path: str) -> dict[str, Any]:
    """The pipeline's JSON.

    Raises:
        PipelineError: there is none.
    """
    try:
        if path == "-":
            text = sys.stdin.readline()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"pipeline '{path}': expected the JSON of a pipeline, got {error}. Write it with: "
            "json.dump(pipeline.to_json(), file)."
        ) from error
    if not isinstance(value, dict) or not ({"pipeline", "version"} & value.keys()):
        raise PipelineError(f"pipeline '{path}': expected the JSON object of Pipeline.to_json(), got {text[:80]!r}.")
    return value


def _end_with_stdin(server: ArrowServer, stop: threading.Event) -> None:
    sys.stdin.read()
    server.drain()
    stop.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parquetry.common.sidecar serve",
        description="Serves a pipeline's batches as Arrow IPC streams, until SIGTERM or SIGINT.",
    )
    parser.add_argument("pipeline", metavar="PIPELINE.json", help="what Pipeline.to_json() gave; - = standard input")
    parser.add_argument("--listen", metavar="ADDRESS", help="unix:PATH or tcp://127.0.0.1:PORT; a new socket otherwise")
    parser.add_argument("--token-file", metavar="FILE", help="clients must know its first line")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    return parser
