"""`Unischema` and `UnischemaField` of the compatibility module."""

from __future__ import annotations

import decimal
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import parquetry.common as core
from parquetry.common import Pipeline, write_dataset
from parquetry.common.base.errors import SchemaError
from parquetry.common.compat.petastorm import unischema as unischema_module
from parquetry.common.compat.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    ScalarCodec,
    StoredCodec,
)
from parquetry.common.compat.petastorm.unischema import (
    Unischema,
    UnischemaField,
    from_parquetry,
    insert_explicit_nulls,
    match_unischema_fields,
)

pytestmark = pytest.mark.versions

SCHEMA = Unischema(
    "s",
    [
        UnischemaField("int_field", np.int8, (), ScalarCodec(np.int32), False),
        UnischemaField("string_field", np.bytes_, (), ScalarCodec(np.str_), False),
        UnischemaField("other_string", np.str_, (), nullable=True),
    ],
)


def test_fields_are_attributes_and_a_dict_in_order() -> None:
    assert list(SCHEMA.fields) == ["int_field", "string_field", "other_string"]
    assert SCHEMA.int_field is SCHEMA.fields["int_field"]
    assert SCHEMA._name == "s"
    assert not hasattr(SCHEMA, "bogus")
    assert "UnischemaField('int_field', int8, ()" in str(SCHEMA)


def test_fields_are_equal_whatever_their_codec() -> None:
    field = UnischemaField("x", np.int32, (2, None), NdarrayCodec(), False)
    assert field == UnischemaField("x", np.dtype("int32"), (2, None))
    assert hash(field) == hash(UnischemaField("x", np.dtype("int32"), (2, None)))
    for other in [
        field._replace(name="y"),
        field._replace(numpy_dtype=np.int64),
        field._replace(shape=(2, 3)),
        field._replace(nullable=True),
    ]:
        assert field != other
    name, dtype, shape, _, nullable = field
    assert (name, dtype, shape, nullable) == ("x", np.int32, (2, None), False)


def test_views_take_objects_in_their_order_then_matches_in_schema_order() -> None:
    view = SCHEMA.create_schema_view([SCHEMA.string_field, ".*t.*_.*"])
    assert list(view.fields) == ["string_field", "int_field", "other_string"]
    assert list(SCHEMA.create_schema_view(["bogus"]).fields) == []
    stranger = UnischemaField("int_field", np.float64, (9,))
    assert SCHEMA.create_schema_view([stranger]).int_field is SCHEMA.int_field


def test_views_refuse_strangers() -> None:
    with pytest.raises(ValueError, match="does not belong to the schema"):
        SCHEMA.create_schema_view([UnischemaField("id", np.int64, ())])
    with pytest.raises(ValueError, match="must be either a string"):
        SCHEMA.create_schema_view([42])  # type: ignore[list-item]


def test_regexes_match_in_full_and_warn_where_older_releases_matched_more() -> None:
    assert match_unischema_fields(SCHEMA, ["string_field", "nothing"]) == [SCHEMA.string_field]
    assert match_unischema_fields(SCHEMA, [".*"]) == list(SCHEMA.fields.values())
    assert match_unischema_fields(SCHEMA, []) == []
    with pytest.warns(UserWarning, match="affects the following fields: int_field, string_field"):
        assert match_unischema_fields(SCHEMA, ["int", "string"]) == []


def test_rows_are_named_tuples_of_one_class_for_a_schema() -> None:
    row = SCHEMA.make_namedtuple(int_field=1, string_field=b"x", other_string=None)
    assert row == (1, b"x", None)
    assert type(row) is type(SCHEMA.make_namedtuple_tf(1, b"x", None))
    assert type(row).__name__ == "s"
    assert Unischema("odd name!", [SCHEMA.int_field]).make_namedtuple(int_field=1).int_field == 1


def test_a_name_that_unischema_has_itself_is_only_in_fields() -> None:
    with pytest.warns(UserWarning, match="Can not create dynamic property fields"):
        schema = Unischema("s", [UnischemaField("fields", np.int32, ())])
    assert list(schema.fields) == ["fields"]


def test_fields_may_be_ordered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unischema_module, "_UNISCHEMA_FIELD_ORDER", "alphabetical")
    assert list(Unischema("s", [SCHEMA.string_field, SCHEMA.int_field]).fields) == ["int_field", "string_field"]


def test_missing_nullable_fields_become_explicit_nulls() -> None:
    row: dict[str, Any] = {"int_field": 1, "string_field": b""}
    insert_explicit_nulls(SCHEMA, row)
    assert row["other_string"] is None
    with pytest.raises(ValueError, match="expected a value for field 'string_field'"):
        insert_explicit_nulls(SCHEMA, {"int_field": 1})


def test_a_schema_pickles() -> None:
    again = pickle.loads(pickle.dumps(SCHEMA))
    assert again.fields == SCHEMA.fields


