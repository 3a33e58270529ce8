"""The measurement of what counting costs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import counting
from parquetry import Pipeline


def test_every_counting_function_is_found_where_it_is_called() -> None:
    assert all(counting.PLACES.values())
    assert counting.PLACES.keys() == counting.costs().keys()


def test_the_share_is_one_of_an_epoch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "x.parquet")
    pipeline = Pipeline(tmp_path, executor="threads").batch(10)
    cost = dict.fromkeys(counting.PLACES, 0.0)
    assert counting.share(pipeline, cost) == 0
    assert counting.share(pipeline, {**cost, "Tally.add_like": 1.0}) > 0
