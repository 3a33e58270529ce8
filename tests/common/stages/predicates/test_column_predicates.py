"""`contains` and `hash_split` against plain Python."""

from __future__ import annotations

import decimal
import uuid
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drive_rows import ROWS, drive_once
from ids import ids

from parquetry.common import Pipeline, contains, hash_split
from parquetry.common.base.errors import PipelineError
from parquetry.common.stages.predicates.column_predicates import hash_column

pytestmark = pytest.mark.versions

drive = drive_once(executor="threads", workers=2)


def test_contains_leaves_out_what_null_lists_hide() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 5, 8], pa.int32()),
        pa.array([1, 2, 3, 9, 9, 4, 5, 6]),
        mask=pa.array([False, False, True, False]),
    )
    fixed = pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2))
    assert contains("x", 5).mask(hidden).tolist() == [False, False, False, True]
    assert contains("x", 9).mask(hidden[1:]).tolist() == [False, False, False]
    assert contains("x", 6).mask(fixed).tolist() == [False, False, True]


def test_contains_finds_members_of_lists(drive: Pipeline) -> None:
    assert ids(drive.where(contains("tags", "t1"))) == [row["id"] for row in ROWS if "t1" in row["tags"]]
    either = [row["id"] for row in ROWS if {"t0", "t1"} & set(row["tags"])]
    assert ids(drive.where(contains("tags", "t0", "t1"))) == either
    both = [row["id"] for row in ROWS if {"t0", "t1"} <= set(row["tags"])]
    assert ids(drive.where(contains("tags", "t0", "t1", every=True))) == both
    with pytest.raises(PipelineError, match="expected a field of lists"):
        ids(drive.where(contains("id", 1)))


@pytest.mark.parametrize("field", ["id", "name", "price"])
def test_the_parts_of_a_hash_split_cover_every_row_once(drive: Pipeline, field: str) -> None:
    parts = [ids(drive.hash_split(field, [0.5, 0.3, 0.2], part, seed=3)) for part in range(3)]
    assert sorted(chain.from_iterable(parts)) == list(range(40))
    assert parts == [ids(drive.where(hash_split(field, (0.5, 0.3, 0.2), part, 3))) for part in range(3)]


def test_an_inverted_predicate_keeps_the_other_rows_also_by_json_and_under_another_name(drive: Pipeline) -> None:
    held_out = hash_split("id", [0.2] * 5, 3)
    assert sorted(ids(drive.where(held_out)) + ids(drive.where(~held_out))) == list(range(40))
    assert ids(drive.where(~contains("tags", "t1"))) == [row["id"] for row in ROWS if "t1" not in row["tags"]]
    assert ~~held_out == held_out
    renamed = drive.rename({"id": "number", "name": "id"}).where(~hash_split("id", [0.5, 0.5], 0))
    numbers = [int(row["number"]) for row in Pipeline.from_json(renamed.to_json())]
    assert numbers == ids(drive.where(~hash_split("name", [0.5, 0.5], 0)))


def test_a_row_keeps_its_part_whatever_file_it_lies_in(drive: Pipeline, tmp_path: Path) -> None:
    from drive_rows import SCHEMA

    from parquetry.common import write_dataset

    write_dataset(tmp_path / "again", SCHEMA, ROWS[::-1], row_group_rows=3)
    again = Pipeline(tmp_path / "again", executor="threads")
    assert sorted(ids(again.hash_split("name", [0.7, 0.3], 1))) == sorted(ids(drive.hash_split("name", [0.7, 0.3], 1)))


def test_a_split_by_a_partition_reads_nothing(drive: Pipeline) -> None:
    report = drive.hash_split("drive", [0.5, 0.5], 0).plan().selection.reports[0]
    assert report.read == 0
    assert report.pruned + report.proven == report.row_groups


