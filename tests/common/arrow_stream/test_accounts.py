"""All connections of a peer share one account: its streams, their memory, and processor time."""

from __future__ import annotations

import socket
from typing import Any

import pyarrow as pa
import pytest
from builders import Built, built_once

from parquetry.common import Pipeline
from parquetry.common.arrow_stream import ArrowServer, ClientLimits, ServerAddress, command, sending, serve
from parquetry.common.arrow_stream.accounts import Account, Accounts, peer_of
from parquetry.common.arrow_stream.sending import own_steps
from parquetry.common.arrow_stream.shared import SharedEpochs
from parquetry.common.errors import PipelineError
from parquetry.common.order.cursor import Cursor
from parquetry.common.transport.served.client import Connection, ask_once
from parquetry.common.transport.served.wire import SocketReader
from parquetry.common.transport.source import usable_memory_bytes

from .served import elements, socket_url

GIB = 1 << 30


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


built = built_once([[20, 30]], names=("id", "image"))


def endless(server: ArrowServer, *, shared: bool = False) -> Any:
    """An iterator that has begun."""
    iterator = iter(Pipeline(address=ServerAddress(url=server.address, shared=shared)))
    next(iterator)
    return iterator


def until_nobody(server: ArrowServer) -> None:
    server._listener.wait()
    assert len(server._accounts) == 0


