"""Processes that stall during an epoch: the waiting side reports it, and replaces them if there is a limit."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from builders import Built, built_once
from faces import SIDECAR, THREADS, TensorFlowFace, TorchFace, plain_element
from processes import eventually, gone, python_that_gets

from benchmarks.faults import readers, workers_of
from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import PipelineError, SidecarError
from parquetry.common.transport.sidecar.idle_pool import IDLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says what a process does"),
    pytest.mark.usefixtures("new_sidecars"),
]

FACES = [SIDECAR, *([TensorFlowFace()] if importlib.util.find_spec("tensorflow") else [])]
FACES_WITH_TORCH = [*FACES, *([TorchFace(kind="ParquetPipe")] if importlib.util.find_spec("torch") else [])]
built = built_once([[20, 13], [30]], names=("id", "image"))


@pytest.fixture(autouse=True)
def _no_other_sidecars() -> Iterator[None]:
    IDLE.close()
    yield
    IDLE.close()


def repeated(built: Built, **options: Any) -> Pipeline:
    """Batches that one worker decodes."""
    return built.pipeline("id", "image", executor="sidecar", workers=1, **options).repeat(20).batch(4)


def begun(pipeline: Pipeline) -> tuple[Any, list[int], psutil.Process]:
    """Returns an iterator, the ids of its first element, and its reader; readers of other tests may be idle."""
    others = readers()
    iterator = iter(pipeline)
    first = next(iterator)["id"].tolist()
    (reader,) = set(readers()) - set(others)
    return iterator, first, reader


def stop(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGSTOP)


@pytest.mark.parametrize("stopped", ["worker", "reader"])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_a_process_that_is_stopped_is_replaced(built: Built, face: Any, stopped: str) -> None:
    pipeline = repeated(built, stall_timeout=0.5 if stopped == "worker" else 0.6)  # so no other sidecar fits
    expected = [[row["id"] for row in element] for element in THREADS.elements(pipeline)]
    others = readers()
    begin = face.passes(pipeline)
    iterator, found = begin(), []
    for element in iterator:
        found.append([row["id"] for row in plain_element(pipeline.element, element)])
        if len(found) == 1:
            (reader,) = set(readers()) - set(others)
            (worker,) = workers_of(reader)
            stop(worker if stopped == "worker" else reader)
    assert found == expected
    counted = begin.__self__ if face.name == "tensorflow" else iterator  # by the dataset
    assert counted.stats().restarts == (1 if stopped == "reader" else 0)


def test_without_restarts_a_stopped_reader_is_an_error(built: Built) -> None:
    iterator, _, reader = begun(repeated(built, stall_timeout=0.2, restarts=0))
    stop(reader)
    with pytest.raises(SidecarError, match=r"died: stalled for \d+ s \(stopped\)"):
        list(iterator)


@pytest.mark.parametrize("face", FACES_WITH_TORCH, ids=lambda face: face.name)
def test_a_reader_that_is_stopped_before_its_first_answer_is_replaced(
    built: Built, face: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline = repeated(built, stall_timeout=1)  # a busy machine may give the next one no time for a while
    expected = [[row["id"] for row in element] for element in THREADS.elements(pipeline)]
    begin = face.passes(pipeline)
    starts = python_that_gets(monkeypatch, tmp_path, "STOP", 1)
    iterator = begin()
    assert [[row["id"] for row in plain_element(pipeline.element, element)] for element in iterator] == expected
    assert len(list(starts.iterdir())) == 2
    if face.name != "tensorflow":  # tf.data asked for the length before
        assert iterator.stats().restarts == 1


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_readers_that_all_stop_before_their_first_answer_are_an_error(
    built: Built, face: Any, restarts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin = face.passes(repeated(built, stall_timeout=0.1, restarts=restarts))
    starts = python_that_gets(monkeypatch, tmp_path, "STOP", 99)
    with pytest.raises(Exception, match=r"stalled for \d+ s \(stopped\)") as caught:
        list(begin())
    assert ("It was started again 1 times at element 0" in str(caught.value)) == (restarts > 0)
    assert gone([int(start.name) for start in starts.iterdir()]) == []


def test_a_waiting_process_says_so_and_continues(
    built: Built, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "0.6")
    pipeline = repeated(built)
    iterator, first, reader = begun(pipeline)
    found = [first]
    (worker,) = workers_of(reader)
    client = iterator._steps._source._client

    def has_said_so() -> bool:
        by_reader = all(text in client._stderr for text in ("is working on them", f"for process {worker.pid}"))
        return by_reader and "the trainer has waited" in caplog.text

    def wake() -> None:
        eventually(has_said_so)
        os.kill(worker.pid, signal.SIGCONT)

    stop(worker)
    waker = threading.Thread(target=wake)
    waker.start()
    found += [batch["id"].tolist() for batch in iterator]
    waker.join()
    IDLE.close()  # the reader's last output has been read
    assert found == [[row["id"] for row in element] for element in THREADS.elements(pipeline)]
    errors = capfd.readouterr().err
    assert f"for process {worker.pid}, which is stopped" in errors
    assert "a decoder or a function is working on them" in errors
    assert "the trainer has waited" in caplog.text


def test_a_function_that_computes_is_not_stalled(built: Built) -> None:
    def slow(row: dict[str, Any]) -> dict[str, Any]:
        end = time.monotonic() + 1.2
        while row["id"] == 0 and time.monotonic() < end:
            pass
        return {"id": row["id"], "worker": os.getpid()}

    outputs = [UnischemaField("worker", np.int64)]
    pipeline = built.pipeline("id", executor="sidecar", workers=1, stall_timeout=0.3).transform(slow, outputs)
    # A busy machine may give the worker no time at all for a while, but not each time.
    assert eventually(lambda: len({row["worker"] for row in pipeline}) == 1)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_a_function_that_waits_often_is_not_stalled(built: Built, face: Any) -> None:
    def looked_up(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.06)
        return {"id": row["id"], "worker": os.getpid()}

    outputs = [UnischemaField("id", np.int64), UnischemaField("worker", np.int64)]
    pipeline = built.pipeline("id", executor="sidecar", workers=1, stall_timeout=0.4, restarts=0)
    pipeline = pipeline.transform(looked_up, outputs).batch(63)  # 3.8 s for the only batch

    def has_one_worker() -> bool:
        with suppress(Exception):  # the third worker in a row that stalls is an error
            (batch,) = [plain_element(pipeline.element, element) for element in face.passes(pipeline)()]
            assert len(batch) == 63
            return len({row["worker"] for row in batch}) == 1
        return False

    # A busy machine may give the worker no time at all for a while, but not each time.
    assert eventually(has_one_worker)


def test_a_function_that_hangs_is_replaced_although_another_thread_is_awake(built: Built, tmp_path: Path) -> None:
    def hanging(row: dict[str, Any]) -> dict[str, Any]:
        if not (tmp_path / "hung").exists():
            (tmp_path / "hung").touch()
            over = threading.Event()
            threading.Thread(target=lambda: [over.wait(0.02) for _ in range(10_000)], daemon=True).start()
            over.wait()
        return {"id": row["id"]}

    outputs = [UnischemaField("id", np.int64)]
    pipeline = built.pipeline("id", executor="sidecar", workers=1, stall_timeout=0.4, restarts=0)
    assert len(list(pipeline.transform(hanging, outputs))) == 63


@pytest.mark.parametrize("given", [0, -1, True, "3", float("nan"), float("inf")])
def test_the_limit_is_a_number_of_seconds(built: Built, given: Any) -> None:
    with pytest.raises(PipelineError, match=r"expected stall_timeout to be 0\.1 to 1000000 seconds or None"):
        built.pipeline(stall_timeout=given)
