"""The server as a process: its output, its exit, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from builders import Built, built_once
from processes import PATIENCE_S, eventually, gone

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError, SidecarError
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.server.endpoints import ReaderEndpoint
from parquetry.common.server.own_server import OwnServer
from parquetry.common.server.server_process import serve_until_stopped

from .served import elements, server_process, socket_url

built = built_once([[20, 30], [25]], names=("id", "image"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_the_server_and_nothing_stays(built: Built, tmp_path: Path, number: int) -> None:
    pipeline = built.pipeline("id").repeat().batch(4)
    with socket_url() as url, server_process(pipeline, tmp_path, "--listen", url) as (process, address):
        assert address == url
        endless = iter(Pipeline(address=address))
        assert next(endless)["id"].tolist() == [0, 1, 2, 3]
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE_S) == 0
        assert not os.path.exists(url.removeprefix("unix:"))
        assert gone(children) == []
        with pytest.raises(SidecarError, match="expected more data"):
            for _ in endless:
                pass
        assert process.communicate()[1] == ""


@pytest.mark.slow
def test_the_server_outlives_a_client_that_is_killed(built: Built, tmp_path: Path) -> None:
    pipeline = built.pipeline("image").repeat().batch(4)
    program = "import sys; from parquetry.common import Pipeline; next(iter(Pipeline(address=sys.argv[1]))); print(1, flush=True); sys.stdin.read()"
    with server_process(pipeline, tmp_path, "--listen", "tcp://127.0.0.1:0") as (process, address):
        command = [sys.executable, "-c", program, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"1\n"
            client.kill()
        assert len(elements(Pipeline(address=address).take(5))) == 5
        assert process.poll() is None


@pytest.mark.slow
def test_functions_run_in_the_server_with_its_own_workers(built: Built, tmp_path: Path) -> None:
    pipeline = built.pipeline("id", executor="sidecar").transform(lambda row: {"id": row["id"] * 2}).batch(4)
    with server_process(pipeline, tmp_path, "--listen", "tcp://127.0.0.1:0") as (process, address):
        assert elements(Pipeline(address=address))[0]["id"] == [0, 2, 4, 6]
        process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "expected the JSON of a pipeline.*Write it with: json.dump"),
        ("[1]", "expected the JSON object of Pipeline.to_json"),
        ('{"version": 9}', "expected version 1"),
    ],
)
def test_a_file_that_is_not_a_pipeline_is_reported(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "pipeline.json"
    file.write_text(text)
    with pytest.raises(PipelineError, match=why):
        serve_until_stopped(str(file), None)


def test_other_machines_are_kept_out(built: Built) -> None:
    with pytest.raises(PipelineError, match="serves its own machine only"):
        serve_until_stopped(built.pipeline("id"), "tcp://0.0.0.0:0")


def test_an_own_server_ends_when_its_last_reader_has(built: Built) -> None:
    pipeline = built.pipeline("id").batch(4)
    server = OwnServer(pipeline)
    directory = Path(server.address.endpoint.path).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    reading = iter(Pipeline(address=server.address))
    first = next(reading)["id"].tolist()
    server.close()
    server.close()
    assert [first, *(batch["id"].tolist() for batch in reading)] == [batch["id"] for batch in elements(pipeline)]
    reading.close()
    assert gone([server.pid]) == []
    assert eventually(lambda: not directory.exists())


def test_an_own_server_that_cannot_start_is_an_error(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    pipeline = built.pipeline("id").batch(4)
    monkeypatch.setattr(Pipeline, "to_json", lambda self: {"version": 9})
    with pytest.raises(SidecarError, match="expected it to start, got exit status 1"):
        OwnServer(pipeline)


def test_a_readers_endpoint_gives_the_next_epoch_to_each_connection(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(20, seed=3).batch(4)
    server = OwnServer(pipeline)
    endpoint = ReaderEndpoint(server.address, ())
    assert endpoint.latest is None
    endpoint.start_next_at(Cursor(iteration=4, start=2))
    assert endpoint.latest is None
    endpoint.close()
    endpoint.close()
    server.end()
