"""Shared epochs: each batch goes to one client, no client can end another's epochs, and none leaves work behind."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from builders import Built, built_once
from ids import ids_by_element as ids
from processes import PATIENCE_S, settled

from parquetry.common import Pipeline
from parquetry.common.base.errors import SidecarError
from parquetry.common.server import ArrowServer, ClientLimits, ServerAddress, serve
from parquetry.common.server import epoch_log as logs
from parquetry.common.server.epoch_log import EpochLog
from parquetry.common.server.shared import SharedEpochs
from parquetry.common.server.stream_budget import StreamBudget
from parquetry.common.transport.served.client import open_stream
from parquetry.common.transport.served.wire import SocketReader, StreamRequest

from .served import elements

built = built_once([[20, 30], [25], [13]], names=("id",))


@pytest.fixture
def server(built: Built) -> Iterator[ArrowServer]:
    with serve(built.pipeline("id", executor="threads").shuffle(30, seed=3).batch(4)) as made:
        yield made


def trainer(server: ArrowServer) -> Pipeline:
    return Pipeline(address=ServerAddress(url=server.address, shared=True))


def at_epoch(pipeline: Pipeline, epoch: int) -> Any:
    """An iterator of one of the pipeline's later epochs."""
    state = {**iter(pipeline).state_dict(), "iteration": epoch}
    return iter(pipeline).load_state_dict(state)


@contextmanager
def joined(server: ArrowServer) -> Iterator[Callable[[], list[int]]]:
    """Joins epoch 0; yields a function that returns the next batch. Unlike a trainer, it never asks ahead."""
    address = ServerAddress(url=server.address, shared=True)
    connection = open_stream(address, (), StreamRequest(shared=address.shared, strict_nulls=False))
    readers: list[Any] = []

    def batch() -> list[int]:
        connection.socket.sendall(b"n")
        if not readers:  # the schema comes with the first batch
            readers.append(pa.ipc.open_stream(pa.PythonFile(SocketReader(connection.socket), mode="r")))
        found: list[int] = readers[0].read_next_batch().column("id").to_pylist()
        return found

    try:
        yield batch
    finally:
        connection.close()


def until_nobody(server: ArrowServer) -> None:
    server._listener.wait()
    assert not server.shared._epochs


def test_a_client_far_ahead_takes_no_epoch_from_the_others(server: ArrowServer) -> None:
    whole = len(elements(Pipeline(address=server.address)))
    others = trainer(server)
    assert len(elements(others)) == whole
    for far in (10**6, 10**6 + 2, 2**47):
        assert len(ids(at_epoch(trainer(server), far))) == whole
    until_nobody(server)
    assert [len(elements(others)) for _ in range(3)] == [whole] * 3
    late = trainer(server)
    assert [len(elements(late)) for _ in range(4)] == [0] * 4  # these epochs are over
    assert ids(at_epoch(trainer(server), 10**6)) == []
    assert len(ids(at_epoch(trainer(server), 10**6 + 1))) == whole


def test_an_epoch_that_all_clients_left_continues_where_they_left_it(server: ArrowServer) -> None:
    expected = ids(Pipeline(address=server.address))
    with joined(server) as first, joined(server) as second:
        found = [first(), second(), first()]
    until_nobody(server)
    with joined(server) as third:
        found += [third(), third()]
    until_nobody(server)
    assert found == expected[: len(found)]
    assert found + ids(trainer(server)) == expected
    assert ids(trainer(server)) == []


