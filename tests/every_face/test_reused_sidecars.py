"""An idle sidecar opens another request if a new process would be the same."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from builders import write_table
from faces import SIDECAR, THREADS, installed_faces, plain_element
from processes import command_of, eventually, unless_ended

from parquetry.common import Pipeline
from parquetry.common.transport.sidecar.idle_pool import FEWEST_KEPT

FACES = [SIDECAR, *(face for face in installed_faces() if face.name == "tensorflow")]
READERS = pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
MANY = 3 * FEWEST_KEPT


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    rows = pa.table({"id": range(40), "x": np.arange(40.0)})
    return Pipeline(write_table(tmp_path, rows, row_group_size=7), workers=1)


def readers() -> dict[int, psutil.Process]:
    children = psutil.Process().children()
    return {child.pid: child for child in children if "parquetry.common.sidecar" in command_of(child).split()}


def fill_pool(face: Any, pipeline: Pipeline) -> None:
    for number in range(1, MANY):
        assert face.elements(pipeline.take(number)) == THREADS.elements(pipeline.take(number))


@READERS
def test_other_requests_start_no_process_once_enough_are_idle(pipeline: Pipeline, face: Any) -> None:
    fill_pool(face, pipeline)
    sizes = itertools.cycle(range(3, 30))

    def starts_none() -> bool:
        before, size = readers(), next(sizes)
        batches = pipeline.shuffle(9, seed=size).batch(size)
        assert face.elements(batches) == THREADS.elements(batches)
        assert face.elements(batches, 1) == THREADS.elements(batches, 1)
        return readers().keys() <= before.keys()

    assert eventually(starts_none)  # tf.data deletes an iterator a little later, so its sidecar may not be idle yet


def _variable(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    monkeypatch.setenv("PARQUETRY_OF_A_TEST", "other credentials")


def _directory(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.chdir(path)


def _paths(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(path)])


@READERS
@pytest.mark.parametrize("change", [_variable, _directory, _paths])
def test_a_process_that_would_begin_otherwise_is_a_new_one(
    pipeline: Pipeline,
    face: Any,
    change: Callable[[pytest.MonkeyPatch, Path], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fill_pool(face, pipeline)
    before = readers()
    change(monkeypatch, tmp_path)
    assert face.elements(pipeline.batch(5)) == THREADS.elements(pipeline.batch(5))
    assert readers().keys() - before.keys()


@pytest.mark.slow
@READERS
def test_a_function_has_a_process_of_its_own(pipeline: Pipeline, face: Any) -> None:
    fill_pool(face, pipeline)
    before = readers()
    mapped = pipeline.transform(lambda row: {"id": row["id"] + os.getpid() * 0, "x": row["x"]})
    assert face.elements(mapped) == THREADS.elements(pipeline)
    (own,) = readers().keys() - before.keys()
    fill_pool(face, pipeline.shuffle(5, seed=1))
    assert face.elements(mapped.take(3)) == THREADS.elements(pipeline.take(3))
    assert len(readers().keys() - before.keys() - {own}) >= 1


@READERS
def test_held_batches_outlive_the_request(pipeline: Pipeline, face: Any) -> None:
    batches = pipeline.batch(4)
    begin = face.passes(batches)
    held = list(begin())
    del begin
    gc.collect()
    fill_pool(face, pipeline)
    assert [plain_element(batches.element, batch) for batch in held] == THREADS.elements(batches)


@READERS
def test_a_request_with_few_slots_does_not_wait_for_those_that_are_held(pipeline: Pipeline, face: Any) -> None:
    many = pipeline.with_options(workers=8).batch(2)
    held = list(face.passes(many)())
    fill_pool(face, pipeline)
    few = pipeline.with_options(workers=1).shuffle(5, seed=3).batch(3)
    for iteration in range(FEWEST_KEPT + 1):
        assert face.elements(few, iteration) == THREADS.elements(few, iteration)
    assert [plain_element(many.element, batch) for batch in held] == THREADS.elements(many)


@READERS
def test_a_request_that_fails_says_why_and_the_next_one_is_served(pipeline: Pipeline, face: Any) -> None:
    fill_pool(face, pipeline)
    nothing = pipeline.where([("id", "<", -1)])
    for _ in range(2):
        with pytest.raises(Exception, match="expected at least one item"):
            face.elements(nothing)
    fill_pool(face, pipeline.shuffle(3, seed=2))


@pytest.mark.slow
@READERS
@pytest.mark.usefixtures("new_sidecars")
def test_memory_of_free_slots_goes_back_with_the_request(tmp_path: Path, face: Any) -> None:
    others = readers().keys()  # idle ones of other tests may hold large slots
    large = Pipeline(write_table(tmp_path, pa.table({"x": np.zeros(1 << 17)})), workers=1)
    fill_pool(face, large.take(MANY))
    face.elements(large.batch(1 << 17))
    assert max(map(_slot_bytes, readers().keys() - others)) >= 1 << 20

    def is_given_back() -> bool:
        fill_pool(face, large.take(2 * MANY).shuffle(7, seed=0))
        return max(map(_slot_bytes, readers().keys() - others)) < 1 << 18

    assert eventually(is_given_back)  # tf.data deletes an iterator a little later, so its sidecar may not be idle yet


def _slot_bytes(pid: int) -> int:
    """Returns the size of all slots of a reader."""

    def size_of(link: Path) -> int:
        return os.stat(link).st_size if "parquetry-slot" in os.readlink(link) else 0

    links = unless_ended(lambda: [*Path(f"/proc/{pid}/fd").iterdir()], otherwise=[])
    return sum(unless_ended(size_of, link, otherwise=0) for link in links)  # it opens and closes others meanwhile
