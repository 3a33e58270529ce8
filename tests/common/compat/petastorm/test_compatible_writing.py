"""``write_dataset(..., petastorm_compatible=True)``: keys that Petastorm reads, without Petastorm."""

from __future__ import annotations

import collections
import decimal
import io
import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    ListCodec,
    NdarrayCodec,
    Pipeline,
    ScalarCodec,
    TensorCodec,
    Unischema,
    UnischemaField,
    write_dataset,
)
from parquetry.common.base.errors import SchemaError
from parquetry.common.schema.petastorm_metadata import (
    ROW_GROUP_COUNTS_KEY,
    ROW_GROUP_INDEXES_KEY,
    PetastormIndex,
    row_group_indexes_from_petastorm,
    schema_from_petastorm,
)
from parquetry.common.write.petastorm import indexes_to_pickle, schema_to_pickle

F = UnischemaField
SCHEMA = Unischema(
    "Back",
    [
        F("id", np.int64),
        F("drive", str),
        F("small", np.uint8),
        F("flag", np.bool_),
        F("price", decimal.Decimal),
        F("raw", bytes, nullable=True),
        F("when", "datetime64[ns]"),
        F("image", np.uint8, (8, 6, 3), CompressedImageCodec("jpeg", 90)),
        F("grid", np.float32, (3, 4)),
        F("points", np.float32, (None, 3), CompressedNdarrayCodec()),
        F("words", str, (2,), NdarrayCodec()),
        F("codes", np.int32, (None,)),
    ],
)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "drive": f"d{i // 10}",
            "small": i,
            "flag": i % 2 == 0,
            "price": decimal.Decimal(i) / 8,
            "raw": None if i % 3 == 0 else bytes([i, 0]),
            "when": np.datetime64(i, "ns"),
            "image": np.full((8, 6, 3), i, np.uint8),
            "grid": np.full((3, 4), i, np.float32),
            "points": np.full((i % 4, 3), i, np.float32),
            "words": ["a", f"b{i}"],
            "codes": list(range(i % 5)),
        }
        for i in range(count)
    ]


def keys_of(directory: Path) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = pq.read_schema(directory / "_common_metadata").metadata
    return metadata


def test_the_old_keys_say_what_the_new_one_says(tmp_path: Path) -> None:
    directory = tmp_path / "back"
    write_dataset(directory, SCHEMA, rows(30), row_group_rows=4, partition_by=("drive",), petastorm_compatible=True)
    stored = schema_from_petastorm(keys_of(directory), where="here")
    assert stored is not None
    assert stored.name == "Back"
    assert list(stored.fields) == list(SCHEMA.fields)
    for field, own in zip(stored, Pipeline(directory).schema, strict=True):
        assert (field.dtype, field.shape, field.nullable) == (own.dtype, own.shape, own.nullable)
        assert field.storage.coded == own.storage.coded
        assert type(field.storage) is type(own.storage)
    assert stored.image.storage == CompressedImageCodec("jpeg", 90)
    counts = json.loads(keys_of(directory)[ROW_GROUP_COUNTS_KEY])
    assert counts == {f"drive=d{i}/part-00000.parquet": 3 for i in range(3)}


def test_several_files_in_a_directory_are_counted_apart(tmp_path: Path) -> None:
    schema = Unischema("s", [F("id", np.int64)])
    write_dataset(
        tmp_path / "s", schema, [{"id": i} for i in range(10)], row_group_rows=3, files=2, petastorm_compatible=True
    )
    assert json.loads(keys_of(tmp_path / "s")[ROW_GROUP_COUNTS_KEY]) == {
        "part-00000.parquet": 2,
        "part-00001.parquet": 2,
    }


def test_arrays_without_a_codec_are_stored_so_that_petastorm_decodes_them(tmp_path: Path) -> None:
    write_dataset(tmp_path / "back", SCHEMA, rows(3), petastorm_compatible=True)
    assert isinstance(Pipeline(tmp_path / "back").schema.grid.codec, NdarrayCodec)
    np.testing.assert_array_equal(list(Pipeline(tmp_path / "back"))[2]["grid"], np.full((3, 4), 2, np.float32))