def test_an_epoch_that_was_left_before_its_end_or_its_first_batch_continues_there(server: ArrowServer) -> None:
    expected = ids(Pipeline(address=server.address))
    with joined(server):
        pass
    until_nobody(server)
    with joined(server) as last:
        assert [last() for _ in expected] == expected
    until_nobody(server)
    assert ids(trainer(server)) == []


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_an_epoch_whose_rows_are_dropped_continues_where_it_was_left(
    built: Built, executor: str, batch: int | None
) -> None:
    pipeline = built.pipeline("id", executor=executor).transform(lambda row: row if row["id"] % 2 else None, drops=True)
    pipeline = pipeline if batch is None else pipeline.batch(batch)
    shared = SharedEpochs(StreamBudget(ClientLimits()))
    found: list[int] = []

    def part() -> Any:
        return shared.steps("k", pipeline, StreamRequest(), asked=lambda: True)

    while shared._log.position("k True", 0) is not None:
        steps = part()
        for _, columns, _ in itertools.islice(steps, 2):
            found += columns[0].values.tolist()
        steps.close()
    assert found == [row for row in range(88) if row % 2]


def test_epochs_that_were_begun_in_any_order_leave_nothing_behind(server: ArrowServer) -> None:
    process = psutil.Process()
    trainer(server).element  # noqa: B018  # what is opened once
    threads, descriptors = threading.active_count(), process.num_fds()
    for pipeline in (trainer(server), trainer(server).take(3)):
        for epoch in range(20, 0, -1):
            left = at_epoch(pipeline, epoch)
            next(left)
            left.close()
    until_nobody(server)
    assert settled(threading.active_count, threads) <= threads
    assert settled(process.num_fds, descriptors) <= descriptors


def test_a_closed_server_ends_no_shared_epoch_quietly(built: Built) -> None:
    shared, pipeline = SharedEpochs(StreamBudget(ClientLimits())), built.pipeline("id", executor="threads").batch(4)

    def steps() -> Any:
        return shared.steps("k", pipeline, StreamRequest(), asked=lambda: True)

    begun = steps()
    next(begun)
    shared.close()
    with pytest.raises(SidecarError, match="the server is closing"):
        for _ in begun:
            pass
    with pytest.raises(SidecarError, match="the server is closing"):
        next(steps())


def test_a_server_closes_while_a_shared_step_is_being_made(built: Built) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        leave.wait(2 * PATIENCE_S)
        return row

    shared = SharedEpochs(StreamBudget(ClientLimits()))
    pipeline = built.pipeline("id", executor="threads").transform(wait)
    steps = shared.steps("k", pipeline, StreamRequest(), asked=lambda: True)
    reader = threading.Thread(target=lambda: list(suppressed(steps)), daemon=True)
    reader.start()
    assert entered.wait(PATIENCE_S)
    closer = threading.Thread(target=shared.close, daemon=True)
    closer.start()
    closer.join(PATIENCE_S)
    closed = not closer.is_alive()
    leave.set()
    reader.join(PATIENCE_S)
    assert closed
    assert not reader.is_alive()


def suppressed(steps: Iterator[Any]) -> Iterator[Any]:
    with suppress(Exception):
        yield from steps


def test_a_log_knows_every_epoch_in_any_order() -> None:
    log, draw = EpochLog(), np.random.default_rng(5)
    ended: set[int] = set()
    left: dict[int, int] = {}
    for _ in range(300):
        epoch = int(draw.integers(40))
        if draw.integers(2):
            log.end("k", epoch)
            ended.add(epoch)
        elif epoch not in ended:
            left[epoch] = left.get(epoch, 0) + int(draw.integers(9))
            log.leave("k", epoch, left[epoch])
        for number in range(42):
            assert log.position("k", number) == (None if number in ended else left.get(number, 0))
        assert log.position("other", epoch) == 0


def test_a_log_is_bounded_and_forgets_what_took_the_least_reading() -> None:
    log = EpochLog()
    for epoch in range(5):
        log.end("honest", epoch)
    log.leave("honest", 5, 7)
    for number in range(3 * logs._MOST_RANGES):
        log.end("honest", 10**6 + 2 * number)
        log.leave("hostile", number, 1)
    for number in range(3 * logs._MOST_KEYS):
        log.end(f"key {number}", 0, in_use={"honest"})
    assert [log.position("honest", epoch) for epoch in range(6)] == [None] * 5 + [7]
    assert len(log) <= logs._MOST_RANGES + logs._MOST_POSITIONS + 2 * logs._MOST_KEYS
