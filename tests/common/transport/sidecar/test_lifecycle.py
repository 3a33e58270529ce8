"""The sidecar's lifecycle: kills leave nothing behind, deaths are reported or repaired, held values stay valid."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from builders import Built, build, built_once
from faces import SIDECAR, THREADS
from ids import ids
from processes import command_of, gone, run_python

from benchmarks.faults import workers_of
from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import DatasetError, DecodeError, PipelineError, SidecarError, TransformError
from parquetry.common.transport.sidecar.idle_pool import FEWEST_KEPT, IDLE, RecentMost

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"),
]

CHEAP = ("id", "small", "vector", "label")  # decoded in the reader's threads
COSTLY = ("id", "image", "points", "tags")  # decoded in worker processes
OF_OTHERS: set[psutil.Process] = set()
built = built_once([[20, 13], [7, 0, 30], [30]])


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Checks that each test starts without a sidecar and ends all it started."""
    gc.collect()
    IDLE.close()
    OF_OTHERS.clear()
    OF_OTHERS.update(sidecars())  # TensorFlow's, from other tests, wait half a minute for another epoch
    yield
    gc.collect()
    IDLE.close()
    assert not sidecars(), "a sidecar outlived its iterators"


def sidecars() -> list[psutil.Process]:
    """Returns the running readers that a test has started."""
    children = psutil.Process().children()
    return [child for child in children if child not in OF_OTHERS and _runs(child, "parquetry.common.sidecar")]


def _runs(process: psutil.Process, module: str) -> bool:
    return module in command_of(process).split()  # a zombie has none


# --- deaths ---


@pytest.mark.slow
def test_a_sidecar_that_dies_while_it_is_idle_is_replaced(built: Built) -> None:
    pipeline = built.pipeline(*CHEAP, executor="sidecar").batch(50)
    first = [batch["id"].tolist() for batch in pipeline]
    (reader,) = sidecars()
    reader.kill()
    assert gone([reader.pid]) == []
    assert [batch["id"].tolist() for batch in pipeline] == first
    assert [child.pid for child in sidecars()] != [reader.pid]


def test_a_decode_worker_that_dies_is_replaced_and_the_content_stays_the_same(built: Built) -> None:
    pipeline = built.pipeline(*COSTLY, executor="sidecar", workers=2).shuffle(9, seed=3).batch(3)
    expected = THREADS.elements(pipeline)
    iterator = iter(pipeline)
    found = [next(iterator)]
    (reader,) = sidecars()
    killed = set()
    for batch in iterator:
        found.append(batch)
        if len(found) in (2, 9, 16):
            for worker in workers_of(reader):
                worker.kill()
                killed.add(worker.pid)
    assert len(killed) >= 2  # both, with most of the batches still to come
    assert sorted(ids(found)) == list(range(len(built.rows)))
    assert [batch["id"].tolist() for batch in found] == [[row["id"] for row in batch] for batch in expected]
    images = [batch["image"].tolist() for batch in found]
    assert images == [[row["image"] for row in batch] for batch in expected]


def _dies(row: dict[str, Any]) -> dict[str, Any]:
    os._exit(7)


@pytest.mark.slow
def test_a_function_that_ends_its_process_is_an_error_and_no_endless_loop(built: Built) -> None:
    pipeline = built.pipeline("id", executor="sidecar", workers=1).transform(_dies)
    with pytest.raises(SidecarError, match=r"decode worker died 3 times in one batch \(exit status 7\)"):
        next(iter(pipeline))


# --- user actions ---


def test_results_that_share_memory_are_the_consumers_to_change_one_by_one(built: Built) -> None:
    def shared(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "again": batch["id"], "tail": batch["id"].view(np.uint8).reshape(-1, 8)}

    outputs = [UnischemaField("again", np.int64), UnischemaField("tail", np.uint8, (8,))]
    pipeline = built.pipeline("id", executor="sidecar", workers=1).batch(10).transform(shared, outputs, batched=True)
    for number, batch in enumerate(pipeline):
        batch["id"][...] = -1
        assert batch["again"].tolist() == list(range(10 * number, 10 * number + 10))
        batch["again"][...] = -2
        assert batch["tail"].copy().view(np.int64)[:, 0].tolist() == list(range(10 * number, 10 * number + 10))


