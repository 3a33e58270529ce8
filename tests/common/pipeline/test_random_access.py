"""Rows by number match an iteration, in every chain, and are read without the preceding rows."""

from __future__ import annotations

import doctest
import inspect
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from chains import VERBS, dataset, drawn_case, layouts
from drive_rows import drive_once
from hypothesis import assume, given
from hypothesis import strategies as st
from ids import ids
from oracle import apply, examples
from spies import spied

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import EmptySelectionError, NullValueError, PipelineError
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.pipeline.element_numbers import drawn_numbers, numbers_of
from parquetry.common.pipeline.pipeline_iterator import PipelineIterator

pytestmark = pytest.mark.versions

drive = drive_once(executor="threads", workers=2)


# --- against iteration ---


@examples(25)
@given(st.data())
def test_rows_of_any_chain_equal_an_iteration(cache: Path, data: st.DataObject) -> None:
    with drawn_case(data, cache, VERBS) as (built, calls):
        pipeline = apply(built.pipeline(memory_limit=data.draw(st.sampled_from([None, 1]), "memory_limit")), calls)
        epoch = data.draw(st.integers(0, 2), "epoch")
        try:
            expected = list(PipelineIterator(pipeline, epoch))
        except EmptySelectionError:
            with pytest.raises(EmptySelectionError):
                pipeline.head()
            return
        numbers = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), max_size=6)) if expected else []
        found = pipeline.at_epoch(epoch)
        assert len(found) == len(expected)
        assert_same(found[numbers], [expected[number] for number in numbers])
        bounds = st.none() | st.integers(-len(expected) - 2, len(expected) + 2)
        part = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 3, -1, -2])))
        assert_same(found[part], expected[part])
        if epoch == 0 and expected:
            assert_same(pipeline[numbers[0] if numbers else 0], expected[numbers[0] if numbers else 0])


@examples(10)
@given(layouts, layouts, st.data())
def test_rows_of_a_mix_equal_an_iteration(files: list[list[int]], others: list[list[int]], data: st.DataObject) -> None:
    with dataset(files, ["points"]) as one, dataset(others, ["points"]) as two:
        assume(one.rows and two.rows)
        sources = [one.pipeline().shuffle(4, seed=1).repeat(data.draw(st.integers(1, 2))), two.pipeline()]
        pipeline = mix(sources, weights=[2, 1], seed=3, stop=data.draw(st.sampled_from(["first", "all"]), "stop"))
        pipeline = pipeline.shard(2, 1, even="none") if data.draw(st.booleans(), "shard") else pipeline
        pipeline = pipeline.batch(3) if data.draw(st.booleans(), "batch") else pipeline
        epoch = data.draw(st.integers(0, 2), "epoch")
        expected = list(PipelineIterator(pipeline, epoch))
        numbers = data.draw(st.permutations(range(len(expected))), "numbers")
        assert_same(pipeline.at_epoch(epoch)[numbers], [expected[number] for number in numbers])


def test_random_crops_and_flips_depend_on_the_rows_pass(drive: Pipeline) -> None:
    cropped = (
        drive.shuffle(9, seed=2).repeat(2).random_resized_crop("image", (3, 3), seed=4).random_flip("image", seed=5)
    )
    for epoch in (0, 1):
        expected = list(PipelineIterator(cropped, epoch))
        found = cropped.at_epoch(epoch)
        assert_same(found[::-1], expected[::-1])
        assert_same([found[number] for number in (79, 3, 41)], [expected[number] for number in (79, 3, 41)])
    assert not np.array_equal(cropped[0]["image"], cropped.at_epoch(1)[0]["image"])


def test_packed_fields_and_functions_give_what_they_give_in_an_iteration(drive: Pipeline) -> None:
    for packed in (
        drive.select("id").pack("x", "id", "float32"),
        drive.select("id", "speed").nulls("fill", "speed", value=-1).pack("x", ["id", "speed"]),
    ):
        batches = packed.shuffle(9, seed=1).batch(6)
        assert_same(packed[:], list(packed))
        assert_same(batches[[3, 0]], [list(PipelineIterator(batches, 0))[number] for number in (3, 0)])
    doubled = drive.select("id").transform(lambda row: {"id": row["id"] * 2}, [UnischemaField("id", np.int64)])
    assert ids(doubled.with_options(executor=None)[[7, 2]]) == [14, 4]


