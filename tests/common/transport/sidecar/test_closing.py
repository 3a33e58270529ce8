"""Another thread closes an iterator whose thread waits for the sidecar: no other iteration gets its sidecar meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import build
from processes import PATIENCE_S
from spies import spied

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.transport.sidecar.client import SidecarClient
from parquetry.common.transport.sidecar.idle_pool import IDLE

ROWS = 400


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Batches that keep the consumer waiting until the file ``go`` is there; the first one comes at once."""
    go = tmp_path / "go"

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        import time

        while row["id"] >= 10 and not go.exists():
            time.sleep(0.01)
        return row

    url = build(tmp_path / "rows", [[ROWS]]).url
    yield Pipeline(url, ["id"], executor="sidecar", workers=1).transform(wait).batch(10)
    go.touch()
    IDLE.close()


def _close_while_it_waits(pipeline: Pipeline) -> list[Any]:
    """Returns how the waiting thread ended."""
    iterator, ended, waits = iter(pipeline), [], threading.Event()
    next(iterator)

    def consume() -> None:
        waits.set()
        try:
            ended.extend(type(batch) for batch in iterator)
        except PipelineError as error:
            ended.append(str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    waits.wait(PATIENCE_S)
    iterator.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return ended


def test_the_waiting_thread_ends(pipeline: Pipeline) -> None:
    ended = _close_while_it_waits(pipeline)
    assert all(each is dict or each == "iteration was closed." for each in ended)


def test_the_next_iteration_gets_every_row(pipeline: Pipeline, tmp_path: Path) -> None:
    for _ in range(3):
        _close_while_it_waits(pipeline)
        (tmp_path / "go").touch()
        assert [value for batch in pipeline for value in batch["id"].tolist()] == [*range(ROWS)]
        (tmp_path / "go").unlink()


def test_the_waiting_thread_gives_the_sidecar_back(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, waits = threading.Event(), threading.Event()
    next_batches = SidecarClient.next_batches

    def waiting(client: SidecarClient, outputs: Any) -> Any:
        if begun.is_set():
            waits.set()
        return next_batches(client, outputs)

    def consume() -> None:
        begun.set()
        with pytest.raises(PipelineError, match="closed"):
            next(iterator)

    given = spied(monkeypatch, IDLE, "give", lambda client: threading.current_thread().name)
    monkeypatch.setattr(SidecarClient, "next_batches", waiting)
    iterator = iter(pipeline)
    next(iterator)
    thread = threading.Thread(target=consume, name="consumer")
    thread.start()
    assert waits.wait(PATIENCE_S)
    iterator.close()
    assert given in ([], ["consumer"])
    thread.join(PATIENCE_S)
    assert given == ["consumer"]


def test_a_thread_that_comes_too_late_leaves_the_sidecar_alone(pipeline: Pipeline) -> None:
    iterator = iter(pipeline)
    next(iterator)
    source: Any = iterator._steps._source
    client = source._client
    source.close()
    with pytest.raises(PipelineError, match="closed"), source._waiting(client):
        raise AssertionError("another iteration may be reading its messages")
    assert source._client is None
    iterator.close()