def test_closing_an_iterator_is_idempotent_and_ends_it(built: Built) -> None:
    for executor in ("threads", "sidecar"):
        iterator = iter(built.pipeline("id", executor=executor))
        next(iterator)
        iterator.close()
        iterator.close()
        with pytest.raises(StopIteration):
            next(iterator)


# --- data that crosses processes ---


def fails_on_thirty(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 30:
        raise LookupError("thirty")
    return row


def test_a_users_exception_crosses_with_its_place_and_traceback(built: Built) -> None:
    pipeline = built.pipeline("id", executor="sidecar", workers=1).transform(fails_on_thirty)
    message = r"(?s)transform fails_on_thirty failed for file .*part-000\.parquet, row group 1, row 10: LookupError\('thirty'\).*line \d+, in fails_on_thirty"
    with pytest.raises(TransformError, match=message):
        list(pipeline)


@pytest.mark.parametrize(
    "character", ["错", "\ud800", *(pytest.param(each, marks=pytest.mark.slow) for each in ("\0", '"', "x"))]
)
def test_an_error_of_any_length_and_alphabet_crosses(built: Built, character: str) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(character * 20_000 + " is the cause")

    pipeline = built.pipeline("id", executor="sidecar", workers=1).transform(fails)
    with pytest.raises(TransformError, match=r"(?s)^transform .*fails failed for file .*is the cause"):
        next(iter(pipeline))


def test_a_sidecar_that_fails_itself_ends_and_says_why(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(built.pipeline("id", executor="sidecar", workers=1, restarts=0).repeat().batch(1))
    next(iterator)
    with socket.socket(fileno=os.dup(iterator._steps._source._client._channel._connection.fileno())) as own:
        own.send(b"no message of the protocol, and longer than its header is")
    with pytest.raises(SidecarError, match=r"(?s)died: exit status 70.*expected protocol version"):
        for _ in iterator:
            pass


def test_our_errors_keep_their_class_across_processes(built: Built) -> None:
    def refuse(row: dict[str, Any]) -> dict[str, Any]:
        raise DecodeError("no points in this cloud")

    with pytest.raises(DecodeError, match=r"(?s)^no points in this cloud\nTraceback .*in refuse\n"):
        next(iter(built.pipeline("id", executor="sidecar", workers=1).transform(refuse)))


def test_the_readers_errors_keep_their_class_across_processes(built: Built, tmp_path: Path) -> None:
    copy = build(tmp_path, [[5, 5]], names=("id", "label"))
    pipeline = copy.pipeline(executor="sidecar", workers=1)
    assert len(pipeline) == 10
    path = tmp_path / "part-000.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:60] = b"\xff" * 56
    path.write_bytes(bytes(raw))
    with pytest.raises(OSError, match=r"part-000\.parquet, row group 0: expected readable columns|expected"):
        list(pipeline)


def test_a_function_that_cannot_travel_says_why(built: Built) -> None:
    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    pipeline = built.pipeline("id").transform(locked)
    assert len(list(pipeline)) == 100
    with pytest.raises(
        PipelineError, match=r"user function .*locked: cannot travel to another process: .*executor='threads'"
    ):
        next(iter(pipeline.with_options(executor="sidecar")))


def test_a_sidecar_that_cannot_be_started_is_reported(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(SidecarError, match=r"sidecar could not be started with \['/no/such/python', .*No such file"):
        next(iter(built.pipeline("id", executor="sidecar")))


def test_a_sidecar_that_fails_at_once_shows_its_last_words(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho a library is missing >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(SidecarError, match=r"(?s)died: exit status 3. Last stderr output:\na library is missing"):
        next(iter(built.pipeline("id", executor="sidecar")))


def test_one_row_batches_that_a_function_cuts_are_whole(built: Built) -> None:
    def cut(batch: dict[str, Any]) -> dict[str, Any]:
        return {"tail": batch["vector"][:, 1:]}

    output = [UnischemaField("tail", np.float32, (2,))]
    pipeline = built.pipeline("vector").batch(1).transform(cut, output, remove=["vector"])
    assert SIDECAR.elements(pipeline.with_options(workers=1)) == [[{"tail": row["vector"][1:]}] for row in built.plain]


@pytest.mark.slow
def test_an_idle_sidecar_serves_the_same_request_again_and_no_other(built: Built) -> None:
    pipeline = built.pipeline("id", executor="sidecar", workers=1)
    assert len(list(pipeline)) == 100
    (reader,) = sidecars()
    assert len(list(built.pipeline("id", executor="sidecar", workers=1))) == 100  # an equal pipeline
    assert [child.pid for child in sidecars()] == [reader.pid]
    assert len(list(pipeline.take(3))) == 3
    assert len(sidecars()) == 2
    IDLE.close()
    IDLE.close()
    assert sidecars() == []


@pytest.mark.slow
def test_an_iterator_may_be_collected_while_the_pool_is_in_use(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loop:
        """An object in a reference cycle, such as a saved exception, with an iterator."""

        def __init__(self) -> None:
            self.own = self
            self.iterator = iter(built.pipeline("id", executor="sidecar").batch(5))
            next(self.iterator)

    class Collecting(RecentMost):
        def note(self, count: int, now: float) -> None:
            gc.collect()  # which may happen at any call
            super().note(count, now)

    monkeypatch.setattr(IDLE, "_most_used", Collecting())
    Loop()
    assert ids(built.pipeline("id", executor="sidecar").batch(7)) == [row["id"] for row in built.plain]


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("lock", ["_active_limbo_lock", "_shutdown_locks_lock"])
def test_an_iterator_may_be_collected_inside_a_function_of_threading(built: Built, lock: str, executor: str) -> None:
    """The function holds a lock that every thread needs when it begins or ends."""
    held = getattr(threading, lock, None) or contextlib.nullcontext()  # Python 3.13 has one of them
    iterator = iter(built.pipeline("id", executor=executor).batch(5))
    next(iterator)
    with held:
        del iterator
    assert ids(built.pipeline("id", executor=executor).batch(7)) == [row["id"] for row in built.plain]


@pytest.mark.slow
def test_an_idle_sidecar_answers_for_no_other_version_of_the_dataset(tmp_path: Path) -> None:
    data = tmp_path / "data"
    build(data, [[5, 5], [5]], names=("id", "label"))

    def pipeline() -> Pipeline:
        return Pipeline(str(data), ["id"], executor="sidecar", workers=1).transform(dict)

    def mixed() -> Pipeline:
        return mix([pipeline(), pipeline()], seed=1, stop="all")

    before, mixed_before = pipeline(), mixed()
    assert (len(list(before)), len(list(mixed_before))) == (15, 30)
    shutil.copy(data / "part-000.parquet", data / "part-009.parquet")
    after, mixed_after = pipeline(), mixed()
    assert len(after) == len(list(after)) == 25
    assert len(mixed_after) == len(list(mixed_after)) == 50
    assert len(list(before)) == 15  # its own sidecar is still idle and holds its open dataset
    IDLE.close()
    for stale in (before, mixed_before):
        with pytest.raises(
            DatasetError, match=r"data: expected the files that were there when it was opened, found oth"
        ):
            next(iter(stale))
    assert len(list(pipeline())) == 25


@pytest.mark.slow
def test_as_many_sidecars_stay_idle_as_were_in_use_at_once(built: Built) -> None:
    pipelines = [built.pipeline("id", executor="sidecar", workers=1).take(number + 2) for number in range(6)]

    def epoch() -> set[int]:
        iterators = [iter(pipeline) for pipeline in pipelines]
        for iterator in iterators:
            next(iterator)
        for iterator in iterators:
            iterator.close()
        return {child.pid for child in sidecars()}

    first = epoch()
    assert len(first) == len(pipelines) > FEWEST_KEPT
    assert epoch() == first


def test_the_recent_maximum_is_forgotten_after_a_while() -> None:
    most = RecentMost()
    assert most.within(30, now=0) == 0
    for now, number in ((0, 8), (10, 2), (20, 5), (25, 1)):
        most.note(number, now)
    assert [most.within(30, now=now) for now in (25, 30, 31, 50, 51, 55, 56)] == [8, 8, 5, 5, 1, 1, 0]


@pytest.mark.slow
def test_a_pipeline_of_the_sidecar_needs_no_main_guard(built: Built, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from parquetry.common import Pipeline\n"
        f"print(len(list(Pipeline({built.url!r}, 'id', executor='sidecar', workers=1).transform(dict))))\n"
    )
    done = run_python(script)
    assert (done.stdout.strip(), done.stderr) == ("100", "")


def test_url_is_made_absolute_before_it_crosses(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(built.url).parent)
    pipeline = Pipeline(Path(built.url).name, "id", executor="sidecar", workers=1)
    monkeypatch.chdir("/")
    assert len(list(pipeline)) == 100