def test_the_examples_in_docstrings_give_what_they_say(drive: Pipeline) -> None:
    text = inspect.getdoc(Pipeline.__getitem__) or ""
    said: list[str] = []
    example = doctest.DocTestParser().get_doctest(text, {"drive": drive}, "rows", None, 0)
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)


# --- reads ---


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the row groups that are read."""
    found: list[int] = []
    spied(monkeypatch, Fetcher, "fetch", lambda fetcher, row_group, *_: found.append(row_group))
    spied(monkeypatch, Fetcher, "fetch_large", lambda fetcher, row_groups, *_: found.extend(row_groups))
    return found


def test_a_row_costs_its_row_group_and_those_read_last_are_kept(drive: Pipeline, fetched: list[int]) -> None:
    rows = drive.shuffle(40, seed=7)
    rows[3], rows[3]
    assert len(fetched) == 1
    assert sorted(ids(rows[:])) == list(range(40))
    assert sorted(fetched) == list(range(6))
    rows.batch(8)[2]
    fetched.clear()
    bounded = rows.with_options(memory_limit=1)
    assert len(bounded[:]) == 40
    assert sorted(fetched) == list(range(6)), "each is read once for a list, in whatever order its rows come"
    bounded[0], bounded[0]
    assert len(fetched) in (6, 7)


def test_a_window_over_row_groups_reads_them_alone(drive: Pipeline, fetched: list[int]) -> None:
    windows = drive.select("id").ngram(length=3, group_by="drive")
    fetched.clear()
    assert windows[5]["id"].tolist() == [5, 6, 7]
    assert sorted(fetched) == [0, 1]
    assert windows[8]["id"].tolist() == [8, 9, 10]
    assert sorted(fetched) == [0, 1]


def test_a_forked_child_and_a_pickled_pipeline_read_for_themselves(drive: Pipeline) -> None:
    shuffled = drive.shuffle(9, seed=1)
    expected = ids(shuffled.head(9))
    assert ids(pickle.loads(pickle.dumps(shuffled)).head(9)) == expected
    readers = [key for key in shuffled._plans if key.startswith("reader")]
    assert readers == [f"reader None {os.getpid()}"]


# --- numbers ---


@examples(60)
@given(st.integers(0, 5), st.data())
def test_numbers_are_those_that_a_list_has(length: int, data: st.DataObject) -> None:
    there = list(range(length))
    number = data.draw(st.integers(-7, 7), "number")
    kind: Any = data.draw(st.sampled_from([int, np.int8, np.int64, np.array]), "kind")
    try:
        expected = there[number]
    except IndexError:
        with pytest.raises(IndexError, match=f"row {number}: there is no such row in a pipeline of {length}"):
            numbers_of(kind(number), length)
        with pytest.raises(IndexError, match=f"row {number}"):
            numbers_of([0, number] if length else [number], length)
    else:
        assert numbers_of(kind(number), length) == expected
        assert numbers_of(np.array([number, -1]), length).tolist() == [expected, there[-1]]
    bound = st.none() | st.integers(-7, 7)
    part = slice(data.draw(bound), data.draw(bound), data.draw(st.none() | st.integers(-3, 3).filter(bool)))
    assert numbers_of(part, length).tolist() == there[part]
    mask = data.draw(st.lists(st.booleans(), min_size=length, max_size=length), "mask")
    assert numbers_of(mask, length).tolist() == [k for k in there if mask[k]]


@pytest.mark.parametrize("index", ["id", 1.0, None, (1, 2), True, np.True_, [0.5], [[1]], ["a"], b"1", {"a": 1}])
def test_values_that_are_not_numbers_are_refused(index: object) -> None:
    with pytest.raises(TypeError, match="expected an integer, a slice, or a list of integers or bools"):
        numbers_of(index, 3)


def test_odd_numbers_are_taken_or_refused_in_words(drive: Pipeline) -> None:
    assert ids(drive[np.array([3, 0], np.uint8)]) == ids(drive[range(3, -1, -3)]) == [3, 0]
    assert drive[[]] == drive[40:] == drive[5:5] == []
    with pytest.raises(IndexError, match="row 18446744073709551615"):
        drive[np.array([2**64 - 1], np.uint64)]
    with pytest.raises(IndexError, match=r"expected a mask of a pipeline of 40, got one of shape \(2,\)"):
        drive[[True, False]]
    with pytest.raises(ValueError, match="step cannot be zero"):
        drive[::0]


def test_an_endless_pipeline_has_numbers_but_no_end(drive: Pipeline) -> None:
    endless = drive.shuffle(9, seed=1).repeat()
    assert ids(endless[38:42]) == ids(list(drive.shuffle(9, seed=1).repeat(2)))[38:42]
    assert ids(endless[[1000, 1]]) == ids([endless[1000], endless[1]])
    assert ids(endless[3::-1]) == ids(endless[[3, 2, 1, 0]])
    assert ids(endless.head(2)) == ids(endless[:2])
    for index in (-1, [0, -1], slice(None), slice(2, None), slice(None, -1), slice(None, 3, -1)):
        with pytest.raises(IndexError, match="a pipeline that repeats forever"):
            endless[index]
    with pytest.raises(TypeError, match="repeats forever"):
        len(endless.at_epoch(0))
    with pytest.raises(PipelineError, match="to draw from, got a pipeline that repeats forever"):
        endless.sample(1)


def test_head_gives_the_first_and_a_sample_different_ones(drive: Pipeline) -> None:
    assert ids(drive.head()) == [0, 1, 2, 3, 4]
    assert ids(drive.skip(38).head(np.int8(9))) == [38, 39]
    drawn = ids(drive.sample(12, seed=np.int64(3)))
    assert drawn == ids(drive.sample(12, seed=3)) != ids(drive.sample(12, seed=4))
    assert len(set(drawn)) == 12
    assert drawn != sorted(drawn)
    assert sorted(ids(drive.sample(40))) == list(range(40))
    assert drive.sample(0) == []
    assert len(drive.batch(16).sample(2)[0]["id"]) in (8, 16)
    for wrong in (-1, 1.5, None):
        with pytest.raises(PipelineError, match="head: expected an integer >= 0"):
            drive.head(wrong)
    with pytest.raises(PipelineError, match="expected at least 41 elements to draw from, got 40"):
        drive.sample(41)
    with pytest.raises(PipelineError, match="expected an integer seed"):
        drive.sample(1, seed="x")
    with pytest.raises(PipelineError, match="at_epoch: expected an integer >= 0, got -1"):
        drive.at_epoch(-1)


@pytest.mark.parametrize(("length", "count"), [(10, 3), (1_000_000_000_000, 1000), (4001, 1000), (3, 3)])
def test_drawn_numbers_are_different_and_those_of_their_seed(length: int, count: int) -> None:
    drawn = drawn_numbers(length, count, 5)
    assert len(set(drawn.tolist())) == count
    assert drawn.min() >= 0
    assert drawn.max() < length
    assert drawn.tolist() == drawn_numbers(length, count, 5).tolist()
    assert count < 4 or drawn.tolist() != drawn_numbers(length, count, 6).tolist()


def test_what_has_no_numbers_is_refused(drive: Pipeline) -> None:
    with pytest.raises(PipelineError, match=r"got transform\(drops=True\)"):
        drive.transform(lambda row: row, drops=True)[0]
    with pytest.raises(PipelineError, match="got a served one"):
        Pipeline(address="tcp://127.0.0.1:1")[0]
    with pytest.raises(EmptySelectionError, match="expected at least one item"):
        drive.where(pc.field("id") > 100).head()
    with pytest.raises(IndexError, match="in a pipeline of 0"):
        drive.where(pc.field("id") > 100)[0]


def test_an_element_that_fails_is_one_element(drive: Pipeline) -> None:
    strict = drive.nulls("error", "speed")
    assert strict[1]["speed"] == 0.5
    with pytest.raises(NullValueError, match="field 'speed'"):
        strict[5]
    assert strict[[2, 3]][1]["speed"] == 1.5
