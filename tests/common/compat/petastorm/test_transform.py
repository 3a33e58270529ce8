"""`TransformSpec`, and its effect on the rows and the schema of `make_reader`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common.base.errors import PipelineError, TransformError
from parquetry.common.compat.petastorm import TransformSpec, make_batch_reader, make_reader
from parquetry.common.compat.petastorm.codecs import NdarrayCodec
from parquetry.common.compat.petastorm.predicates import in_lambda
from parquetry.common.compat.petastorm.transform import edit_field, transform_schema
from parquetry.common.compat.petastorm.unischema import Unischema, UnischemaField

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"
SCHEMA = Unischema(
    "s",
    [
        UnischemaField("text", np.str_, ()),
        UnischemaField("number", np.int32, ()),
        UnischemaField("double", np.float64, ()),
    ],
)


def rows(spec: TransformSpec, **options: Any) -> list[Any]:
    options = {"reader_pool_type": "dummy", "shuffle_row_groups": False, "schema_fields": ["id", "matrix"], **options}
    with make_reader(str(REAL), transform_spec=spec, **options) as reader:
        read = list(reader)
        assert all(row._fields == tuple(reader.schema.fields) for row in read)
    return read


def test_a_function_changes_rows_where_they_are_loaded() -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        row["matrix"] *= 2
        return row

    for pool in ("dummy", "thread", "process"):
        read = rows(TransformSpec(change), reader_pool_type=pool, workers_count=1)
        np.testing.assert_array_equal(read[3].matrix, np.arange(12, dtype=np.float32).reshape(3, 4) * 6, strict=True)


@pytest.mark.parametrize(("pool", "workers"), [("dummy", 3), ("thread", 1), ("process", 3)])
def test_a_function_may_return_its_own_memory_again(pool: str, workers: int) -> None:
    buffer = np.zeros(2, np.int64)

    def change(row: dict[str, Any]) -> dict[str, Any]:
        buffer[:] = row["id"]
        row["double"] = buffer
        return row

    spec = TransformSpec(change, [("double", np.int64, (2,), False)])
    read = rows(spec, schema_fields=["id"], reader_pool_type=pool, workers_count=workers)
    assert len({int(row.id) for row in read}) == len(read) > 1
    assert [row.double.tolist() for row in read] == [[row.id] * 2 for row in read]


def test_a_frame_may_be_returned_again(tmp_path: Path) -> None:
    import pandas as pd

    url = write_table(tmp_path, pa.table({"id": range(40)}), row_group_size=5)
    own = pd.DataFrame({"id": np.zeros(5, np.int64)})

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        own["id"] = frame["id"].to_numpy() + 1
        return own

    options: dict[str, Any] = {"shuffle_row_groups": False, "workers_count": 1}
    with make_batch_reader(f"file://{url}", transform_spec=TransformSpec(change), **options) as reader:
        assert [number for batch in list(reader) for number in batch.id.tolist()] == list(range(1, 41))


def test_the_threads_of_a_pool_call_a_row_function_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def change(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] in (0, 8):  # the first rows of two row groups
            both.wait(60)
        return row

    read = rows(TransformSpec(change), schema_fields=["id"], reader_pool_type="thread", workers_count=2)
    assert [int(row.id) for row in read] == list(range(60))


def test_the_threads_of_a_pool_call_a_frame_function_at_the_same_time(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"id": range(4)}), row_group_size=2)
    both = threading.Barrier(2)

    def change(frame: Any) -> Any:
        both.wait(60)
        return frame

    options: dict[str, Any] = {"shuffle_row_groups": False, "workers_count": 2}
    with make_batch_reader(f"file://{url}", transform_spec=TransformSpec(change), **options) as reader:
        assert [batch.id.tolist() for batch in reader] == [[0, 1], [2, 3]]


def test_fields_are_added_at_the_end_and_removed() -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        row["double"] = row["matrix"] * 2
        del row["matrix"]
        return row

    (first, *_) = rows(TransformSpec(change, [("double", np.float32, (3, 4), False)], ["matrix"]))
    assert first._fields == ("id", "double")


def test_fields_are_removed_and_selected_without_a_function() -> None:
    assert rows(TransformSpec(removed_fields=["matrix"]))[0]._fields == ("id",)
    assert rows(TransformSpec(selected_fields=["matrix", "id"]))[0]._fields == ("matrix", "id")


def test_the_transform_sees_only_rows_that_the_predicate_keeps() -> None:
    seen: list[int] = []
    spec = TransformSpec(lambda row: seen.append(int(row["id"])) or row)
    rows(spec, predicate=in_lambda(["id"], lambda id: id < 5))
    assert seen == [0, 1, 2, 3, 4]


def test_values_that_are_not_declared_pass_as_they_are() -> None:
    assert rows(TransformSpec(lambda row: {"id": "x", "matrix": None}))[0]._asdict() == {"id": "x", "matrix": None}


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        (1.5, ("new", np.float32, (), False), np.float32(1.5)),
        (7, ("new", np.uint8, (), False), np.uint8(7)),
        (2**24 + 2, ("new", np.float32, (), False), np.float32(2**24 + 2)),
        (True, ("new", np.bool_, (), False), np.bool_(True)),
        (None, ("new", np.int32, (), True), None),
        ("text", ("new", np.str_, (), False), "text"),
        (np.zeros((2, 5)), ("new", np.float32, (2, None), False), np.zeros((2, 5), np.float32)),
    ],
)
def test_declared_fields_have_the_declared_dtype(value: Any, field: Any, expected: Any) -> None:
    read = rows(TransformSpec(lambda row: {**row, "new": value}, [field]))[0].new
    np.testing.assert_equal(read, expected)
    assert type(read) is type(expected)
    assert getattr(read, "dtype", None) == getattr(expected, "dtype", None)


@pytest.mark.parametrize(
    ("value", "field", "text"),
    [
        (1.5, ("new", np.int32, (), False), "field 'new': expected dtype int32, got float64"),
        (300, ("new", np.uint8, (), False), "field 'new': expected dtype uint8, got int64"),
        (True, ("new", np.int32, (), False), "field 'new': expected dtype int32, got bool"),
        (2**24 + 1, ("new", np.float32, (), False), "field 'new': expected dtype float32, got int64"),
        (None, ("new", np.int32, (), False), "field 'new': expected a value, got None"),
        (np.zeros(3), ("new", np.float64, (), False), r"field 'new': expected shape \(\), got \(3,\)"),
        (np.zeros((2, 5)), ("new", np.float64, (None, 4), False), r"field 'new': expected shape \(None, 4\)"),
    ],
)
def test_values_that_break_the_declaration_are_errors_with_the_fields_name(value: Any, field: Any, text: str) -> None:
    with pytest.raises(TransformError, match=text):
        rows(TransformSpec(lambda row: {**row, "new": value}, [field]))


def test_rows_have_exactly_the_declared_fields() -> None:
    with pytest.raises(TransformError, match=r"row group 0: TransformSpec: expected the function to return the fields"):
        rows(TransformSpec(lambda row: {"id": row["id"]}))
    with pytest.raises(TransformError, match="Declare new fields in edit_fields="):
        rows(TransformSpec(lambda row: {**row, "more": 1}))
    with pytest.raises(TransformError, match="as a dict, got list"):
        rows(TransformSpec(lambda row: [row]))


def test_a_functions_exception_reaches_the_reader_unchanged() -> None:
    def fail(row: Any) -> Any:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError, match="no"):
        rows(TransformSpec(fail), reader_pool_type="process", workers_count=1)


# --- the schema -------------------------------------------------------------------------------------------------------


def test_edited_fields_move_to_the_end_and_removed_ones_go() -> None:
    edited = [UnischemaField("number", np.float16, ()), edit_field("new", np.int8, (2,), True)]
    made = transform_schema(SCHEMA, TransformSpec(lambda row: row, edited, ["text"]))
    assert list(made.fields) == ["double", "number", "new"]
    assert made.number.numpy_dtype is np.float16
    assert made.new == UnischemaField("new", np.int8, (2,), None, True)


def test_selected_fields_give_the_order() -> None:
    made = transform_schema(SCHEMA, TransformSpec(selected_fields=["double", "text"]))
    assert list(made.fields) == ["double", "text"]


def test_unknown_names_warn() -> None:
    with pytest.warns(UserWarning, match="not part of the schema.*bogus"):
        made = transform_schema(SCHEMA, TransformSpec(removed_fields=["number", "bogus"]))
    assert list(made.fields) == ["text", "double"]
    with pytest.warns(UserWarning, match="not part of the schema.*bogus"):
        made = transform_schema(SCHEMA, TransformSpec(selected_fields=["number", "bogus"]))
    assert list(made.fields) == ["number"]


def test_arguments_are_checked() -> None:
    with pytest.raises(PipelineError, match="got both"):
        TransformSpec(removed_fields=["a"], selected_fields=["b"])
    (field,) = TransformSpec(edit_fields=[("a", np.int8, (2,), NdarrayCodec(), False)]).edit_fields
    assert field == UnischemaField("a", np.int8, (2,), None, nullable=True)  # the fourth item, as in Petastorm
    with pytest.raises(PipelineError, match="expected edit_fields of"):
        TransformSpec(edit_fields=[("a", np.int8)])
    assert edit_field("a", np.int8, (2,)) == ("a", np.int8, (2,), False)
