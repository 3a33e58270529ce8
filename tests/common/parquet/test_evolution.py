"""Files written over time: which fields widen, which become nullable, and which changes are refused."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cases import every_case
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, Unischema, UnischemaField
from parquetry.common.apps.tools import generate_metadata
from parquetry.common.base.errors import DecodeError, SchemaError
from parquetry.common.dataset.index import write_index
from parquetry.common.parquet.conforming import always_fits, conform
from parquetry.common.parquet.evolution import widen, widest

pytestmark = pytest.mark.versions


@every_case(
    ("first", "second", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint16(), pa.int8(), pa.int32()),
        (pa.uint64(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.large_string()),
        (pa.decimal128(9, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.int64())),
        (pa.null(), pa.int8(), pa.int8()),
        (pa.string(), pa.int64(), None),
        (pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ms")),
        (pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.timestamp("ns", "UTC"), pa.date32(), None),
        (pa.date32(), pa.timestamp("s"), pa.timestamp("s")),
        (pa.date64(), pa.timestamp("s"), pa.timestamp("ms")),
        (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
        (pa.time32("s"), pa.time64("ns"), pa.time64("ns")),
        (pa.string(), pa.binary(), None),
        (pa.large_binary(), pa.binary(2), pa.large_binary()),
        (pa.int64(), pa.decimal128(9, 2), pa.decimal128(22, 2)),
        (pa.decimal256(76, 0), pa.decimal128(1, 1), None),
        (pa.bool_(), pa.int8(), None),
        (pa.duration("s"), pa.duration("ms"), pa.duration("ms")),
        (pa.uuid(), pa.binary(16), pa.binary(16)),
        (pa.uuid(), pa.uuid(), pa.uuid()),
        (pa.fixed_shape_tensor(pa.int8(), [2, 3]), pa.fixed_shape_tensor(pa.int8(), [3, 2]), None),
        (pa.fixed_shape_tensor(pa.int8(), [6]), pa.list_(pa.int8(), 6), None),
    ],
)
def test_types_widen_where_no_value_is_lost(first: pa.DataType, second: pa.DataType, expected: pa.DataType) -> None:
    assert widen(first, second) == expected
    assert widen(second, first) == expected


WIDENING = [
    pa.null(),
    *(pa.int8(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal128(9, 2), pa.decimal128(38, 0), pa.decimal128(20, 10)),
    *(pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns")),
    *(pa.time32("s"), pa.time64("us"), pa.duration("s"), pa.duration("us")),
    *(pa.string(), pa.large_binary(), pa.binary(3), pa.dictionary(pa.int8(), pa.string())),
]


@examples(100)
@given(st.lists(st.sampled_from(WIDENING), min_size=2, max_size=4, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_decide_their_type(kinds: list[pa.DataType], order: random.Random) -> None:
    shuffled = list(kinds)
    order.shuffle(shuffled)
    assert widest(shuffled) == widest(kinds)


NUMBERS = [*(pa.type_for_alias(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)), pa.float16()]
NUMBERS += [pa.float32(), pa.float64()]


@every_case("source", NUMBERS)
def test_types_that_always_fit_take_the_values_at_the_ends_of_each_other(source: pa.DataType) -> None:
    dtype = np.dtype(source.to_pandas_dtype())
    if dtype.kind == "f":
        ends = np.array([np.finfo(dtype).max, 0.5, 1 + np.finfo(dtype).eps], dtype)
    else:
        ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    for target in NUMBERS:
        try:
            conform(pa.chunked_array([pa.array(ends)]), target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            assert not always_fits(source, target), (source, target)


@pytest.fixture
def url(tmp_path: Path) -> str:
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"], "c": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"a": pa.array([2**40, 4], pa.int64()), "c": ["q", "r"], "e": [1.5, 2.5]}), tmp_path / "b.parquet"
    )
    return str(tmp_path)


def test_missing_columns_are_null_and_integers_widen(url: str) -> None:
    rows = list(Pipeline(url, ["a", "b", "e"]))
    assert [int(row["a"]) for row in rows] == [1, 2, 2**40, 4]
    assert [row["b"] for row in rows] == ["x", "y", None, None]
    assert [row["e"] for row in rows] == [None, None, 1.5, 2.5]
    assert [int(row["a"]) for row in Pipeline(url, ["a"]).where([("a", ">", 1)])] == [2, 2**40, 4]
    assert [int(row["a"]) for row in Pipeline(url, ["a"]).where([("b", "=", "y")])] == [2]


def test_types_that_do_not_widen_are_refused_with_both_files_unless_deselected(url: str) -> None:
    with pytest.raises(SchemaError, match=r"field 'c': .*int64 in .*a\.parquet and string in .*b\.parquet"):
        list(Pipeline(url))
    assert len(list(Pipeline(url, ["a"]))) == 4


@every_case("other", [[{"x": 1}], [[("k", 1)]]])
def test_a_list_in_one_file_and_a_struct_or_map_in_another_are_refused_unless_deselected(
    tmp_path: Path, other: list[object]
) -> None:
    kind = pa.map_(pa.string(), pa.int64()) if isinstance(other[0], list) else None
    pq.write_table(pa.table({"id": [0], "a": [[1, 2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "a": pa.array(other, kind)}), tmp_path / "b.parquet")
    url = str(tmp_path)
    reason = r"field 'a': .*list<.*> in .*a\.parquet and (struct|map)<.*> in .*b\.parquet"
    for asked in (Pipeline(url), Pipeline(url, ["a"]), Pipeline(url, ["id"]).where(pc.field("a").is_valid())):
        with pytest.raises(SchemaError, match=reason):
            list(asked)
    member = pc.field("a", "x" if kind is None else "key")
    with pytest.raises(SchemaError, match=reason):
        list(Pipeline(url, ["id"]).where(member.is_valid()))
    assert [int(row["id"]) for row in Pipeline(url, ["id"])] == [0, 1]


def test_a_column_of_nothing_in_one_file_is_the_struct_of_another(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0], "a": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "a": [{"x": 5}]}), tmp_path / "b.parquet")
    assert [row["a.x"] for row in Pipeline(str(tmp_path))] == [None, 5]
    assert [int(row["id"]) for row in Pipeline(str(tmp_path)).where(pc.field("a", "x") > 0)] == [1]


def test_a_column_that_is_not_a_declared_list_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1, 2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [{"x": 1}]}), tmp_path / "b.parquet")
    generate_metadata(str(tmp_path), Unischema("s", [UnischemaField("a", np.int64, (None,))]))
    with pytest.raises(DecodeError, match=r"b\.parquet, row group 0: field 'a': expected .*struct<x: int64>"):
        list(Pipeline(str(tmp_path)))


def tensors(*shape: int) -> pa.Array:
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(1, *shape)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values)


ALIKE: dict[str, tuple[pa.Array, pa.Array, list[object] | None]] = {
    "a tensor of another shape": (tensors(2, 3), tensors(3, 2), None),
    "a flat list": (tensors(2, 3), pa.array([[1] * 6], pa.list_(pa.int32(), 6)), None),
    "a number": (pa.array([1], pa.duration("s")), pa.array([2], pa.int64()), None),
    "another unit": (pa.array([1], pa.duration("s")), pa.array([5], pa.duration("ms")), [1000, 5]),
    "a list of another length": (
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        pa.array([[1, 2, 3]], pa.list_(pa.int32(), 3)),
        [[1, 2], [1, 2, 3]],
    ),
    "a list": (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.array([[1]], pa.list_(pa.int32())), [[1, 2], [1]]),
    "another zone": (
        pa.array([1], pa.timestamp("us", "UTC")),
        pa.array([2], pa.timestamp("us", "Europe/Berlin")),
        [1, 2],
    ),
    "milliseconds": (pa.array([1], pa.timestamp("s")), pa.array([5], pa.timestamp("ms")), [1000, 5]),
    "larger offsets": (pa.array(["a"]), pa.array(["b"], pa.large_string()), ["a", "b"]),
    "another dictionary": (
        pa.array(["a"]).dictionary_encode(),
        pa.array(["b"], pa.dictionary(pa.int8(), pa.string())),
        ["a", "b"],
    ),
}
if pa.__version__ >= "20":  # earlier releases do not write views
    ALIKE["a view"] = pa.array([["a"]]), pa.array([["b"]], pa.list_(pa.string_view())), [["a"], ["b"]]


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
@every_case("turned", [False, True])
@every_case("indexed", [False, True])
@every_case("name", ALIKE)
def test_files_that_differ_only_for_arrow_are_distinguished(
    tmp_path: Path, name: str, indexed: bool, turned: bool, executor: str
) -> None:
    first, second, expected = ALIKE[name]
    arrays = (second, first) if turned else (first, second)
    for number, array in enumerate(arrays):
        pq.write_table(pa.table({"x": array, "id": [number]}), tmp_path / f"{number}.parquet")
    if indexed:
        write_index(tmp_path)
    pipeline = Pipeline(tmp_path, executor=executor)
    assert [int(row["id"]) for row in pipeline.select("id")] == [0, 1]
    if expected is None:
        with pytest.raises(SchemaError, match=r"field 'x': expected one type in all files"):
            list(pipeline)
        return
    found = [row["x"].tolist() if hasattr(row["x"], "tolist") else row["x"] for row in pipeline]
    assert found == (expected[::-1] if turned else expected)


def test_a_verb_on_a_column_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "c": pa.array([[{"a": 1}]])}), tmp_path / "a.parquet")
    for pipeline in (Pipeline(tmp_path).nulls("mask", "c"), Pipeline(tmp_path).pad("c", shape=(1,))):
        with pytest.raises(SchemaError, match=r"field 'c': Arrow type struct.* cannot become a tensor"):
            list(pipeline)
