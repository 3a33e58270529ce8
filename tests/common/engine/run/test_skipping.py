"""Failing rows are skipped, counted and remembered (`on_error="skip"`); `tests/mishaps.py` has the property test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import write_table
from ids import ids_by_element as ids
from PIL import Image
from spies import spied

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, mix
from parquetry.common.base.errors import DecodeError, PipelineError, StateError
from parquetry.common.base.metrics.counters import Count, Counters
from parquetry.common.base.metrics.loader_stats import SkippedRow
from parquetry.common.engine.run.bad_rows import BadRows, FailedItem, bad_rows_of
from parquetry.common.engine.run.skipping import SkippingPlanner
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.plan.order.cursor import Cursor

ROWS = 23
BAD = (0, 7, 8, 22)
IMAGE = UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("png"))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Images, some of them damaged, and nulls in another field."""
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    good = IMAGE.storage.encode(IMAGE, np.zeros((2, 2, 3), np.uint8))
    ids = pa.array(range(ROWS), pa.int64())
    images = pa.array([b"damaged" if row in BAD else bytes(good) for row in range(ROWS)], pa.binary())
    score = pa.array([None if row == 3 else float(row) for row in range(ROWS)])
    table = pa.table({"id": ids, "image": images, "score": score, "drive": pa.array([row // 9 for row in range(ROWS)])})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=5)
    return str(tmp_path / "rows.parquet")


def images(url: str, **options: Any) -> Pipeline:
    return Pipeline(url, ["id", "drive", IMAGE], workers=2, **{"on_error": "skip", **options})


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every search for failing rows."""
    from parquetry.common.engine.run import loop

    return spied(monkeypatch, loop, "failing_items", lambda job, *_: job.count)


def test_rows_that_do_not_decode_are_left_out_named_and_reported(url: str, caplog: pytest.LogCaptureFixture) -> None:
    iterator = iter(images(url).batch(4))
    found = ids(iterator)
    good = [row for row in range(ROWS) if row not in BAD]
    assert found == [good[first : first + 4] for first in range(0, len(good), 4)]
    stats = iterator.stats()
    assert (stats.skipped_decode, stats.skipped_rows, stats.failed_elements) == (4, 4, 0)
    where = [(0, 0), (1, 2), (1, 3), (4, 2)]
    assert list(stats.skipped) == [SkippedRow(file=url, row_group=g, row=r, cause="DecodeError") for g, r in where]
    assert stats.to_json()["skipped"][1] == {"file": url, "row_group": 1, "row": 2, "cause": "DecodeError"}
    shown = "".join(str(stats).split())
    assert "(4decode,0null,0transform)" in shown
    assert f"thefirst:DecodeErrorin{url},rowgroup0".replace(" ", "") in shown
    (warning,) = [record.getMessage() for record in caplog.records if "bad rows" in record.getMessage()]
    assert warning.startswith("Skipped 4 bad rows in this epoch (on_error='skip'). First: DecodeError")


def test_the_next_epoch_and_the_next_run_know_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = count_decodes(monkeypatch)
    pipeline = images(url).shuffle(10, seed=2).batch(4)
    with pytest.raises(TypeError, match=r"len\(\): unknown, because on_error='skip' may leave rows out"):
        len(pipeline)
    first = ids(pipeline)
    assert searched
    searched.clear()
    assert len(pipeline) == len(first) == 5
    second = ids(pipeline)
    assert sorted(map(sorted, second)) != first  # another order
    anew = images(url).shuffle(10, seed=2).batch(4)
    assert len(anew) == 5
    assert ids(anew) == first
    assert searched == []
    assert len(images(url).batch(4, drop_remainder=True)) == 4
    assert len(images(url).repeat(3)) == 57
    with pytest.raises(TypeError):
        len(Pipeline(url, ["id"], on_error="skip"))  # other fields may decode


def test_a_functions_failures_are_forgotten_with_its_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 5:
            raise KeyError("five")
        return row

    def made() -> Pipeline:
        return Pipeline(url, ["id"], executor="threads", on_error="skip").transform(fail)

    searched = count_decodes(monkeypatch)
    pipeline = made()
    assert ids(pipeline) == [row for row in range(ROWS) if row != 5]
    assert len(pipeline) == ROWS - 1
    searched.clear()
    ids(pipeline)
    assert searched == []
    ids(made())
    assert searched


def test_ranks_that_keep_step_give_their_first_rows_again(url: str) -> None:
    plain = images(url, on_error=None).select("id")
    for rank in range(2):
        whole = ids(plain.shard(2, rank))
        good = [row for row in whole if row not in BAD]
        pipeline = images(url).shard(2, rank)
        assert len(pipeline) == len(whole)
        assert ids(pipeline) == (good + good)[: len(whole)]
        batched = images(url).shard(2, rank).batch(5)
        iterator = iter(batched)
        states = [iterator.state_dict(), *(iterator.state_dict() for _ in iterator)]
        assert all(len(json.dumps(state)) < 1024 for state in states)
        for taken, state in enumerate(states):
            resumed = iter(batched)
            resumed.load_state_dict(state)
            assert ids(resumed) == ids(batched)[taken:]


CHAINS: dict[str, Callable[[Pipeline, int], Pipeline]] = {
    "rows": lambda rows, rank: rows.shard(4, rank),
    "batches": lambda rows, rank: rows.shard(4, rank).batch(4),
    "passes": lambda rows, rank: rows.shard(4, rank).repeat(2).batch(3),
    "its own shuffle": lambda rows, rank: rows.shard(4, rank).shuffle(5, seed=1, reshuffle_each_iteration=False),
    "windows": lambda rows, rank: rows.ngram(length=1, timestamp="id").shard(4, rank),
    "buckets": lambda rows, rank: rows.bucket("id", [8, 24], batch_size=2).shard(4, rank),
    "a mix": lambda rows, rank: mix([rows], seed=0).shard(4, rank).batch(4),
    "full batches only": lambda rows, rank: rows.shard(4, rank, even="drop").batch(3, drop_remainder=True),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_ranks_stay_in_step_where_a_long_run_of_rows_fails(tmp_path: Path, chain: str) -> None:
    """A rank whose rows all fail takes those of other ranks; if no rank has any, all end in the same error."""
    pq.write_table(pa.table({"id": range(40)}), tmp_path / "rows.parquet", row_group_size=5)

    def made(rank: int, bad: int) -> Pipeline:
        def fail(row: dict[str, Any]) -> dict[str, Any]:
            if np.min(row["id"]) < bad:
                raise ValueError("damaged")
            return row

        source = Pipeline(tmp_path / "rows.parquet", executor="threads", on_error="skip")
        if chain in ("windows", "buckets"):
            return CHAINS[chain](source, rank).transform(fail, batched=chain == "buckets")
        return CHAINS[chain](source.transform(fail), rank)

    for rank in (1, 2):
        whole, pipeline = ids(made(rank, 0)), made(rank, 20)
        found, iterator = ids(pipeline), iter(pipeline)
        assert len(found) == len(whole) == len(pipeline)
        assert chain == "buckets" or [np.shape(each) for each in found] == [np.shape(each) for each in whole]
        assert np.min(np.concatenate(list(map(np.ravel, found)))) >= 20
        states = [iterator.state_dict() for _ in iterator]
        for taken in (1, len(states) // 2, len(states)):
            resumed = iter(made(rank, 20))  # knows of no bad row
            assert ids(resumed.load_state_dict(states[taken - 1])) == found[taken:]
        counts = [[_elements(made(rank, bad), worker, 2) for worker in range(2)] for bad in (0, 20)]
        assert counts[0] == counts[1]
        with pytest.raises(PipelineError, match=r"all of \d+ consecutive (rows|batches) failed"):
            ids(made(rank, 40))


def _elements(pipeline: Pipeline, worker: int, workers: int) -> int:
    """Returns how many elements a loader worker gives."""
    steps = StepIterator(pipeline, 0, strict_nulls=False, worker=worker, workers=workers)
    return sum(1 if pipeline.element.batched else rows for rows, _ in steps)


@pytest.mark.parametrize("most", [3, 0.14, np.int16(3)])
def test_more_errors_than_allowed_end_the_epoch(url: str, most: Any) -> None:
    iterator = iter(images(url, max_errors=most))
    found = []
    with pytest.raises(
        PipelineError, match=r"max_errors=.*: expected at most 3 rows .* The last: DecodeError: .*row 2"
    ):
        found.extend(ids(iterator))
    assert next(iterator, None) is None
    assert ids(images(url, max_errors=4)) == ids(images(url, max_errors=0.18).repeat(2))[: ROWS - 4]


def test_a_fraction_of_zero_allows_no_errors_and_one_allows_all(url: str) -> None:
    with pytest.raises(PipelineError, match=r"max_errors=0\.0: expected at most 0 rows .* row 0"):
        ids(images(url, max_errors=0.0))
    assert ids(images(url, max_errors=1.0)) == [row for row in range(ROWS) if row not in BAD]


def test_a_part_without_a_good_row_in_one_pass_may_have_some_in_the_next(tmp_path: Path) -> None:
    """Another shuffle deals a loader worker other rows, so it does not give up after a pass whose rows all failed."""

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] < 3:
            raise ValueError("less than three")
        return row

    pq.write_table(pa.table({"id": list(range(6))}), tmp_path / "rows.parquet")
    pipeline = Pipeline(tmp_path / "rows.parquet", executor="threads", on_error="skip").transform(fail)
    for seed in range(3):
        endless = pipeline.shuffle(6, seed=seed).repeat().batch(2)
        for worker in range(3):
            steps = StepIterator(endless, 0, strict_nulls=False, worker=worker, workers=3)
            assert sum(1 for _ in itertools.islice(steps, 12)) == 12
            steps.close()


def test_errors_are_counted_pass_by_pass(url: str) -> None:
    """The limit of a pass is not lent to the passes before it, although one job reads rows of several."""
    batches = iter(images(url, max_errors=3).repeat(3).batch(5))
    good = [row for row in range(ROWS) if row not in BAD]
    assert [next(batches)["id"].tolist() for _ in range(3)] == [good[first : first + 5] for first in (0, 5, 10)]
    with pytest.raises(PipelineError, match=r"max_errors=3: expected at most 3 rows .* row 2"):
        next(batches)


def test_a_part_of_an_epoch_counts_the_errors_before_it(url: str) -> None:
    pipeline = images(url, max_errors=3).batch(4)
    iterator = iter(pipeline)
    next(iterator), next(iterator)
    resumed = iter(pipeline)
    resumed.load_state_dict(iterator.state_dict())
    with pytest.raises(PipelineError, match="max_errors"):
        list(resumed)


@pytest.mark.parametrize("size", [None, 4])
def test_a_state_leaves_out_no_more_rows_than_there_are_beside_its_elements(url: str, size: int | None) -> None:
    pipeline = images(url) if size is None else images(url).batch(size)
    iterator = iter(pipeline)
    next(iterator)
    state, most = iterator.state_dict(), ROWS - (size or 1)
    for skipped in (most + 1, ROWS):
        with pytest.raises(StateError, match=rf"expected a position .* got 1 elements .* with {skipped} rows left out"):
            iter(pipeline).load_state_dict({**state, "skipped": skipped})
    at_end = iter(pipeline)
    at_end.load_state_dict({**state, "skipped": most})
    assert ids(at_end) == []
    for state in [iterator.state_dict() for _ in iterator]:
        iter(pipeline).load_state_dict(state)


def test_windows_with_a_bad_row_are_left_out(url: str) -> None:
    windows = images(url).ngram(length=3, timestamp="id")
    spans = [[row, row + 1, row + 2] for row in range(ROWS - 2)]
    assert ids(windows) == [span for span in spans if not set(span) & set(BAD)]


def test_nulls_are_left_out_where_they_are_errors(url: str) -> None:
    from parquetry.common.pipeline.step_iterator import StepIterator

    pipeline = Pipeline(url, ["id", "score"], on_error="skip")
    assert len(ids(pipeline)) == ROWS  # numpy can represent them
    steps: StepIterator[Any] = StepIterator(pipeline, 0, strict_nulls=True)
    assert sum(count for count, _ in steps) == ROWS - 1
    assert steps.stats().skipped_null == 1
    assert pipeline.length_where(strict_nulls=True) == ROWS - 1
    assert len(pipeline) == ROWS


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.list_(pa.int32()), [1, 2], [1, None]),
        (pa.list_(pa.string()), ["a", "b"], ["a", None]),
        (pa.list_(pa.float32(), 2), [1.0, 2.0], [1.0, None]),
        (pa.list_(pa.list_(pa.int32())), [[1, 2], [3, 4]], [[1, 2], None]),
        (pa.list_(pa.list_(pa.int32())), [[1, 2], [3, 4]], [[1, 2], [3]]),
        (pa.list_(pa.list_(pa.int32(), 2), 2), [[1, 2], [3, 4]], [[1, None], [3, 4]]),
    ],
    ids=str,
)
def test_lists_that_form_no_array_are_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, kind: pa.DataType, good: Any, bad: Any
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    lists = [bad if row in BAD else good for row in range(ROWS)]
    table = pa.table({"id": range(ROWS), "list": pa.array(lists, kind)})
    pq.write_table(table, tmp_path / "lists.parquet", row_group_size=5)
    rows = Pipeline(str(tmp_path / "lists.parquet"), executor=executor, on_error="skip")
    expected = [row for row in range(ROWS) if row not in BAD]
    assert ids(rows) == expected
    assert ids(rows.batch(4)) == [expected[first : first + 4] for first in range(0, len(expected), 4)]


def test_mixes_leave_out_rows_of_each_source(url: str) -> None:
    plain = mix([images(url, on_error=None).select("id"), Pipeline(url, ["id"]).take(6)], seed=1)
    source = images(url, on_error=None)
    mixed = mix([source, source.take(6)], seed=1).with_options(on_error="skip")
    assert ids(mixed) == [row for row in ids(plain) if row not in BAD]
    assert ids(mixed.batch(4)) == [ids(mixed)[first : first + 4] for first in range(0, len(ids(mixed)), 4)]


def test_rows_drawn_by_weight_are_left_out_each_time(url: str) -> None:
    drawn = ids(images(url, on_error=None).select("id").weigh("id", num_items=40, seed=3))
    assert ids(images(url).weigh("id", num_items=40, seed=3)) == [row for row in drawn if row not in BAD]


def test_the_sidecar_gives_the_same_and_a_state_without_errors_resumes(url: str) -> None:
    good = [row for row in range(ROWS) if row not in BAD]
    raising = iter(images(url, on_error="raise").where([("id", ">", 0)]))
    assert ids(next(raising) for _ in range(6)) == good[:6]
    with pytest.raises(DecodeError):
        next(raising)
    pipeline = images(url).where([("id", ">", 0)])
    resumed = iter(pipeline.with_options(executor="sidecar"))
    resumed.load_state_dict(raising.state_dict())
    assert ids(resumed) == good[6:]
    assert resumed.stats().skipped_rows == 2
    with pytest.raises(StateError, match=r"expected a pipeline with on_error='skip', because rows that failed \(1\)"):
        iter(images(url, on_error="raise").where([("id", ">", 0)])).load_state_dict(resumed.state_dict())


def test_batches_resume_from_a_state_saved_before_the_error(url: str) -> None:
    raising, delivered = iter(images(url, on_error="raise").batch(4)), list[int]()
    while True:
        state = raising.state_dict()
        try:
            delivered += next(raising)["id"].tolist()
        except DecodeError:
            break
    resumed = iter(images(url).batch(4))
    resumed.load_state_dict(state)
    assert delivered + [row for batch in resumed for row in batch["id"].tolist()] == [
        row for row in range(ROWS) if row not in BAD
    ]


def test_an_error_that_no_single_row_causes_belongs_to_the_batch(url: str) -> None:
    def refuses_eights(batch: dict[str, Any]) -> dict[str, Any]:
        if len(batch["id"]) == 5 and batch["id"][0] == 5:
            raise ValueError("five of them")
        return batch

    pipeline = Pipeline(url, ["id"], executor="threads", on_error="skip").transform(refuses_eights, batched=True)
    iterator = iter(pipeline.batch(5))
    assert next(iterator)["id"][0] == 0
    with pytest.raises(Exception, match="five of them"):
        next(iterator)
    assert ids(iterator) == [list(range(first, min(first + 5, ROWS))) for first in (10, 15, 20)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.batch(2).skip(3), r"cannot be combined with skip\(\) after batch\(\)\. Call it before"),
        (
            lambda rows: rows.batch(2).skip(3).take(3),
            r"cannot be combined with skip\(\) after batch\(\)\. Call it before",
        ),
        (lambda rows: rows.batch(2).repeat(2), r"cannot be combined with repeat\(\) after batch\(\)\. Call it before"),
    ],
)
def test_stages_whose_elements_cannot_be_filled_are_refused(
    url: str, change: Callable[[Pipeline], Pipeline], message: str
) -> None:
    with pytest.raises(PipelineError, match=f"on_error='skip': {message}"):
        iter(change(Pipeline(url, ["id", "drive"], on_error="skip"))).__next__()


def test_a_take_that_cuts_nothing_off_changes_nothing(url: str) -> None:
    for pipeline in (images(url).batch(4), images(url).batch(4).take(6), images(url).batch(4).take(100)):
        iterator = iter(pipeline)
        list(iterator)
        assert iterator.stats().skipped_rows == 4


def test_a_row_for_which_a_function_ran_out_of_memory_may_be_bad(url: str) -> None:
    def claimed(row: dict[str, Any]) -> dict[str, Any]:
        try:
            if row["id"] == 5:
                raise MemoryError
        except MemoryError:
            raise ValueError("an absurd size")  # noqa: B904  # what users write
        return row

    pipeline = Pipeline(url, ["id"], executor="threads", on_error="skip").transform(claimed)
    assert ids(pipeline) == [row for row in range(ROWS) if row != 5]


def test_images_that_are_too_large_are_tried_again_with_another_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = UnischemaField("image", np.uint8, (30, 30, 3), CompressedImageCodec("png"))
    png = bytes(image.storage.encode(image, np.zeros((30, 30, 3), np.uint8)))
    url = write_table(tmp_path / "images", pa.table({"id": range(3), "image": pa.array([png] * 3, pa.binary())}))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert ids(Pipeline(url, ["id", image], executor="threads", on_error="skip")) == []
    assert ids(Pipeline(url, ["id", image], executor="threads", on_error="skip")) == []
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    assert ids(Pipeline(url, ["id", image], executor="threads", on_error="skip")) == [0, 1, 2]


def test_only_rows_of_taken_batches_count(url: str) -> None:
    iterator = iter(images(url, max_errors=1).batch(4).take(1))
    assert ids(iterator) == [[1, 2, 3, 4]]
    assert iterator.stats().skipped_rows == 1
    with pytest.raises(PipelineError, match="expected at most 1 rows"):
        ids(images(url, max_errors=1).batch(4).take(2))
    assert len(ids(images(url, max_errors=0.26).batch(4).take(1))) == 1  # of four rows
    with pytest.raises(PipelineError, match="expected at most 0 rows"):
        ids(images(url, max_errors=0.2).batch(4).take(1))
    assert ids(images(url).repeat().batch(4).take(7)) == ids(images(url).repeat(9).batch(4))[:7]


def test_rows_by_number_are_not_left_out(url: str) -> None:
    with pytest.raises(PipelineError, match="rows by number: expected on_error='raise', got 'skip'"):
        images(url)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, r"expected on_error to be one of \('raise', 'skip'\) or None, got 'ignore'"),
        ({"on_error": "skip", "max_errors": -1}, "expected max_errors to be an integer >= 0, a share .*, got -1"),
        ({"on_error": "skip", "max_errors": float("nan")}, "expected max_errors to be .*, got nan"),
        ({"on_error": "skip", "max_errors": 1.5}, "expected max_errors to be an integer >= 0, a share .*, got 1.5"),
        ({"on_error": "skip", "max_errors": "many"}, "got 'many'"),
        ({"max_errors": 3}, "expected max_errors together with on_error='skip', got max_errors=3"),
    ],
)
def test_options_out_of_range_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Pipeline(url, **options)


@pytest.mark.parametrize("verbs", [lambda rows: rows.repeat(), lambda rows: rows.repeat().batch(4)])
def test_an_endless_epoch_without_a_good_row_ends(tmp_path: Path, verbs: Any) -> None:
    table = pa.table({"id": range(9), "image": [b"x"] * 9})
    pq.write_table(table, tmp_path / "bad.parquet")
    field = UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("png"))
    rows = Pipeline(tmp_path / "bad.parquet", ["id", field], executor="threads", on_error="skip")
    with pytest.raises(PipelineError, match=r"all of \d+ consecutive rows failed"):
        next(iter(verbs(rows)))


def test_the_length_behind_a_dropped_remainder_is_not_known_from_it(url: str) -> None:
    rows = images(url)
    list(rows.batch(ROWS - 5, drop_remainder=True))
    with pytest.raises(TypeError, match="unknown"):
        len(rows)


def test_a_function_has_a_length_of_its_own(url: str) -> None:
    list(images(url))
    with pytest.raises(TypeError):
        len(images(url).transform(lambda row: row))
    assert len(images(url)) == ROWS - 4


def test_a_mix_refuses_sources_that_treat_errors_differently(url: str) -> None:
    with pytest.raises(PipelineError, match="expected pipelines with the same on_error"):
        mix([images(url), Pipeline(url)])


def test_processes_that_keep_bad_rows_at_once_lose_none(url: str) -> None:
    plans = [images(url).plan() for _ in range(9)]
    knowers = [BadRows(plan, replace(plan.program, strict_nulls=True)) for plan in plans]  # each process has its own

    def find(number: int) -> None:
        (read,) = plans[number].reads(0, *plans[number].lane(Cursor()).resolve(np.array([number])))
        knowers[number].add(FailedItem(read.key, int(read.items[0]), None, DecodeError(f"row {number}")))
        knowers[number].save()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(find, range(8)))
    knowers[8].refresh()
    assert {failure.message for failure in knowers[8].known.values()} == {f"row {number}" for number in range(8)}


def test_taking_over_counts_no_row_twice(url: str, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = images(url).batch(4)
    list(pipeline)  # so all are known
    plan, counters = pipeline.plan(), Counters()

    def planner(cursor: Cursor) -> SkippingPlanner:
        return SkippingPlanner(plan, cursor, bad=bad_rows_of(plan, plan.program), max_errors=None, counters=counters)

    died = planner(Cursor())
    jobs = list(died)
    for job in jobs[:3]:
        died.passed(job)
    caplog.clear()
    other = planner(Cursor(start=1, skipped=died.skipped_after(jobs[0], 1)))
    for job in other:
        other.passed(job)
    other.finish()
    assert counters.totals()[Count.SKIPPED_DECODE] == len(counters.noted()) == len(BAD)
    assert "Skipped 4 bad rows" in caplog.text
