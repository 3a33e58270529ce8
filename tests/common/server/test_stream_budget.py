"""All streams of a server share its memory, and their number is limited."""

from __future__ import annotations

import socket
from typing import Any

import pyarrow as pa
import pytest
from builders import Built, built_once
from spies import spied

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.platform.processes import usable_memory_bytes
from parquetry.common.server import ArrowServer, ClientLimits, ServerAddress, sending, serve, server_process
from parquetry.common.server.sending import own_steps
from parquetry.common.server.stream_budget import StreamBudget
from parquetry.common.transport.served.client import Connection, ask_once
from parquetry.common.transport.served.wire import SocketReader, StreamRequest

from .served import elements, socket_url

GIB = 1 << 30

built = built_once([[20, 30]], names=("id", "image"))


def endless(server: ArrowServer, *, shared: bool = False) -> Any:
    """An iterator that has begun."""
    iterator = iter(Pipeline(address=ServerAddress(url=server.address, shared=shared)))
    next(iterator)
    return iterator


def until_nobody(server: ArrowServer) -> None:
    server._listener.wait()
    assert server.budget.streams == 0


@pytest.mark.parametrize("total", [1, 1000, 3 * GIB, 64 * GIB])
@pytest.mark.parametrize("wanted", [1, 1 << 20, GIB])
def test_streams_share_the_memory_and_none_is_refused_for_it(total: int, wanted: int) -> None:
    most = 512
    budget = StreamBudget(ClientLimits(total_memory_bytes=total, max_streams=most))
    shares = [budget.open_stream(wanted) for _ in range(most)]
    granted = [share.memory_bytes for share in shares]
    assert sum(granted) <= max(total, most)  # each gets a byte
    assert all(min(wanted, total // (4 * most)) <= each <= wanted for each in granted)
    assert granted == sorted(granted, reverse=True)
    for share in shares:
        share.close()
        share.close()
    assert budget.open_stream(wanted).memory_bytes == granted[0]


def test_a_few_streams_get_all_they_want_by_default() -> None:
    budget = StreamBudget(ClientLimits(total_memory_bytes=64 * GIB))
    assert [budget.open_stream(GIB).memory_bytes for _ in range(16)] == [GIB] * 16
    assert usable_memory_bytes() > 1 << 20


def test_the_first_stream_that_gets_less_memory_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    budget = StreamBudget(ClientLimits(total_memory_bytes=4 * GIB))
    for _ in range(9):
        budget.open_stream(GIB)
    assert caplog.text.count("of memory") == 1
    assert "Raise the limit total_memory_bytes" in caplog.text


def test_a_trainers_own_server_gives_each_stream_the_memory_it_wants() -> None:
    budget = StreamBudget(ClientLimits.parse(server_process._OWN_LIMITS))
    assert [budget.open_stream(64 * GIB).memory_bytes for _ in range(512)] == [64 * GIB] * 512


def test_a_server_at_its_stream_limit_opens_another_when_one_is_closed(built: Built) -> None:
    limits = ClientLimits(max_streams=2)
    with socket_url() as url, serve(built.pipeline("id").repeat().batch(4), url, limits=limits) as server:
        first, second = endless(server), endless(server)
        with pytest.raises(PipelineError, match=r"expected at most 2 streams at once.*limit max_streams"):
            endless(server)
        assert len(Pipeline(address=server.address).take(3)) == 3  # requests that are not streams are answered
        first.close()
        second.close()
        until_nobody(server)
        endless(server).close()


def test_the_memory_of_a_stream_is_its_share(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = spied(monkeypatch, sending, "open_steps", lambda pipeline, stream: pipeline.options.memory_limit)
    budget = StreamBudget(ClientLimits(max_streams=4, total_memory_bytes=8 << 20))
    steps = [own_steps(built.pipeline("id"), StreamRequest(), budget) for _ in range(4)]
    for stream in steps:
        next(stream)
    assert limits == [2 << 20, 1 << 20, 1 << 20, 1 << 20]
    for stream in steps:
        stream.close()
    assert budget.streams == 0


def test_the_readers_of_a_shared_epoch_count_as_one_stream(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(9, seed=1).batch(2)
    with serve(pipeline, limits=ClientLimits(max_streams=1)) as server:
        first, second = endless(server, shared=True), endless(server, shared=True)
        with pytest.raises(PipelineError, match="limit max_streams"):
            endless(server)
        first.close()
        second.close()
        until_nobody(server)
        endless(server).close()


def test_readers_of_an_endpoint_are_streams(built: Built) -> None:
    limits = ClientLimits(max_streams=1)
    with socket_url() as url, serve(built.pipeline("id").repeat().batch(4), url, limits=limits) as server:
        control = Connection(ServerAddress(url=url))
        path = str(control.ask({"do": "endpoint"})["endpoint"]).removeprefix("unix:")
        readers = []
        for _ in range(2):
            readers.append(socket.socket(socket.AF_UNIX))
            readers[-1].connect(path)
            stream = pa.ipc.open_stream(pa.PythonFile(SocketReader(readers[-1]), mode="r"))
            _, told = stream.read_next_batch_with_custom_metadata()
        assert b"limit max_streams" in told[b"parquetry.error"]
        for reader in readers:
            reader.close()
        control.close()
        until_nobody(server)


def test_a_refused_client_takes_no_place(built: Built) -> None:
    with serve(built.pipeline("id"), limits=ClientLimits(max_connections=2)) as server:
        address = ServerAddress.of(server)
        kept = [Connection(address) for _ in range(2)]
        assert [each.ask({"do": "length"}) for each in kept] == [{"length": 50}] * 2
        for _ in range(20):
            with pytest.raises(PipelineError, match="limit max_connections"):
                ask_once(address, {"do": "length"})
        for each in kept:
            each.close()
        until_nobody(server)
        # The server notices a moment later that the pipeline's first connection is closed.
        assert len(elements(Pipeline(address=server.address).take(2))) == 2