@pytest.mark.parametrize("total", [1, 1000, 3 * GIB, 64 * GIB])
@pytest.mark.parametrize("wanted", [1, 1 << 20, GIB])
def test_the_streams_of_a_peer_share_its_memory_and_none_is_refused_for_it(total: int, wanted: int) -> None:
    most = 512
    account = Account("a peer", ClientLimits(total_memory_bytes=total, max_streams=most))
    shares = [account.open_stream(wanted) for _ in range(most)]
    granted = [share.memory_bytes for share in shares]
    assert sum(granted) <= max(total, most)  # each gets a byte
    assert all(min(wanted, total // (4 * most)) <= each <= wanted for each in granted)
    assert granted == sorted(granted, reverse=True)
    for share in shares:
        share.close()
        share.close()
    assert account.open_stream(wanted).memory_bytes == granted[0]


def test_a_few_streams_get_all_they_want_by_default() -> None:
    account = Account("a peer", ClientLimits(total_memory_bytes=64 * GIB))
    assert [account.open_stream(GIB).memory_bytes for _ in range(16)] == [GIB] * 16
    assert usable_memory_bytes() > 1 << 20


def test_the_first_stream_that_gets_less_memory_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    account = Account("a peer", ClientLimits(total_memory_bytes=4 * GIB))
    for _ in range(9):
        account.open_stream(GIB)
    assert caplog.text.count("of memory") == 1
    assert "Raise the limit total_memory_bytes" in caplog.text


def test_a_trainers_own_server_gives_each_stream_the_memory_it_wants() -> None:
    account = Account("a peer", ClientLimits.parse(command._OWN_LIMITS))
    assert [account.open_stream(64 * GIB).memory_bytes for _ in range(512)] == [64 * GIB] * 512


def test_a_peer_at_its_stream_limit_gets_another_when_one_is_closed(built: Built) -> None:
    limits = ClientLimits(max_streams=2)
    with socket_url() as url, serve(built.pipeline("id").repeat().batch(4), url, limits=limits) as server:
        first, second = endless(server), endless(server)
        with pytest.raises(PipelineError, match=r"expected at most 2 streams from user \d+ at once.*limit max_streams"):
            endless(server)
        assert len(Pipeline(address=server.address).take(3)) == 3  # requests that are not streams are answered
        first.close()
        second.close()
        until_nobody(server)
        endless(server).close()


def test_the_memory_of_a_stream_is_its_share(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    opened = sending.open_steps

    def noted(pipeline: Pipeline, cursor: Cursor, *, strict_nulls: bool) -> Any:
        limits.append(pipeline.options.memory_limit)
        return opened(pipeline, cursor, strict_nulls=strict_nulls)

    monkeypatch.setattr(sending, "open_steps", noted)
    account = Account("a peer", ClientLimits(max_streams=4, total_memory_bytes=8 << 20))
    steps = [own_steps(built.pipeline("id"), Cursor(), strict_nulls=True, account=account) for _ in range(4)]
    for stream in steps:
        next(stream)
    assert limits == [2 << 20, 1 << 20, 1 << 20, 1 << 20]
    for stream in steps:
        stream.close()
    assert account.streams == 0


def test_the_readers_of_a_shared_epoch_are_charged_as_one_stream_of_their_peer(built: Built) -> None:
    pipeline = built.pipeline("id").shuffle(9, seed=1).batch(2)
    with serve(pipeline, limits=ClientLimits(max_streams=1)) as server:
        first, second = endless(server, shared=True), endless(server, shared=True)
        with pytest.raises(PipelineError, match="limit max_streams"):
            endless(server)
        first.close()
        second.close()
        until_nobody(server)
        endless(server).close()


def test_every_peer_in_a_shared_epoch_is_charged_while_it_reads(built: Built) -> None:
    shared, pipeline = SharedEpochs(), built.pipeline("id").batch(2)
    peers = [Account(name, ClientLimits()) for name in ("a", "b")]
    steps = [
        shared.steps("k", pipeline, 0, strict_nulls=True, asked=lambda: True, account=account) for account in peers
    ]
    for stream in steps:
        next(stream)
    assert [account.streams for account in peers] == [1, 1]
    steps[0].close()
    assert [account.streams for account in peers] == [0, 1]
    assert next(steps[1])
    steps[1].close()
    assert [account.streams for account in peers] == [0, 0]


def test_readers_of_an_endpoint_are_streams_of_the_client_that_opened_it(built: Built) -> None:
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


def test_processor_time_that_is_used_up_comes_back_with_time() -> None:
    clock = Clock()
    account = Account("10.0.0.1", ClientLimits(cpu_s=30), clock)
    account.use_cpu(30)
    account.check_cpu()
    account.use_cpu(15)
    with pytest.raises(
        PipelineError, match=r"at most 30 s of processor time per minute for 10\.0\.0\.1, got 45 s\. Ask again in 30 s"
    ):
        account.check_cpu()
    clock.now_s += 31
    account.check_cpu()
    clock.now_s += 1e6
    assert account.is_unused
    account.use_cpu(31)  # unused time is not saved up
    with pytest.raises(PipelineError, match="limit cpu_s"):
        account.check_cpu()
    free = Account("10.0.0.1", ClientLimits(), clock)
    free.use_cpu(1e9)
    free.check_cpu()


def test_an_account_is_kept_while_its_peer_owes_anything() -> None:
    clock = Clock()
    accounts = Accounts(ClientLimits(cpu_s=30), clock)
    with accounts.of("a") as first, accounts.of("a") as second, accounts.of("b") as other:
        assert first is second
        assert other is not first
        first.use_cpu(40)
        other.check_cpu()
    assert len(accounts) == 1
    with accounts.of("a") as again:
        assert again is first
        clock.now_s += 60
        share = again.open_stream(1)
    clock.now_s += 60
    with accounts.of("b"):
        assert len(accounts) == 2
    share.close()
    with accounts.of("b"):
        pass
    assert len(accounts) == 0


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_the_work_for_a_stream_is_charged_in_all_its_threads_and_processes(built: Built, executor: str) -> None:
    account = Account("a peer", ClientLimits(cpu_s=1e6), Clock())
    pipeline = built.pipeline("image", executor=executor).repeat(5).batch(10)
    steps = own_steps(pipeline, Cursor(), strict_nulls=True, account=account)
    assert sum(count for count, _, _ in steps) == 250
    assert account._cpu_s > 0
    assert account.streams == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_client_without_processor_time_learns_which_limit_it_met(built: Built, shared: bool) -> None:
    with serve(built.pipeline("id").repeat().batch(4), limits=ClientLimits(cpu_s=0.5)) as server:
        iterator = endless(server, shared=shared)
        with pytest.raises(PipelineError, match=r"at most 0\.5 s of processor time per minute.*limit cpu_s"):
            for _ in iterator:
                pass


def test_planning_is_charged_too(built: Built) -> None:
    with serve(built.pipeline("id"), limits=ClientLimits(cpu_s=1e-9)) as server:
        connection = Connection(ServerAddress.of(server))
        assert connection.ask({"do": "length"}) == {"length": 50}
        with pytest.raises(PipelineError, match="limit cpu_s"):
            connection.ask({"do": "length"})
        connection.close()


def test_other_addresses_of_this_machine_give_no_more_connections(built: Built) -> None:
    with serve(built.pipeline("id"), limits=ClientLimits(max_connections=1)) as server:
        here = (server.endpoint.host, server.endpoint.port)
        with (
            socket.create_connection(here),
            socket.create_connection(here, source_address=("127.0.0.9", 0)) as other,
        ):
            assert b"at most 1 connections from this machine" in other.recv(4096)


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


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("127.0.0.1", "this machine"),
        ("127.3.2.1", "this machine"),
        ("::1", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_machine_is_one_peer_whatever_address_it_uses(host: str, peer: str) -> None:
    assert peer_of(host) == peer
