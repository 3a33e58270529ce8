"""Batches of different sizes that are made in one job: padded ones, and those of ``bucket``."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spies import spied

from parquetry.common import NdarrayCodec, Pipeline, UnischemaField, mix
from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import DecodeError
from parquetry.common.engine.run import threads
from parquetry.common.transport.sidecar.protocol import BatchHeader

ROWS = 700


@pytest.fixture
def url(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    lists = [list(range(row, row + random.integers(0, 30))) for row in range(ROWS)]
    table = pa.table(
        {
            "id": range(ROWS),
            "tokens": pa.array(lists, pa.list_(pa.int32())),
            "words": [[str(number) for number in each[:5]] for each in lists],
            "gaps": [None if row % 9 == 4 else [1.5] * (row % 6) for row in range(ROWS)],
            "grid": [[[row] * (row % 3)] * (row % 4) for row in range(ROWS)],
            "name": [None if row % 5 == 0 else "x" * (row % 4) for row in range(ROWS)],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=90)
    return str(tmp_path)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of batches in each job that is made."""
    steps: list[int] = []
    spied(monkeypatch, threads, "assemble", lambda *_, **options: steps.append(1))
    spied(
        monkeypatch, threads, "assemble_batches", lambda _, sources, bounds, *more, **o: steps.append(len(bounds) - 1)
    )
    return steps


def pipelines(url: str) -> dict[str, Pipeline]:
    wide = Pipeline(url, executor="threads").shuffle(200, seed=1, reshuffle_each_iteration=False)
    rows = wide.select("id", "tokens")
    sharded = Pipeline(url, ["id", "tokens"], executor="threads").shard(2, 1, canonical_shards=6).shuffle(100, seed=2)
    return {
        "padded": rows.batch(8).pad("tokens"),
        "padded with a rest": rows.repeat(3).batch(9).pad("tokens").take(100),
        "many padded": wide.nulls("mask", "gaps").batch(7).pad("tokens", "words", "gaps", value=None).pad("grid"),
        "padded, then cast": wide.batch(8).pad("tokens", value=-1).cast("float32", "tokens").pad("gaps"),
        "padded mix": mix([rows, rows.take(300)], seed=3).batch(8).pad("tokens"),
        "padded windows": Pipeline(url, ["id", "tokens"], executor="threads")
        .ngram(length=3, timestamp="id")
        .batch(4)
        .pad("tokens"),
        "buckets": rows.bucket("tokens", boundaries=[5, 10, 20], batch_size=8),
        "buckets of tokens": rows.bucket("tokens", boundaries=[5, 10, 20], max_tokens=100).repeat(2),
        "buckets of ranks": sharded.bucket("tokens", buckets=3, batch_size=5).repeat(3),
        "buckets in order": Pipeline(url, ["id", "tokens"], executor="threads").bucket(
            "tokens", boundaries=[9], batch_size=4
        ),
    }


@pytest.mark.parametrize("name", pipelines("unused"))
def test_they_are_the_batches_that_their_numbers_name(url: str, jobs: list[int], name: str) -> None:
    pipeline = pipelines(url)[name]
    found = list(pipeline)
    assert max(jobs) > 1
    assert len(found) == len(pipeline) > 30
    for number in {*range(0, len(found), 7), len(found) - 1}:
        assert_same(pipeline[number], found[number])


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of batches in each message of a sidecar."""
    counts: list[int] = []
    unpack_all = BatchHeader.unpack_all

    def noted(body: bytes) -> list[BatchHeader]:
        headers = unpack_all(body)
        counts.append(len(headers))
        return headers

    monkeypatch.setattr(BatchHeader, "unpack_all", noted)
    return counts


def in_sidecar(pipeline: Pipeline) -> Pipeline:
    return pipeline.with_options(executor="sidecar", workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", pipelines("unused"))
def test_a_sidecar_sends_several_in_a_message(url: str, messages: list[int], name: str) -> None:
    pipeline = pipelines(url)[name]
    found = list(in_sidecar(pipeline))
    assert max(messages) > 1
    assert len(messages) < len(found) / 2
    for element, same in zip(found, pipeline, strict=True):
        assert_same(element, same)


@pytest.mark.parametrize("name", ["padded", "buckets of ranks"])
def test_a_state_between_the_batches_of_a_message_resumes_after_it(url: str, messages: list[int], name: str) -> None:
    expected = list(pipelines(url)[name])
    for steps in (1, 2, 3, 11, 29):
        iterator = iter(in_sidecar(pipelines(url)[name]))
        for _ in range(steps):
            next(iterator)
        resumed = iter(in_sidecar(pipelines(url)[name]))
        resumed.load_state_dict(iterator.state_dict())
        iterator.close()
        for element, same in itertools.zip_longest(resumed, expected[steps:]):
            assert_same(element, same)
    assert max(messages) > 1


def test_held_ones_keep_their_values_and_do_not_stall_a_sidecar(url: str, messages: list[int]) -> None:
    pipeline = in_sidecar(pipelines(url)["buckets"].repeat(30))
    held = list(itertools.islice(iter(pipeline), 700))
    assert max(messages) > 1
    again = iter(pipelines(url)["buckets"].repeat(30))
    for element, same in zip(held, again, strict=False):
        assert_same(element, same)


@pytest.mark.parametrize("bucket", [False, True])
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_bad_rows_are_skipped_in_both_executors_alike(tmp_path: Path, bucket: bool, executor: Any) -> None:
    batches = damaged(tmp_path, bucket, executor=executor, on_error="skip")
    iterator = iter(batches)
    found = list(itertools.islice(iterator, 60))
    resumed = iter(batches)
    resumed.load_state_dict(iterator.state_dict())
    iterator.close()
    numbers = [number for batch in [*found, *resumed] for number in batch["id"].tolist()]
    assert sorted(numbers) == [row for row in range(ROWS) if row != 333]


@pytest.mark.parametrize("bucket", [False, True])
@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_only_the_batch_with_a_damaged_row_fails(
    tmp_path: Path, jobs: list[int], messages: list[int], bucket: bool, executor: Any
) -> None:
    iterator, found = iter(damaged(tmp_path, bucket, executor=executor)), list[int]()
    numbers = (number for batch in iterator for number in batch["id"].tolist())
    with pytest.raises(DecodeError, match="row 333"):
        found.extend(numbers)
    assert len(found) % 5 == 0
    found += [number for batch in iterator for number in batch["id"].tolist()]
    assert max(jobs + messages) > 1
    assert 333 not in found
    assert len(found) == len({*found}) == ROWS - 5


def damaged(directory: Path, bucket: bool, **options: Any) -> Pipeline:
    """Returns batches of rows; row 333 does not decode."""
    field = UnischemaField("points", np.float32, (None,), NdarrayCodec())
    values = [bytes(field.storage.encode(field, np.zeros(row % 4, np.float32))) for row in range(ROWS)]
    values[333] = b"damaged"
    tokens = pa.array([[1] * (row % 7) for row in range(ROWS)], pa.list_(pa.int64()))
    table = pa.table({"id": range(ROWS), "points": pa.array(values, pa.binary()), "tokens": tokens})
    pq.write_table(table, directory / "rows.parquet")
    rows = Pipeline(directory, ["id", field, "tokens"], **options)
    return rows.bucket("tokens", boundaries=[2, 4], batch_size=5) if bucket else rows.batch(5).pad("tokens")
