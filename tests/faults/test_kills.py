"""Killing processes during an epoch: the same elements come in the same order, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from builders import Built, build, built_once
from faces import SIDECAR, THREADS, TensorFlowFace, TorchFace, import_framework, plain_element
from processes import python_that_gets

from benchmarks.faults import Killer, has_not_begun, readers, workers, workers_of
from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError, SidecarError
from parquetry.common.transport.sidecar.idle_pool import IDLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are started afresh"),
    pytest.mark.usefixtures("new_sidecars"),
]

NEEDS = {"tensorflow": "tensorflow", "ParquetPipe": "torch"}
FACES = [
    face
    for face in (SIDECAR, TensorFlowFace(), TorchFace(kind="ParquetPipe"))
    if importlib.util.find_spec(NEEDS.get(face.name, "numpy"))
]
built = built_once([[20, 13], [7, 30], [30]], names=("id", "image"))


@pytest.fixture(autouse=True)
def _no_other_sidecars() -> Iterator[None]:
    IDLE.close()
    yield
    IDLE.close()


def shuffled(built: Built, repeats: int, **options: Any) -> Pipeline:
    """Batches that workers decode."""
    pipeline = built.pipeline("id", "image", **{"executor": "sidecar", "workers": 2, **options})
    return pipeline.shuffle(20, seed=5).repeat(repeats).batch(4)


def ids(pipeline: Pipeline, element: Any) -> list[int]:
    return [row["id"] for row in plain_element(pipeline.element, element)]


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_workers_that_are_killed_all_the_time_change_nothing(built: Built, face: Any) -> None:
    pipeline = shuffled(built, 10)
    expected = [[row["id"] for row in element] for element in THREADS.elements(pipeline)]
    others = readers()
    begin = face.passes(pipeline)
    iterator = begin()
    found = [ids(pipeline, next(iterator))]
    (reader,) = (reader for reader in readers() if reader not in others)
    (template,) = reader.children()
    descriptors = reader.num_fds()
    with Killer(lambda: workers_of(reader), times=1000, pause_s=(0.01, 0.15), seed=1, spares=has_not_begun) as killer:
        for number, element in enumerate(iterator, 1):
            found.append(ids(pipeline, element))
            killer.wait_for(min(3, 4 * number // len(expected)))
    assert found == expected
    assert reader.children() == [template]  # no zombies, not even among its own
    assert len(template.children()) <= 2
    assert reader.num_fds() <= descriptors + 8  # blocks in use at the moment of counting


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_jobs_of_more_rows_than_workers_live_for_are_made_in_halves(built: Built, face: Any, on_error: str) -> None:
    bad = {33, 34, 80} if on_error == "skip" else set()
    made: Counter[int] = Counter()

    def lives_for_six_rows(row: dict[str, Any]) -> dict[str, Any]:
        made[os.getpid()] += 1
        if made[os.getpid()] > 6:
            os.kill(os.getpid(), signal.SIGKILL)
        if int(row["id"]) in bad:
            raise ValueError("a bad row")
        return row

    pipeline = built.pipeline("id", executor="sidecar", workers=2, on_error=on_error)
    pipeline = pipeline.transform(lives_for_six_rows).batch(4)
    good = [row for row in range(100) if row not in bad]
    found = [row for element in face.passes(pipeline)() for row in ids(pipeline, element)]
    assert found == good


def ends_at(number: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function that ends its process when it gets this row."""

    def ends(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == number:
            os._exit(3)
        return row

    return ends


def test_a_job_that_ends_its_workers_is_an_error_while_others_are_killed(built: Built) -> None:
    pipeline = built.pipeline("id", executor="sidecar", workers=2).transform(ends_at(77)).batch(5)
    with (
        Killer(workers, times=1000, pause_s=(0.05, 0.15), seed=2, spares=has_not_begun),
        pytest.raises(
            SidecarError, match=r"decode worker died \d+ times in one batch \(exit status 3\), for file .*, row"
        ),
    ):
        list(pipeline)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_the_rows_before_an_element_that_ends_its_workers_arrive_and_its_rows_are_named(
    built: Built, face: Any, on_error: str
) -> None:
    pipeline = built.pipeline("id", executor="sidecar", workers=2, on_error=on_error).transform(ends_at(77)).batch(5)
    iterator = iter(face.passes(pipeline)())
    for first in range(0, 75, 5):
        assert ids(pipeline, next(iterator)) == list(range(first, first + 5))
    with pytest.raises(Exception, match=r"exit status 3\), for file .*\.parquet, row group \d+, rows \d+ to \d+\. A"):
        next(iterator)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_bad_rows_beside_an_element_that_ends_its_workers_are_left_out(built: Built, face: Any) -> None:
    bad = {2, 12, 41, 66, 74}

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if int(row["id"]) in bad:
            raise ValueError("a bad row")
        return row

    pipeline = built.pipeline("id", executor="sidecar", workers=1, on_error="skip")
    pipeline = pipeline.transform(ends_at(85)).transform(fails).batch(5)
    good = [row for row in range(600) if row not in bad]
    iterator = iter(face.passes(pipeline)())
    for first in range(0, 80, 5):
        assert ids(pipeline, next(iterator)) == good[first : first + 5]
    with pytest.raises(Exception, match=r"exit status 3\), for file"):
        next(iterator)


def test_the_row_that_ends_its_workers_is_named_if_rows_are_elements(built: Built) -> None:
    iterator = iter(built.pipeline("id", executor="sidecar", workers=2).transform(ends_at(77)))
    assert [next(iterator)["id"] for _ in range(77)] == list(range(77))
    with pytest.raises(SidecarError, match=r"for file .*\.parquet, row group \d+, row \d+\. A user function"):
        next(iterator)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_readers_that_are_killed_are_replaced_at_the_next_element(built: Built, face: Any) -> None:
    pipeline = shuffled(built, 24, workers=1)  # a reader is up to 192 of the 600 elements ahead
    expected = [[row["id"] for row in element] for element in THREADS.elements(pipeline)]
    others = readers()
    begin = face.passes(pipeline)
    iterator, found, held, killed = begin(), [], [], set()
    for number, element in enumerate(iterator):
        held.append(element)
        found.append(ids(pipeline, element))
        if number % 20 == 0 and len(killed) < 2:
            for reader in set(readers()) - set(others):
                reader.kill()
                killed.add(reader.pid)
    assert found == expected
    assert len(killed) == 2
    assert [ids(pipeline, element) for element in held] == expected  # the user's values remain
    counted = begin.__self__ if face.name == "tensorflow" else iterator  # by the dataset
    assert counted.stats().restarts == 2


def test_rows_and_rows_left_out_continue_at_the_next_one(built: Built) -> None:
    pipeline = built.pipeline("id", executor="sidecar", workers=1).shuffle(20, seed=1).repeat(30)
    for chain in (pipeline, pipeline.transform(lambda row: row if row["id"] % 2 else None, drops=True).batch(3)):
        expected = THREADS.elements(chain)
        iterator, found = iter(chain), []
        for element in iterator:
            found.append(plain_element(chain.element, element))
            if len(found) == 2:
                for reader in readers():
                    reader.kill()
        assert found == expected
        assert iterator.stats().restarts == 1


@pytest.mark.parametrize("face", FACES[:2], ids=lambda face: face.name)
def test_a_reader_that_dies_at_one_element_again_and_again_is_an_error(built: Built, face: Any) -> None:
    def ends_the_reader(batch: dict[str, Any]) -> dict[str, Any]:
        if 50 in batch["id"]:
            psutil.Process(os.getppid()).parent().kill()
        return batch

    pipeline = shuffled(built, 1, restarts=2).transform(ends_the_reader)
    iterator = face.passes(pipeline)()
    with pytest.raises(Exception, match=r"It was started again 2 times at element [0-9]+"):
        list(iterator)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_readers_that_are_killed_before_the_first_element_are_replaced(
    built: Built, face: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline = shuffled(built, 1, workers=1)
    expected = [[row["id"] for row in element] for element in THREADS.elements(pipeline)]
    begin = face.passes(pipeline)
    starts = python_that_gets(monkeypatch, tmp_path, "KILL", 2)
    iterator = begin()
    assert [ids(pipeline, element) for element in iterator] == expected
    assert len(list(starts.iterdir())) == 3
    if face.name != "tensorflow":  # tf.data may have asked for the length before
        assert iterator.stats().restarts == 2


def test_a_reader_that_is_killed_while_it_tells_the_cardinality_is_replaced(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import_framework("tensorflow")
    from parquetry.tf_plugin import ParquetDataset

    pipeline = shuffled(built, 1, workers=1)
    dataset = ParquetDataset(pipeline)
    starts = python_that_gets(monkeypatch, tmp_path, "KILL", 2)
    assert int(dataset.cardinality()) == len(pipeline)
    assert len(list(starts.iterdir())) == 3


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("face", FACES[:2], ids=lambda face: face.name)
def test_a_reader_that_never_opens_is_one_error(
    built: Built, face: Any, restarts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline = shuffled(built, 1, workers=1, restarts=restarts)
    begin = face.passes(pipeline)
    starts = python_that_gets(monkeypatch, tmp_path, "KILL", 99)
    with pytest.raises(Exception, match=r"(SIGKILL|signal 9)") as caught:
        list(begin())
    assert ("It was started again 2 times at element 0" in str(caught.value)) == (restarts > 0)
    # tf.data asks for the length several times before; one answer is enough.
    assert len(list(starts.iterdir())) == (1 + restarts) * (2 if face.name == "tensorflow" else 1)


def test_a_length_that_could_not_be_found_is_asked_for_again(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tf = import_framework("tensorflow")
    from parquetry.tf_plugin import ParquetDataset

    pipeline = shuffled(built, 1, workers=1, restarts=0)
    dataset = ParquetDataset(pipeline)
    starts = python_that_gets(monkeypatch, tmp_path, "KILL", 4)
    for _ in range(2):  # by a user
        assert tf.data.experimental.cardinality(dataset) == tf.data.UNKNOWN_CARDINALITY
    assert len(list(starts.iterdir())) == 2
    with pytest.raises(Exception, match="signal 9"):
        list(iter(dataset))
    assert len(list(starts.iterdir())) == 4
    assert tf.data.experimental.cardinality(dataset) == len(pipeline) == len(list(dataset))
    assert len(list(starts.iterdir())) == 5


@pytest.mark.parametrize("given", [-1, 1.5, "3", True])
def test_restarts_are_an_integer(built: Built, given: Any) -> None:
    with pytest.raises(PipelineError, match="expected restarts to be an integer >= 0 or None"):
        built.pipeline(restarts=given)
    assert built.pipeline(restarts=np.int64(2)).options.restarts == 2


def test_rows_left_out_are_counted_once_by_readers_that_take_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 2:
            raise ValueError("an odd row")
        return row

    pipeline = build(tmp_path, [[60] * 10], names=("id",)).pipeline("id", executor="sidecar", workers=1)
    pipeline = pipeline.with_options(on_error="skip").transform(odd).batch(5)
    iterator, found = iter(pipeline), []
    for number, element in enumerate(iterator):
        found += element["id"].tolist()
        if number in (2, 20):
            for reader in readers():
                reader.kill()
    stats = iterator.stats()
    assert found == list(range(0, 600, 2))
    assert stats.skipped_transform == 300
    assert stats.restarts <= 2  # a reader that has delivered everything needs no replacement
    assert len(set(stats.skipped)) == len(stats.skipped) == 100
    IDLE.close()
    assert "Skipped 300 bad rows in this epoch" in capsys.readouterr().err
