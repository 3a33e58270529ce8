"""`generate_metadata`: a schema for plain Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.tools import generate_metadata
from parquetry.common.base.errors import DatasetError, SchemaError
from parquetry.common.compat.petastorm import unischema as petastorm


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "plain" / "day=1").mkdir(parents=True)
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", None], "codes": [[1], []]})
    pq.write_table(table, tmp_path / "plain" / "day=1" / "part.parquet")
    return tmp_path / "plain"


def test_plain_parquet_gets_its_schema_from_its_columns(plain: Path) -> None:
    before = Pipeline(plain).schema
    assert generate_metadata(plain) == before
    assert (plain / "_common_metadata").exists()
    assert Pipeline(plain).schema == before
    assert [row["id"] for row in Pipeline(plain)] == [1, 2]


def test_lost_metadata_is_written_again_from_a_given_schema(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("id", np.int64), UnischemaField("x", np.int8, (None,), NdarrayCodec())])
    write_dataset(tmp_path / "s", schema, [{"id": 1, "x": np.array([1, 2], np.int8)}])
    (tmp_path / "s" / "_common_metadata").unlink()
    assert generate_metadata(tmp_path / "s", schema) == schema
    (row,) = Pipeline(tmp_path / "s")
    assert row["x"].tolist() == [1, 2]


def test_a_schema_of_petastorms_form_is_taken(plain: Path) -> None:
    schema = petastorm.Unischema("s", [petastorm.UnischemaField("id", np.int64, ())])
    generate_metadata(plain, schema)  # type: ignore[arg-type]  # taken by its to_parquetry()
    assert Pipeline(plain).schema.id.dtype == np.int64


def test_a_schema_that_is_there_stays_unless_it_is_to_go(plain: Path) -> None:
    generate_metadata(plain)
    with pytest.raises(DatasetError, match="already has a schema"):
        generate_metadata(plain)
    schema = Unischema("other", [UnischemaField("id", np.int64)])
    assert generate_metadata(plain, schema, overwrite=True) == schema
    assert "name" not in Pipeline(plain).schema


def test_fields_without_a_column_are_refused_unless_nullable(plain: Path) -> None:
    with pytest.raises(SchemaError, match=r"expected columns for the fields \['bogus'\]"):
        generate_metadata(plain, Unischema("s", [UnischemaField("id", np.int32), UnischemaField("bogus", np.int8)]))
    generate_metadata(
        plain, Unischema("s", [UnischemaField("id", np.int32), UnischemaField("more", np.int8, (), None, True)])
    )


def test_columns_that_cannot_become_tensors_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "odd": pa.array([None], pa.null())}), tmp_path / "part.parquet")
    with pytest.raises(SchemaError, match="field 'odd'"):
        generate_metadata(tmp_path)
    assert not (tmp_path / "_common_metadata").exists()


def test_a_field_may_be_in_newer_files_only(plain: Path) -> None:
    (plain / "day=2").mkdir()
    pq.write_table(pa.table({"id": [5], "score": [0.5]}), plain / "day=2" / "part.parquet")
    schema = generate_metadata(plain, Unischema("s", [UnischemaField("score", np.float64)]))
    assert [row["score"] for row in Pipeline(plain).select("score")][-1] == 0.5
    assert not schema.score.nullable
    assert Pipeline(plain).schema.score.nullable
