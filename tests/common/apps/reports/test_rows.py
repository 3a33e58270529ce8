"""Rows in short form: every kind of value, windows, batches, samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import build

from parquetry.common import Pipeline
from parquetry.common.apps.reports import preview
from parquetry.common.apps.reports.rows import shortened
from parquetry.common.base.errors import DecodeError, PipelineError
from parquetry.common.pipeline.display.text import short_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (np.ma.masked, "null"),
        (3, "3"),
        (0.1 + 0.2, "0.3"),
        (np.float32(1 / 3), "0.33333"),
        ("a\nb", "a b"),
        ("x" * 100, "x" * 77 + "..."),
        (b"ab\0", "b'ab\\x00'"),
        (b"a" * 100, "100 bytes b'" + "a" * 26 + "..."),
        (np.zeros((2, 3), np.uint8), "uint8 (2, 3) 0 0 0 0 0 0"),
        (np.arange(20), "int64 (20,) 0 1 2 3 4 5 6 7..."),
        (np.array(["a", None], object), "(2,) a null"),
        (np.ma.array([1, 2], mask=[True, False]), "int64 (2,) null 2"),
        (np.datetime64("2021-03-04"), "2021-03-04"),
        ([], "float64 (0,)"),
        ([1, None], "(2,) 1 null"),
        ([[1.5], None, [None]], "[[1.5], null, [null]]"),
    ],
)  # fmt: skip
def test_a_value_is_one_short_line(value: object, text: str) -> None:
    assert short_text(value) == text


def test_long_values_are_described_in_json() -> None:
    assert shortened(np.arange(100)) == {"dtype": "int64", "shape": [100], "min": 0, "max": 99}
    assert shortened(b"\xff" * 300) == {"bytes": 300}
    assert shortened(np.ma.array([1.0, 2.0], mask=[True, False])) == [None, 2.0]


def test_a_preview_has_the_rows_of_the_pipeline(tmp_path: Path) -> None:
    pipeline = build(tmp_path, [[8], [12]]).pipeline()
    found = preview(pipeline, 3, first=4)
    assert [element["id"] for element in found.elements] == [4, 5, 6]
    assert found.length == 20
    assert {field.name: field.shape for field in found.fields}["image"] == (4, 3, 3)
    assert json.loads(json.dumps(found.to_json()))["rows"][0]["id"] == 4
    drawn = preview(pipeline, 50, sample=True, seed=3)
    assert sorted(element["id"] for element in drawn.elements) == list(range(20))


def test_windows_tuples_batches_and_endless_pipelines_have_previews(tmp_path: Path) -> None:
    pipeline = build(tmp_path, [[20]], names=("id", "tags")).pipeline()
    window = preview(pipeline.ngram({0: ["id"], 1: ["id"]}), 1).elements[0]
    assert dict(window) == {"0.id": 0, "1.id": 1}
    batch = preview(pipeline.repeat().batch(4), 2)
    assert (len(batch.elements), batch.length) == (2, None)
    assert preview(pipeline.as_tuple({"n": "id"}, ("tags",)).skip(1), 1).elements[0] == {"id": 1, "tags": ["s1.0"]}
    assert preview(pipeline.where([("id", ">", 50)]), 3).elements == ()
    assert preview(pipeline.take(2), 5).length == 2
    with pytest.raises(PipelineError, match="expected numbers >= 0"):
        preview(pipeline, -1)


def test_nulls_inside_lists_are_shown_as_null(tmp_path: Path) -> None:
    stored = {
        "ids": pa.array([[1, None, 3], [], None, [4]], pa.list_(pa.int32())),
        "pair": pa.array([[1.5, None], [2.0, 3.0], None, [4.0, 5.0]], pa.list_(pa.float32(), 2)),
        "words": pa.array([["a", None], [], None, ["b"]]),
        "nested": pa.array([[[1], None, [2, None]], [], None, [[3, 4]]], pa.list_(pa.list_(pa.int64()))),
    }
    table = pa.table(stored)
    pq.write_table(table, tmp_path / "lists.parquet", row_group_size=2)
    pipeline = Pipeline(tmp_path / "lists.parquet")
    assert preview(pipeline).to_json()["rows"] == table.to_pylist()
    assert preview(pipeline.batch(4)).to_json()["rows"] == [table.to_pydict()]
    renamed = preview(pipeline.rename({"ids": "numbers"})).to_json()["rows"]
    assert [row["numbers"] for row in renamed] == table["ids"].to_pylist()
    windows = preview(pipeline.ngram([*stored], length=2)).to_json()["rows"]
    assert windows == [table.slice(first, 2).to_pydict() for first in range(3)]
    assert "[[1], null, [2, null]]" in pipeline._repr_html_()
    with pytest.raises(DecodeError, match="expected a list without nulls inside"):
        list(pipeline)  # only the displayed form can represent them
    with pytest.raises(DecodeError, match="expected a list without nulls inside"):
        preview(pipeline.batch(2).pad("ids"))