def test_without_the_option_no_pickle_is_written(tmp_path: Path) -> None:
    write_dataset(tmp_path / "new", SCHEMA, rows(3))
    assert not any(key.startswith(b"dataset-toolkit") for key in keys_of(tmp_path / "new"))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (F("x", np.float32, (2,), TensorCodec()), "Petastorm has no TensorCodec"),
        (F("x", np.uint8, (4, 4, 3), CompressedImageCodec("webp")), "got webp"),
        (F("x", np.float16), "cannot read float16 columns"),
        (F("x", "timedelta64[s]"), "does not support time differences"),
        (F("x", str, (None,)), "lists of numbers"),
        (F("x", np.int8, (2, 2), ListCodec()), "lists of numbers"),
    ],
)
def test_fields_that_petastorm_cannot_read_are_refused_before_anything_is_written(
    tmp_path: Path, field: UnischemaField, text: str
) -> None:
    with pytest.raises(SchemaError, match=f"field 'x': .*{text}"):
        write_dataset(tmp_path / "x", Unischema("x", [field]), [], petastorm_compatible=True)
    assert not (tmp_path / "x").exists()


class _Field(NamedTuple):
    name: str
    numpy_dtype: Any
    shape: Any
    codec: Any
    nullable: Any


def test_the_pickle_makes_petastorms_objects_where_these_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses stand-ins for Petastorm's modules: Python's own unpickler must find them by name alone."""

    class Plain:
        pass

    unischema = types.ModuleType("petastorm.unischema")
    codecs = types.ModuleType("petastorm.codecs")
    unischema.Unischema, unischema.UnischemaField = type("Unischema", (Plain,), {}), _Field  # type: ignore[attr-defined]
    for name in ("NdarrayCodec", "CompressedNdarrayCodec", "CompressedImageCodec"):
        setattr(codecs, name, type(name, (Plain,), {}))
    for name, module in [("petastorm", types.ModuleType("petastorm")), ("petastorm.unischema", unischema)]:
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "petastorm.codecs", codecs)
    stored = SCHEMA.view([name for name in SCHEMA.fields if name != "grid"])
    made = pickle.Unpickler(io.BytesIO(schema_to_pickle(stored))).load()
    assert made._name == "Back"
    assert type(made._fields) is collections.OrderedDict
    assert list(made._fields) == list(stored.fields)
    assert made.id == made._fields["id"]
    assert made.id == ("id", np.int64, (), None, False)
    assert made.price.numpy_dtype is decimal.Decimal
    assert made.raw[1:] == (np.bytes_, (), None, True)
    assert made.when.numpy_dtype is np.datetime64
    assert made.drive.numpy_dtype is np.str_
    assert made.flag.numpy_dtype is np.bool_
    assert made.points.shape == (None, 3)
    assert vars(made.image.codec) == {"_image_codec": ".jpeg", "_quality": 90}


def test_indexes_of_every_kind_of_value_come_back() -> None:
    values: list[Any] = [0, -1, 2**31, -(2**63), 2**63 - 1, "tëxt", b"\x00\xff", 1.5, True, None]
    by_value = {value: frozenset({n, 70000 + n}) for n, value in enumerate(values)}
    union = frozenset().union(*by_value.values())
    indexes = {
        "single": PetastormIndex(name="single", column="a", ordinals=union, ordinals_by_value=by_value),
        "empty": PetastormIndex(name="empty", column="a", ordinals=frozenset(), ordinals_by_value={}),
        "not null": PetastormIndex(name="not null", column="b", ordinals=frozenset({1, 3})),
    }
    read = row_group_indexes_from_petastorm({ROW_GROUP_INDEXES_KEY: indexes_to_pickle(indexes)}, where="here")
    assert read == indexes
    assert read["single"].ordinals_by_value == by_value
    assert [type(key) for key in read["single"].ordinals_by_value or ()] == [type(value) for value in values]


def test_row_group_counts_are_json(tmp_path: Path) -> None:
    write_dataset(tmp_path / "s", Unischema("s", [F("id", np.int64, (), ScalarCodec())]), [], petastorm_compatible=True)
    assert json.loads(keys_of(tmp_path / "s")[b"dataset-toolkit.num_row_groups_per_file.v1"]) == {
        "part-00000.parquet": 0
    }
