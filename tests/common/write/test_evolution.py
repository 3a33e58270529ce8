"""Which rows may be added to a dataset, and which schema it has then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common import (
    CompressedImageCodec,
    NdarrayCodec,
    ScalarCodec,
    TensorCodec,
    Unischema,
    UnischemaField,
)
from parquetry.common.base.errors import SchemaError
from parquetry.common.write.evolution import evolved

STORED = Unischema(
    "s",
    [
        UnischemaField("day", str),
        UnischemaField("x", np.int64),
        UnischemaField("array", np.float32, (2, 3), dims=("H", "W")),
        UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", quality=90), nullable=True),
    ],
)


def with_fields(*changed: UnischemaField, without: str = "") -> Unischema:
    fields = {**STORED.fields, **{field.name: field for field in changed}}
    return Unischema("new", [field for name, field in fields.items() if name != without])


def after(added: Unischema, **options: Any) -> Unischema:
    return evolved(STORED, added, **{"keys": ("day",), "partition_by": ("day",), "where": "data", **options})


@pytest.mark.parametrize(
    "added",
    [
        STORED,
        Unischema("other order and name", reversed(list(STORED))),
        with_fields(without="image"),
        with_fields(UnischemaField("x", np.int64, codec=ScalarCodec(pa.int64()))),
        with_fields(UnischemaField("array", np.float32, (2, 3), TensorCodec())),
        with_fields(STORED.image.replace(nullable=False)),
    ],
)
def test_rows_that_are_stored_alike_leave_the_schema_as_it_is(added: Unischema) -> None:
    assert after(added) is STORED


def test_a_new_nullable_field_comes_after_the_others() -> None:
    new = UnischemaField("score", np.float32, nullable=True)
    assert list(after(Unischema("s", [new, *STORED]))) == [*STORED, new]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (with_fields(UnischemaField("new", np.int8)), r"'new' is new, .*expected nullable=True, got int8 \(\)"),
        (with_fields(UnischemaField("x", np.int32)), r"'x' is stored as int64 .*, and the new rows have int32"),
        (with_fields(STORED.x.replace(nullable=True)), r"'x' is stored as .*, not nullable, .* have .*, nullable\."),
        (with_fields(STORED.array.replace(shape=(3, 3))), r"'array' .* \(2, 3\).* the new rows have float32 \(3, 3\)"),
        (with_fields(STORED.array.replace(codec=NdarrayCodec())), r"'array' .* 'tensor'.* have .* 'ndarray'"),
        (with_fields(STORED.array.replace(dims=("W", "H"))), r"'array' .*\('H', 'W'\).* have .*\('W', 'H'\)"),
        (with_fields(STORED.image.replace(codec=CompressedImageCodec("png"))), r"'image' .* 'jpeg'.* have .* 'png'"),
        (
            with_fields(UnischemaField("x", np.int64, codec=ScalarCodec(pa.int32()))),
            r"'x' .* column int64, .* column int32",
        ),
        (with_fields(without="x"), r"'x' is stored as int64 .*: expected it in the schema of the new rows, got day, "),
    ],
)
def test_rows_that_are_stored_in_another_way_are_refused_with_both_sides(added: Unischema, message: str) -> None:
    with pytest.raises(SchemaError, match=rf"dataset 'data': field {message}"):
        after(added)


def test_partitions_must_agree() -> None:
    with pytest.raises(SchemaError, match=r"expected partition_by=\('day',\), as it is stored, got \(\)\."):
        after(STORED, partition_by=())
    with pytest.raises(SchemaError, match=r"expected partition_by=\(\), as it is stored, got \('day',\)\."):
        after(STORED, keys=())
