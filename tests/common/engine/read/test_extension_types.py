"""Columns of extension types that a Python package defines. Arrow knows these only where the package was imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table
from faces import plain

from parquetry.common import Pipeline
from parquetry.common.base.errors import SchemaError
from parquetry.common.dataset.index import write_index
from parquetry.common.parquet.value_bounds import most_bytes

pytestmark = pytest.mark.versions

POINT = pa.struct([("x", pa.float64()), ("name", pa.string())])
POINTS = [{"x": 1.0, "name": "a"}, None, {"x": 3.0, "name": None}, {"x": 4.0, "name": "long text " * 3}]


class Point(pa.ExtensionType):
    """A struct."""

    def __init__(self) -> None:
        super().__init__(POINT, "tests.point")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Point:
        return cls()


class Number(pa.ExtensionType):
    """A number."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), "tests.number")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Number:
        return cls()


@contextmanager
def registered(*types: pa.ExtensionType) -> Iterator[None]:
    for kind in types:
        pa.register_extension_type(kind)
    try:
        yield
    finally:
        for kind in types:
            pa.unregister_extension_type(kind.extension_name)


def columns() -> dict[str, pa.Array]:
    points = pa.ExtensionArray.from_storage(Point(), pa.array(POINTS, POINT))
    numbers = pa.ExtensionArray.from_storage(Number(), pa.array([5, None, 7, 8], pa.int32()))
    inside = pa.StructArray.from_arrays([points, pa.array([1, 2, 3, 4])], ["p", "n"])
    lists = pa.ListArray.from_arrays(
        [0, 1, 1, 2, 4], pa.ExtensionArray.from_storage(Number(), pa.array([1, 2, 3, 4], pa.int32()))
    )
    return {"id": pa.array(range(4)), "p": points, "number": numbers, "s": inside, "l": lists}


def seen(url: str, **options: Any) -> list[Any]:
    """Returns what a user sees of a dataset."""
    pipeline = Pipeline(url, executor="threads", workers=1, **options)
    where = [pc.field("p.x") > 2, pc.field("p.name").is_null(), pc.field("s.p.x") == 1, pc.field("number") >= 7]
    return [
        pipeline.schema.to_json(),
        [plain(row) for row in pipeline],
        [plain(row) for row in pipeline.select("s.p.name")],
        [plain(batch) for batch in pipeline.select("p.x", "s.n").shuffle(3, seed=1).nulls("mask", "p.x").batch(2)],
        [[int(row["id"]) for row in pipeline.where(each).select("id")] for each in where],
        pipeline.plan().dataset.fingerprint,
    ]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("options", [{}, {"memory_limit": 1}], ids=["in memory", "in slices"])
def test_a_dataset_is_the_same_whether_its_types_are_registered_or_not(
    tmp_path: Path, indexed: bool, options: dict[str, Any]
) -> None:
    write_table(tmp_path, pa.table(columns()), row_group_size=2)
    if indexed:
        with registered(Point(), Number()):
            write_index(str(tmp_path))
    unregistered = seen(str(tmp_path), **options)
    with registered(Point(), Number()):
        assert pq.ParquetFile(next(tmp_path.glob("*.parquet"))).schema_arrow.field("p").type == Point()
        assert seen(str(tmp_path), **options) == unregistered
    names = [field["name"] for field in unregistered[0]["fields"]]
    assert names == ["id", "p.x", "p.name", "number", "s.p.x", "s.p.name", "s.n", "l"]
    assert [row["p.x"] for row in unregistered[1]] == [1.0, None, 3.0, 4.0]
    assert unregistered[4] == [[2, 3], [1, 2], [0], [2, 3]]


def test_the_size_of_a_member_in_memory_is_counted_with_its_struct(tmp_path: Path) -> None:
    names = [{"x": 1.0, "name": number % 3 * "long"} for number in range(1000)]
    points = pa.ExtensionArray.from_storage(Point(), pa.array(names, POINT))
    pq.write_table(pa.table({"p": points}), tmp_path / "a.parquet")
    with registered(Point()), pa.OSFile(str(tmp_path / "a.parquet")) as source, pq.ParquetFile(source) as reader:
        assert most_bytes(source, reader, 0, [1], enough=1) >= sum(len(each["name"]) for each in names)


def test_files_of_one_dataset_may_differ_in_the_extension_alone(tmp_path: Path) -> None:
    held = columns()
    plain_points = pa.array(POINTS, POINT)
    with registered(Point()):
        write_table(tmp_path, pa.table({"p": held["p"]}), name="a.parquet")
        write_table(tmp_path, pa.table({"p": plain_points}), name="b.parquet")
        assert [row["p.x"] for row in Pipeline(str(tmp_path)).select("p.x")] == [1.0, None, 3.0, 4.0] * 2


def test_lists_of_such_structs_are_refused_with_the_same_text(tmp_path: Path) -> None:
    points = pa.ListArray.from_arrays([0, 1, 4], columns()["p"])
    write_table(tmp_path, pa.table({"id": [1, 2], "l": points}))
    found = []
    for types in ((), (Point(),)):
        with registered(*types), pytest.raises(SchemaError, match="field 'l': Arrow type struct<x: double") as caught:
            list(Pipeline(str(tmp_path)))
        found.append(str(caught.value))
        assert len(list(Pipeline(str(tmp_path)).select("id"))) == 2
    assert found[0] == found[1]


def test_a_pandas_frame_of_intervals_gives_both_ends() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"i": [1, 2], "v": pd.arrays.IntervalArray.from_tuples([(0, 1), (1, 5)])})
    rows = [plain(row) for row in Pipeline.from_pandas(frame)]
    assert rows == [{"i": 1, "v.left": 0, "v.right": 1}, {"i": 2, "v.left": 1, "v.right": 5}]