def test_decimals_of_many_digits_are_split(tmp_path: Path) -> None:
    values = [decimal.Decimal(10**36 + number) for number in range(200)]
    pq.write_table(pa.table({"x": pa.array(values, pa.decimal128(38, 0))}), tmp_path / "x.parquet")
    parts = [len(Pipeline(tmp_path).where(hash_split("x", [0.5, 0.5], part))) for part in (0, 1)]
    assert sum(parts) == 200
    assert min(parts) > 70
    column = pa.array(values, pa.decimal128(38, 0))
    whole = hash_column(column, 1)
    with decimal.localcontext(decimal.Context(prec=5)):
        assert (hash_column(column, 1) == whole).all()


def test_a_decimal_is_in_the_same_part_whatever_its_scale() -> None:
    values = [decimal.Decimal(number) / 10 for number in range(100)]  # 1.5 in one file is 1.50 in another
    hashes = [hash_column(pa.array(values, pa.decimal128(38, scale)), 1).tolist() for scale in (1, 2, 9)]
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(set(hashes[0])) == 100


@pytest.mark.parametrize(("kind", "count"), [(pa.int8(), 128), (pa.uint8(), 256)], ids=str)
def test_a_null_is_split_when_the_indices_are_used_up(kind: pa.DataType, count: int) -> None:
    names = [f"name {number}" for number in range(count)]
    column = pa.DictionaryArray.from_arrays(pa.array([*range(count), None], kind), names)
    assert (hash_column(column, 7) == hash_column(pa.array([*names, None]), 7)).all()


_UUIDS = [uuid.UUID(int=number << 64 | 5).bytes for number in range(4)]
_EXTENSIONS = [
    pa.ExtensionArray.from_storage(pa.uuid(), pa.array(_UUIDS, pa.binary(16))),
    pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, 1], pa.int8())),
    pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "kind", "vendor"), pa.array([0, 1, 2, None], pa.int32())),
]


@pytest.mark.parametrize("column", _EXTENSIONS, ids=lambda column: column.type.extension_name)
def test_extension_columns_are_split_by_what_they_store(tmp_path: Path, column: pa.ExtensionArray) -> None:
    assert (hash_column(column, 0) == hash_column(column.storage, 0)).all()
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    assert sum(len(Pipeline(tmp_path).hash_split("x", [0.5, 0.5], part)) for part in (0, 1)) == 4


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [2]]),
        pa.array([[1], [2]], pa.list_(pa.int32(), 1)),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2, 2))),
    ],
    ids=lambda column: str(column.type),
)
def test_lists_cannot_be_split(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    with pytest.raises(PipelineError, match=r"hash_split\('x'\): expected a field of plain values that can be"):
        len(Pipeline(tmp_path).hash_split("x", [0.5, 0.5], 0))


def test_contains_compares_half_floats() -> None:
    half = np.float16
    column = pa.array([[half(1), half(2)], None, [None, half(0.1)], [half(65504)]], pa.list_(pa.float16()))
    assert contains("x", 1).mask(column).tolist() == [True, False, False, False]
    assert contains("x", 0.1, 2.0).mask(column).tolist() == [True, False, True, False]
    with pytest.raises(PipelineError, match="expected values of type halffloat, got 2049"):  # 2048 is the nearest
        contains("x", 2049).mask(column)
    with pytest.raises(PipelineError, match="expected values of type halffloat, got 'a'"):
        contains("x", "a").mask(column)


@pytest.mark.parametrize(
    "combine",
    [
        lambda split, other: split and other,
        lambda split, other: split or other,
        lambda split, other: not split,
        lambda split, other: split & other,
        lambda split, other: split | other,
    ],
)
@pytest.mark.parametrize("other", [pc.field("id") > 3, contains("tags", 1)])
def test_conditions_are_not_combined_by_operators_and_none_is_lost_silently(combine: Any, other: Any) -> None:
    with pytest.raises(PipelineError, match=r"hash_split\('id'\): cannot be combined .* Call where\(\) once for each"):
        combine(hash_split("id", [0.5, 0.5], 0), other)
