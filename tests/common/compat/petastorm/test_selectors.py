"""Row-group selectors and indexes: those stored by Petastorm, and those built here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.compat.petastorm import make_reader
from parquetry.common.compat.petastorm.errors import PetastormMetadataError
from parquetry.common.compat.petastorm.etl.dataset_metadata import (
    get_schema_from_dataset_url,
    load_row_groups,
    materialize_dataset,
    open_dataset,
)
from parquetry.common.compat.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from parquetry.common.compat.petastorm.etl.rowgroup_indexing import build_rowgroup_index, get_row_group_indexes
from parquetry.common.compat.petastorm.selectors import (
    IntersectIndexSelector,
    RowGroupSelectorBase,
    SingleIndexSelector,
    UnionIndexSelector,
)

OLD = Path(__file__).parents[3] / "data" / "petastorm" / "0.4.0"
COUNT = 40


def ids(url: Any, selector: RowGroupSelectorBase, **options: Any) -> list[int]:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, "schema_fields": ["^id$"], **options}
    with make_reader(str(url), rowgroup_selector=selector, **options) as reader:
        return [int(row.id) for row in reader]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Writes 40 rows in row groups of 8, with indexes."""
    fields = [
        UnischemaField("id", np.int64),
        UnischemaField("name", str, nullable=True),
        UnischemaField("words", str, (None,), NdarrayCodec(), nullable=True),
        UnischemaField("raw", bytes),
        UnischemaField("late", np.float64, nullable=True),
    ]
    rows = [
        {
            "id": i,
            "name": None if i % 3 == 0 else f"n{i // 10}",
            "words": None if i % 5 == 0 else [f"w{i}", f"w{i + 1}"],
            "raw": bytes([i // 20, 0, 255]),
            "late": i / 4 if i >= 30 else None,
        }
        for i in range(COUNT)
    ]
    place = str(tmp_path / "indexed")
    write_dataset(place, Unischema("indexed", fields), rows, row_group_rows=8, petastorm_compatible=True)
    indexers = [SingleFieldIndexer(f"by {name}", name) for name in ("id", "name", "words", "raw", "late")]
    build_rowgroup_index(place, None, [*indexers, FieldNotNullIndexer("has late", "late")])
    return place


def group(number: int) -> list[int]:
    return list(range(number * 8, number * 8 + 8))


def test_indexes_that_petastorm_pickled_are_asked() -> None:
    assert ids(OLD, SingleIndexSelector("id", [2])) == list(range(10))
    with pytest.warns(UserWarning, match="No matching data"):
        assert ids(OLD, SingleIndexSelector("id", [18])) == []  # a row group of another file, which is missing here
    indexes = get_row_group_indexes(open_dataset(str(OLD), storage_options=None, filesystem=None))
    assert set(indexes) == {"id", "sensor_name", "string_array_nullable"}
    assert indexes["id"].get_row_group_indexes(99) == {9}


def test_a_value_selects_the_row_groups_that_hold_it(url: str) -> None:
    assert ids(url, SingleIndexSelector("by id", [3, 20])) == [*group(0), *group(2)]
    assert ids(url, SingleIndexSelector("by name", ["n3"])) == [*group(3), *group(4)]
    assert ids(url, SingleIndexSelector("by words", ["w8"])) == [*group(0), *group(1)]
    assert ids(url, SingleIndexSelector("by raw", [bytes([1, 0, 255])])) == [*group(2), *group(3), *group(4)]
    assert ids(url, SingleIndexSelector("by late", [30 / 4])) == group(3)
    assert ids(url, SingleIndexSelector("has late", ["any"])) == [*group(3), *group(4)]


def test_selectors_are_joined(url: str) -> None:
    by_name, by_id = SingleIndexSelector("by name", ["n0"]), SingleIndexSelector("by id", [9, 30])
    assert ids(url, IntersectIndexSelector([by_name, by_id])) == group(1)
    assert ids(url, UnionIndexSelector([by_name, by_id])) == [*group(0), *group(1), *group(3)]
    nested = UnionIndexSelector([IntersectIndexSelector([by_name, by_id]), SingleIndexSelector("by id", [39])])
    assert ids(url, nested) == [*group(1), *group(4)]


def test_selectors_and_filters_and_shards_select_the_same_row_groups_together(url: str) -> None:
    selector = SingleIndexSelector("by id", [3, 20, 39])
    assert ids(url, selector, filters=[("id", ">=", 6), ("id", "!=", 22)]) == [
        6,
        7,
        *(i for i in group(2) if i != 22),
        *group(4),
    ]
    assert ids(url, selector, cur_shard=0, shard_count=2) == [*group(0), *group(2), *group(4)]
    assert ids(url, selector, cur_shard=2, shard_count=3) == group(2)


def test_an_index_that_is_not_there_is_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected indexes of the dataset, got \['bogus'\]"):
        ids(url, SingleIndexSelector("bogus", [1]))
    write_dataset(tmp_path / "bare", Unischema("bare", [UnischemaField("id", np.int64)]), [{"id": 1}])
    with pytest.raises(PetastormMetadataError, match="Row groups index is not available"):
        ids(tmp_path / "bare", SingleIndexSelector("id", [1]))


def test_indexes_are_json_and_pickled_only_where_petastorm_reads(url: str, tmp_path: Path) -> None:
    keys = pq.read_schema(f"{url}/_common_metadata").metadata
    assert b"parquetry.row_group_indexes.v1" in keys
    assert b"dataset-toolkit.rowgroups_index.v1" in keys
    write_dataset(tmp_path / "ours", Unischema("ours", [UnischemaField("id", np.int64)]), [{"id": 1}])
    build_rowgroup_index(str(tmp_path / "ours"), None, [SingleFieldIndexer("first", "id")])
    build_rowgroup_index(str(tmp_path / "ours"), None, [SingleFieldIndexer("second", "id")])
    assert b"dataset-toolkit.rowgroups_index.v1" not in pq.read_schema(tmp_path / "ours" / "_common_metadata").metadata
    indexes = get_row_group_indexes(open_dataset(str(tmp_path / "ours"), storage_options=None, filesystem=None))
    assert sorted(indexes) == ["first", "second"]


def test_an_index_needs_a_directory_with_metadata(tmp_path: Path) -> None:
    write_dataset(tmp_path / "ours", Unischema("ours", [UnischemaField("id", np.int64)]), [{"id": 1}])
    (tmp_path / "ours" / "_common_metadata").unlink()
    with pytest.raises(DatasetError, match="expected a directory with _common_metadata"):
        build_rowgroup_index(str(tmp_path / "ours"), None, [SingleFieldIndexer("first", "id")])


def test_indexes_of_parts_add_up() -> None:
    first, second = SingleFieldIndexer("i", "id"), SingleFieldIndexer("i", "id")
    first.build_index([{"id": 1}, {"id": None}], 0)
    second.build_index([{"id": 1}, {"id": 2}], 1)
    both = first + second
    assert both.get_row_group_indexes(1) == {0, 1}
    assert sorted(both.indexed_values) == [1, 2]
    left, right = FieldNotNullIndexer("n", "id"), FieldNotNullIndexer("n", "id")
    left.build_index([{"id": None}], 0)
    right.build_index([{"id": 2}], 1)
    assert (left + right).get_row_group_indexes() == {1}
    with pytest.raises(PipelineError, match="expected another SingleFieldIndexer"):
        first + left


def test_row_groups_are_listed_by_path_and_schemas_loaded() -> None:
    dataset = open_dataset(str(OLD.parent / "0.12.1"), storage_options=None, filesystem=None)
    pieces = load_row_groups(dataset)
    assert [piece.num_rows for piece in pieces] == [8, 8, 4] * 3
    assert [piece.row_group for piece in pieces] == [0, 1, 2] * 3
    assert list(get_schema_from_dataset_url(str(OLD.parent / "0.12.1")).fields)[:2] == ["drive", "id"]


def test_plain_parquet_declares_no_schema(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(OLD / "partition_key=p_0", columns=["id"]), tmp_path / "part.parquet")
    with pytest.raises(PetastormMetadataError, match="Could not find the unischema"):
        get_schema_from_dataset_url(str(tmp_path))


def test_writing_by_spark_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("parquetry.common.compat.petastorm.etl.dataset_metadata.importlib.import_module", absent)
    with pytest.raises(ImportError, match="write_dataset"):
        materialize_dataset(None, "file:///x", None)
