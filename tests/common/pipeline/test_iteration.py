"""`stats()` of an iterator: rows and elements returned, read, filtered, cached and skipped."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquetry import LoaderStats, Pipeline, mix
from parquetry.common.base.errors import TransformError
from parquetry.common.pipeline.pipeline_iterator import PipelineIterator

ROWS = 60


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("stats") / "rows.parquet"
    pq.write_table(pa.table({"id": range(ROWS), "text": [str(n) for n in range(ROWS)]}), path, row_group_size=20)
    return str(path)


def threads(url: str, *fields: str) -> Pipeline:
    return Pipeline(url, list(fields) or None, workers=2, executor="threads")


def used_up(pipeline: Pipeline) -> LoaderStats:
    iterator = iter(pipeline)
    assert isinstance(iterator, PipelineIterator)
    for _ in iterator:
        pass
    return iterator.stats()


def test_it_counts_what_was_given_and_read(url: str) -> None:
    found = used_up(threads(url).shuffle(10, seed=1).batch(8))
    assert (found.rows, found.elements) == (ROWS, 8)
    group = pq.read_metadata(url).row_group(0)
    assert found.read_bytes >= 3 * 0.9 * sum(group.column(n).total_compressed_size for n in range(2))
    assert found.delivered_bytes > ROWS * 8
    assert found.parquet_s > 0 < found.decode_s
    assert (found.filtered_rows, found.cache_hits, found.failed_elements, found.memory_bytes) == (0, 0, 0, 0)
    assert used_up(threads(url, "id").batch(8)).read_bytes < found.read_bytes


def test_rows_are_elements_without_batch(url: str) -> None:
    iterator = iter(threads(url).take(25))
    next(iterator)
    assert iterator.stats().memory_bytes > 0
    assert len(list(iterator)) == 24
    found = iterator.stats()
    assert (found.rows, found.elements) == (25, 25)
    assert iter(threads(url)).stats().elements == 0


@pytest.mark.parametrize("batch", [None, 7])
def test_threads_that_share_an_iterator_take_each_row_once(url: str, batch: int | None) -> None:
    pipeline = threads(url, "id").repeat(5)
    iterator = iter(pipeline if batch is None else pipeline.batch(batch))

    def take() -> list[int]:
        found = []
        for row in iterator:
            found += np.atleast_1d(row["id"]).tolist()
            time.sleep(0.0001)  # another thread takes the next row
        return found

    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(take) for _ in range(4)]
    assert sorted(id for part in parts for id in part.result()) == sorted([*range(ROWS)] * 5)


def small(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["id"] % 3 == 0 else None


def fails_once(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 7:
        raise ValueError("bad")
    return row


def test_filters_caches_and_failures_are_counted(url: str, tmp_path: Path) -> None:
    assert used_up(threads(url).where(pc.field("id") >= 30).batch(8)).filtered_rows == 10  # from the row group it cuts
    dropped = used_up(threads(url).transform(small, drops=True).batch(8))
    assert (dropped.rows, dropped.filtered_rows) == (20, 40)
    assert dropped.transform_s > 0
    cached = threads(url).cache(str(tmp_path / "kept")).batch(8)
    assert used_up(cached).cache_misses == 3
    again = used_up(cached)
    assert (again.cache_hits, again.cache_misses, again.read_bytes) == (3, 0, 0)
    iterator = iter(threads(url).transform(fails_once).batch(8))
    with pytest.raises(TransformError, match="bad"):
        list(iterator)
    assert sum(len(batch["id"]) for batch in iterator) == ROWS - 8
    found = iterator.stats()
    assert (found.failed_elements, found.elements) == (1, 7)


def test_a_sidecar_and_its_workers_add_up(url: str) -> None:
    pipeline = threads(url).transform(small, drops=True).batch(8).with_options(executor="sidecar", workers=1)
    for _ in range(2):  # the second has the same sidecar and starts at zero
        found = used_up(pipeline)
        assert (found.rows, found.elements, found.filtered_rows) == (20, 3, 40)
        assert min(found.parquet_s, found.decode_s, found.transform_s, found.hand_over_s) > 0
        assert found.read_bytes > 0 < found.delivered_bytes
        assert found.memory_bytes >= 0


def test_a_mix_and_a_resumed_iterator_are_counted(url: str) -> None:
    mixed = mix([threads(url), threads(url)], seed=3)
    assert used_up(mixed.batch(10)).rows > 0
    first = iter(threads(url).shuffle(10, seed=1).batch(8))
    next(first)
    other = iter(threads(url).shuffle(10, seed=1).batch(8)).load_state_dict(first.state_dict())
    rest = [batch["id"] for batch in other]
    assert other.stats().elements == len(rest) == 7
    assert np.concatenate(rest).size == ROWS - 8


@pytest.mark.parametrize("batch", [None, 8])
def test_an_iterator_that_is_broken_off_holds_nothing(url: str, batch: int | None) -> None:
    pipeline = threads(url) if batch is None else threads(url).batch(batch)
    iterator = iter(pipeline)
    next(iterator)
    iterator.close()
    assert iterator.stats().memory_bytes == 0
