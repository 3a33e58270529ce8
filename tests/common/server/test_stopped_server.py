"""A client whose server is stopped says so, and ends with an error if there is a limit; a busy server is no fault."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import Built, built_once
from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.base.errors import SidecarError
from parquetry.common.server import ClientLimits, ServerAddress, serve
from parquetry.common.transport.served import client
from parquetry.common.transport.served.client import Connection, answers

from .served import elements, server_process

built = built_once([[20, 30]], names=("id",))


@contextmanager
def woken_by_a_warning(pid: int) -> Iterator[None]:
    """Continues a process as soon as a client warns that it waits."""

    class Waker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(pid, signal.SIGCONT)

    waker, logger = Waker(level=logging.WARNING), logging.getLogger("parquetry.common.transport.stalls")
    logger.addHandler(waker)
    try:
        yield
    finally:
        logger.removeHandler(waker)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_stopped_server_is_an_error_if_there_is_a_limit(
    built: Built, tmp_path: Path, url: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_process(built.pipeline("id").repeat().batch(4), tmp_path, "--listen", url) as (process, address):
        is_stopped = threading.Event()
        monkeypatch.setattr(client, "answers", lambda *args: answers(*args) if is_stopped.is_set() else True)
        iterator = iter(Pipeline(address=ServerAddress(url=address, shared=shared), stall_timeout=0.3))
        next(iterator)
        process.send_signal(signal.SIGSTOP)
        is_stopped.set()
        with pytest.raises(SidecarError, match=r"within stall_timeout=0\.3 s, or another answer .* It may be stopped"):
            for _ in iterator:
                pass
        process.send_signal(signal.SIGCONT)
        assert len(elements(Pipeline(address=address).take(3))) == 3


def test_a_client_that_waits_says_so_and_continues(
    built: Built,
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "0.3")
    monkeypatch.setattr("parquetry.common.transport.stalls._LONGEST_ANSWER_S", 0.2)
    pipeline = built.pipeline("id").shuffle(9, seed=1).batch(4)
    with server_process(pipeline, tmp_path, "--listen", url) as (process, address):
        process.send_signal(signal.SIGSTOP)
        with woken_by_a_warning(process.pid):
            assert elements(Pipeline(address=address)) == elements(pipeline)
    assert "s for the server at" in caplog.text
    assert "which does not answer" in caplog.text


def test_a_server_that_computes_is_not_stalled(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    enough = threading.Event()

    def noted(address: ServerAddress, _: float) -> bool:
        asked.append(answers(address, PATIENCE_S))
        if len(asked) == 3:
            enough.set()
        return asked[-1]

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        assert enough.wait(PATIENCE_S)
        return row

    monkeypatch.setattr(client, "answers", noted)
    pipeline = built.pipeline("id", executor="threads").transform(wait).batch(25)
    with serve(pipeline) as server:
        assert len(elements(Pipeline(address=server.address, stall_timeout=0.1))) == 2
    assert asked[:3] == [True] * 3


def test_a_server_that_refuses_is_alive_and_one_that_is_gone_has_not_stalled(built: Built) -> None:
    with serve(built.pipeline("id"), limits=ClientLimits(max_connections=1)) as server:
        address = ServerAddress.of(server)
        kept = Connection(address)
        assert kept.ask({"do": "length"}) == {"length": 50}
        assert answers(address, PATIENCE_S)
        kept.close()
    assert answers(address, PATIENCE_S)  # its streams have ended, and say so themselves
