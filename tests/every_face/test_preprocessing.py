"""Fitted verbs and what serving makes of the same rows, in every framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faces import installed_faces, plain_element
from table_rows import plain

from parquetry.common import Pipeline


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    path = Path(tmp_path_factory.mktemp("rows")) / "rows.parquet"
    rng = np.random.default_rng(5)
    columns = {
        "price": pa.array(rng.lognormal(3, 1, 60), mask=rng.random(60) < 0.2),
        "age": rng.integers(18, 80, 60),
        "city": [None if n % 9 == 0 else f"c{n % 4}" for n in range(60)],
        "user": [f"u{n}" for n in range(60)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=11)
    rows = Pipeline(path)
    stats = rows.hash_split("user", [0.7, 0.3], 0).fit("price", "age", "city")
    rows = rows.nulls("fill", "price", value=20).clip("price", stats=stats, quantiles=(0.05, 0.95))
    rows = rows.standardize("price", stats=stats).bucketize("age", stats=stats, buckets=4)
    return rows.encode("city", stats=stats, unknown=9, null="none").hash_encode("user", buckets=50)


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_every_face_sees_the_numbers_that_a_server_sees(features: Pipeline, face: Any) -> None:
    stored = pq.read_table(features.urls[0])
    made = features.preprocessing().apply(stored)
    expected = [{name: plain(made[name][row]) for name in made} for row in range(len(stored))]
    batched = features.batch(13)
    rows = [row for element in face.passes(batched)() for row in plain_element(batched.element, element)]
    assert [{name: plain(row[name]) for name in row} for row in rows] == expected
    assert made["price"].dtype == np.float32