def test_plain_columns_become_fields() -> None:
    arrow = pa.schema(
        [
            pa.field("text", pa.string()),
            pa.field("flag", pa.bool_(), False),
            pa.field("fixed", pa.binary(10)),
            pa.field("price", pa.decimal128(4, 3)),
            pa.field("when", pa.timestamp("ns")),
            pa.field("day", pa.date32()),
            pa.field("small", pa.int16()),
            pa.field("half", pa.float64()),
            pa.field("codes", pa.list_(pa.int32())),
        ]
    )
    schema = Unischema.from_arrow_schema(arrow)
    assert [(f.name, f.numpy_dtype, f.shape, f.nullable) for f in schema.fields.values()] == [
        ("text", np.str_, (), True),
        ("flag", np.bool_, (), False),
        ("fixed", np.bytes_, (), True),
        ("price", decimal.Decimal, (), True),
        ("when", np.datetime64, (), True),
        ("day", np.datetime64, (), True),
        ("small", np.int16, (), True),
        ("half", np.float64, (), True),
        ("codes", np.int32, (None,), True),
    ]


def test_a_schema_is_taken_from_pyarrows_dataset_of_any_release(tmp_path: Path) -> None:
    arrow = pa.schema([pa.field("id", pa.int8())])
    pq.write_table(pa.table({"id": [1]}, arrow), tmp_path / "a.parquet")
    assert list(Unischema.from_arrow_schema(pq.ParquetDataset(tmp_path)).fields) == ["id"]
    footer = pq.read_metadata(tmp_path / "a.parquet")
    old = SimpleNamespace(  # as before pyarrow 15
        schema=footer.schema,
        pieces=[SimpleNamespace(get_metadata=lambda: footer)],
        partitions=[SimpleNamespace(name="day", dictionary=pa.array(["monday"]))],
    )
    fields = Unischema.from_arrow_schema(old).fields
    assert [(field.name, field.numpy_dtype) for field in fields.values()] == [("id", np.int8), ("day", np.str_)]


def test_columns_without_a_field_type_are_left_out_or_refused() -> None:
    arrow = pa.schema([pa.field("id", pa.int8()), pa.field("deep", pa.struct([pa.field("a", pa.int8())]))])
    with pytest.warns(UserWarning, match="'deep': ignoring a column"):
        assert list(Unischema.from_arrow_schema(arrow).fields) == ["id"]
    with pytest.raises(ValueError, match="Cannot auto-create unischema due to unsupported column type"):
        Unischema.from_arrow_schema(arrow, omit_unsupported_fields=False)


def test_a_schema_of_petastorms_form_writes_datasets(tmp_path: Path) -> None:
    schema = Unischema(
        "written",
        [
            UnischemaField("id", np.int64, (), ScalarCodec(np.int32), False),
            UnischemaField("name", np.str_, (), None, True),
            UnischemaField("image", np.uint8, (4, 3, 3), CompressedImageCodec("png"), False),
            UnischemaField("points", np.float32, (None, 3), CompressedNdarrayCodec(), False),
        ],
    )
    image, points = np.arange(36, dtype=np.uint8).reshape(4, 3, 3), np.ones((2, 3), np.float32)
    rows = [{"id": i, "name": None, "image": image, "points": points} for i in range(3)]
    write_dataset(tmp_path / "written", schema, rows)  # type: ignore[arg-type]  # taken by its to_parquetry()
    (first, *_) = Pipeline(tmp_path / "written")
    assert first["id"] == 0
    assert first["name"] is None
    np.testing.assert_array_equal(first["image"], image)
    np.testing.assert_array_equal(first["points"], points)


def test_a_field_that_cannot_be_stored_is_refused_only_then() -> None:
    loose = UnischemaField("x", object, (), None, False)
    assert loose.name == "x"
    with pytest.raises(SchemaError, match="dtype of field 'x'"):
        loose.to_parquetry()


def test_stored_schemas_are_shown_in_petastorms_form() -> None:
    fields = [
        core.UnischemaField("id", np.int64),
        core.UnischemaField("raw", bytes, (), core.ScalarCodec()),
        core.UnischemaField("price", decimal.Decimal, (), core.ScalarCodec(pa.decimal128(9, 2))),
        core.UnischemaField("codes", np.int32, (None,), nullable=True),
        core.UnischemaField("image", np.uint8, (4, 4), core.CompressedImageCodec("jpeg", 70)),
        core.UnischemaField("array", np.int8, (None, 2), core.NdarrayCodec()),
        core.UnischemaField("packed", np.int8, (None,), core.CompressedNdarrayCodec()),
        core.UnischemaField("tensor", np.int8, (2, 2)),
    ]
    shown = from_parquetry(core.Unischema("stored", fields))
    assert shown._name == "stored"
    assert [f.numpy_dtype for f in shown.fields.values()] == [
        np.int64,
        np.bytes_,
        decimal.Decimal,
        np.int32,
        np.uint8,
        np.int8,
        np.int8,
        np.int8,
    ]
    assert [type(f.codec) for f in shown.fields.values()] == [
        type(None),
        ScalarCodec,
        ScalarCodec,
        type(None),
        CompressedImageCodec,
        NdarrayCodec,
        CompressedNdarrayCodec,
        StoredCodec,
    ]
    assert str(shown.image.codec) == "CompressedImageCodec('jpeg', 70)"
    assert shown.to_parquetry().view(["image", "array", "packed"]) == core.Unischema("s", fields[4:7])
