"""A pipeline is written like any other rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import EncodeError, PipelineError

ROWS = 23
TOKENS = UnischemaField("tokens", np.int32, (None,))


@pytest.fixture
def source(tmp_path: Path) -> Pipeline:
    when = [datetime.datetime(2020, 1, 1, 0, n, microsecond=7) for n in range(ROWS)]
    speed = [None if n % 4 == 0 else n / 2 for n in range(ROWS)]
    columns = {"id": range(ROWS), "text": ["ab"[: n % 3] for n in range(ROWS)], "when": when, "speed": speed}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=5)
    return Pipeline(tmp_path / "rows.parquet", executor="threads")


def schema_of(source: Pipeline) -> Unischema:
    return Unischema("tokenized", [*source.schema, TOKENS])


def test_texts_are_tokenized_once_into_a_dataset(source: Pipeline, tmp_path: Path) -> None:
    tokenized = source.tokenize(lambda text: list(text.encode()), "text")
    write_dataset(tmp_path / "made", schema_of(source), tokenized, files=3, row_group_rows=4)
    files = sorted((tmp_path / "made").glob("*.parquet"))
    assert [len(Pipeline(file)) for file in files] == [7, 8, 8]
    read = Pipeline(tmp_path / "made")
    assert [{name: str(value) for name, value in row.items()} for row in read] == [
        {name: str(value) for name, value in row.items()} for row in tokenized
    ]


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda rows: rows.batch(4), ROWS),
        (lambda rows: rows.batch(4, drop_remainder=True), 20),
        (lambda rows: rows.transform(lambda row: row if row["id"] % 2 else None, drops=True), ROWS // 2),
        (lambda rows: rows.take(3).repeat(2), 6),
        (lambda rows: rows.take(0), 0),
    ],
)
def test_batches_and_unknown_numbers_of_rows_are_written(
    source: Pipeline, tmp_path: Path, change: Any, rows: int
) -> None:
    tokenized = change(source.tokenize(lambda text: [len(text)], "text"))
    write_dataset(tmp_path / "made", schema_of(source), tokenized)
    assert len(Pipeline(tmp_path / "made")) == rows


def test_packed_items_are_written(source: Pipeline, tmp_path: Path) -> None:
    names = ("tokens", "segment_ids", "position_ids")
    schema = Unischema("packed", [UnischemaField(name, np.int32, (8,)) for name in names])
    packed = source.tokenize(lambda text: [1] * len(text), "text").pack_rows(8, "tokens")
    write_dataset(tmp_path / "made", schema, packed)
    assert len(Pipeline(tmp_path / "made")) == len(packed) == 3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda rows: rows.repeat(), PipelineError, "expected a pipeline that ends, got one that repeats forever"),
        (lambda rows: rows.as_tuple("id"), PipelineError, r"one value for each field, got the tuples of as_tuple\(\)"),
        (lambda rows: rows.ngram({0: ["id"], 1: ["id"]}), PipelineError, "got windows with fields at offsets"),
        (lambda rows: rows.rename({"id": "number"}), EncodeError, r"got also \['number'\]"),
    ],
)
def test_a_pipeline_that_does_not_fit_writes_nothing(
    source: Pipeline, tmp_path: Path, change: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        write_dataset(tmp_path / "made", source.schema, change(source))
    assert not list(tmp_path.glob("made/**/*.parquet"))
