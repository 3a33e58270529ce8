"""Petastorm's metadata becomes parquetry's schema, counts and indexes, in every release's format.

Those releases wrote the files `tests/data/petastorm/<version>/_common_metadata`. The other pickles are made here, with
classes under Petastorm's names that exist only during pickling.
"""

from __future__ import annotations

import collections
import decimal
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import every_case

from parquetry.common.base.errors import SchemaError
from parquetry.common.schema import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    ListCodec,
    NdarrayCodec,
    ScalarCodec,
    Unischema,
    UnischemaField,
)
from parquetry.common.schema.petastorm_metadata import (
    ROW_GROUP_INDEXES_KEY,
    SCHEMA_KEY,
    PetastormIndex,
    row_group_indexes_from_petastorm,
    schema_from_petastorm,
)

DATA = Path(__file__).parents[2] / "data" / "petastorm"
VERSIONS = ["0.4.0", "0.7.0", "0.7.6", "0.12.1"]
IMAGE = (32, 16, 3)

IN_0_4_0 = [
    UnischemaField("decimal", decimal.Decimal, (), ScalarCodec()),
    UnischemaField("empty_matrix_string", bytes, (None,), NdarrayCodec()),
    UnischemaField("id", np.int64, (), ScalarCodec()),
    UnischemaField("id2", np.int32, (), ScalarCodec()),
    UnischemaField("image_png", np.uint8, IMAGE, CompressedImageCodec("png")),
    UnischemaField("matrix", np.float32, IMAGE, NdarrayCodec()),
    UnischemaField("matrix_nullable", np.uint16, IMAGE, NdarrayCodec(), True),
    UnischemaField("matrix_string", bytes, (None,), NdarrayCodec()),
    UnischemaField("matrix_uint16", np.uint16, IMAGE, NdarrayCodec()),
    UnischemaField("partition_key", str, (), ScalarCodec()),
    UnischemaField("python_primitive_uint8", np.uint8, (), ScalarCodec()),
    UnischemaField("sensor_name", str, (1,), NdarrayCodec()),
    UnischemaField("string_array_nullable", str, (None,), NdarrayCodec(), True),
]
NEW_IN_0_7_0 = [
    UnischemaField("id_float", np.float64, (), ScalarCodec()),
    UnischemaField("id_odd", np.bool_, (), ScalarCodec()),
    UnischemaField("matrix_string", bytes, (None, None), NdarrayCodec()),
]
NEW_IN_0_7_6 = [
    UnischemaField("integer_nullable", np.int32, (), ScalarCodec(), True),
    UnischemaField("matrix_uint32", np.uint32, IMAGE, NdarrayCodec()),
]
IN_0_12_1 = [
    UnischemaField("drive", str, (), ScalarCodec()),
    UnischemaField("id", np.int64, (), ScalarCodec()),
    UnischemaField("stamp_ms", np.int64, (), ScalarCodec()),
    UnischemaField("label", str, (), ScalarCodec(), True),
    UnischemaField("speed", np.float32, (), ScalarCodec(), True),
    UnischemaField("count_u16", np.uint16, (), ScalarCodec()),
    UnischemaField("price", decimal.Decimal, (), ScalarCodec()),
    UnischemaField("png", np.uint8, (8, 6, 3), CompressedImageCodec("png", 80)),
    UnischemaField("png16", np.uint16, (4, 5), CompressedImageCodec("png", 80)),
    UnischemaField("jpeg", np.uint8, (16, 16, 3), CompressedImageCodec("jpeg", 90)),
    UnischemaField("matrix", np.float32, (3, 4), NdarrayCodec()),
    UnischemaField("points", np.float32, (None, 3), CompressedNdarrayCodec()),
    UnischemaField("names", bytes, (None,), NdarrayCodec(), True),
]


def stored_metadata(version: str) -> dict[bytes, bytes]:
    return pq.read_schema(DATA / version / "_common_metadata").metadata


def by_name(*fields: UnischemaField) -> list[UnischemaField]:
    return [field for _, field in sorted({field.name: field for field in fields}.items())]


@every_case(
    ("version", "expected"),
    [
        ("0.4.0", Unischema("TestSchema", IN_0_4_0)),
        ("0.7.0", Unischema("TestSchema", by_name(*IN_0_4_0, *NEW_IN_0_7_0))),
        ("0.7.6", Unischema("TestSchema", by_name(*IN_0_4_0, *NEW_IN_0_7_0, *NEW_IN_0_7_6))),
        ("0.12.1", Unischema("Drive", IN_0_12_1)),
    ],
)
def test_the_schema_of_each_release_is_read_in_its_order(version: str, expected: Unischema) -> None:
    schema = schema_from_petastorm(stored_metadata(version), where=version)
    assert schema is not None
    assert schema == expected
    assert schema.name == expected.name


def add_module(monkeypatch: pytest.MonkeyPatch, name: str) -> types.ModuleType:
    """Adds an importable module and its parents until the test ends."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
    return sys.modules[name]


@every_case("version", VERSIONS)
def test_reading_touches_nothing_of_the_modules_that_the_pickle_names(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TouchedError(Exception):
        pass

    def touch(name: str) -> Any:
        raise TouchedError(name)

    for name in ("petastorm.unischema", "petastorm.codecs", "petastorm.etl.rowgroup_indexers", "pyspark.serializers"):
        vars(add_module(monkeypatch, name))["__getattr__"] = touch
    metadata = stored_metadata(version)
    schema_from_petastorm(metadata, where=version)
    row_group_indexes_from_petastorm(metadata, where=version)
    with pytest.raises(TouchedError):
        pickle.loads(metadata[SCHEMA_KEY], encoding="latin1")


@every_case("version", ["0.4.0", "0.7.0", "0.7.6"])
def test_row_group_indexes_of_python_2_give_the_row_groups_of_each_value(version: str) -> None:
    indexes = row_group_indexes_from_petastorm(stored_metadata(version), where=version)
    everywhere = frozenset(range(10))
    assert indexes["id"].column == "id"
    assert indexes["id"].ordinals_by_value == {i: frozenset([i // 10]) for i in range(100)}
    assert indexes["sensor_name"].ordinals_by_value == {"test_sensor": everywhere}
    assert indexes["string_array_nullable"].ordinals == everywhere
    strings = indexes["string_array_nullable"].ordinals_by_value
    assert strings is not None
    assert strings["24"] == {2}
    if version != "0.4.0":
        assert indexes["partition_key"].ordinals_by_value == {f"p_{i}": frozenset([i]) for i in range(10)}


def test_metadata_without_petastorm_keys_gives_nothing() -> None:
    for metadata in (None, {}, {b"pandas": b"{}"}):
        assert schema_from_petastorm(metadata, where="f") is None
        assert row_group_indexes_from_petastorm(metadata, where="f") == {}


# --- pickles made here


class _Field(NamedTuple):
    name: str
    numpy_dtype: Any
    shape: Any
    codec: Any = None
    nullable: Any = False


Petastorm = types.SimpleNamespace


@pytest.fixture
def petastorm(monkeypatch: pytest.MonkeyPatch) -> Petastorm:
    """Defines Petastorm's classes by name, picklable under their own modules during the test."""

    def define(module: str, name: str, base: type = object) -> type:
        slots = {"__slots__": ()} if base is _Field else {}
        cls = type(name, (base,), {"__module__": module, **slots})
        setattr(add_module(monkeypatch, module), name, cls)
        return cls

    codecs = ("ScalarCodec", "NdarrayCodec", "CompressedNdarrayCodec", "CompressedImageCodec")
    indexers = ("SingleFieldIndexer", "FieldNotNullIndexer")
    spark = ("ArrayType", "DecimalType", "FloatType", "ShortType", "StringType", "TimestampType")
    return types.SimpleNamespace(
        Unischema=define("petastorm.unischema", "Unischema"),
        UnischemaField=define("petastorm.unischema", "UnischemaField", _Field),
        **{name: define("petastorm.codecs", name) for name in codecs},
        **{name: define("petastorm.etl.rowgroup_indexers", name) for name in indexers},
        **{name: define("pyspark.sql.types", name) for name in spark},
        OwnCodec=define("our_company.codecs", "OwnCodec"),
    )


def with_state(cls: type, **state: Any) -> Any:
    made = cls()
    made.__dict__.update(state)
    return made


def pickled_schema(petastorm: Petastorm, *fields: Any, protocol: int = 4) -> dict[bytes, bytes]:
    attributes = {field.name: field for field in fields}
    schema = with_state(petastorm.Unischema, _name="S", _fields=collections.OrderedDict(attributes), **attributes)
    return {SCHEMA_KEY: pickle.dumps(schema, protocol)}


def read_field(petastorm: Petastorm, *values: Any, protocol: int = 4) -> UnischemaField:
    metadata = pickled_schema(petastorm, petastorm.UnischemaField(*values), protocol=protocol)
    schema = schema_from_petastorm(metadata, where="the file")
    assert schema is not None
    return schema[values[0]]


@every_case("protocol", range(6))
def test_every_pickle_protocol_of_python_3_gives_the_same_schema(petastorm: Petastorm, protocol: int) -> None:
    field = petastorm.UnischemaField
    short = with_state(petastorm.ScalarCodec, _spark_type=petastorm.ShortType())
    money = with_state(petastorm.DecimalType, precision=9, scale=2, hasPrecisionInfo=True)
    metadata = pickled_schema(
        petastorm,
        field("small", np.uint8, (), short, False),
        field("price", decimal.Decimal, (), with_state(petastorm.ScalarCodec, _spark_type=money), True),
        field("points", np.float64, (None, 3), petastorm.CompressedNdarrayCodec(), False),
        field("words", np.str_, (None,), petastorm.NdarrayCodec(), True),
        protocol=protocol,
    )
    assert schema_from_petastorm(metadata, where="f") == Unischema(
        "S",
        [
            UnischemaField("small", np.uint8, (), ScalarCodec()),
            UnischemaField("price", decimal.Decimal, (), ScalarCodec(), True),
            UnischemaField("points", np.float64, (None, 3), CompressedNdarrayCodec()),
            UnischemaField("words", str, (None,), NdarrayCodec(), True),
        ],
    )


@every_case(
    ("stored", "expected"),
    [
        *(
            (dtype, dtype)
            for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
        ),
        *((dtype, dtype) for dtype in (np.float16, np.float32, np.float64, np.bool_)),
        (np.longlong, np.int64),
        (np.str_, str),
        (np.bytes_, bytes),
        (np.datetime64, "datetime64[ns]"),
        (decimal.Decimal, decimal.Decimal),
        (int, np.int64),
        (float, np.float64),
        (bool, np.bool_),
        (str, str),
        (bytes, bytes),
        (np.dtype("float32"), np.float32),
        (np.dtype(">u2"), np.uint16),
        (np.dtype("U7"), str),
        (np.dtype("M8[ms]"), "datetime64[ms]"),
    ],
    ids=str,
)
@every_case("protocol", [2, 5])
def test_every_dtype_of_petastorm_has_its_counterpart(
    petastorm: Petastorm, stored: Any, expected: Any, protocol: int
) -> None:
    expected_field = UnischemaField("x", expected)
    assert read_field(petastorm, "x", stored, (), None, False, protocol=protocol) == expected_field


@every_case("name", ["unicode_", "str_"])
def test_text_names_that_numpy_has_dropped_are_read(petastorm: Petastorm, name: str) -> None:
    metadata = pickled_schema(petastorm, petastorm.UnischemaField("x", np.float32, (), None, False), protocol=0)
    renamed = {SCHEMA_KEY: metadata[SCHEMA_KEY].replace(b"cnumpy\nfloat32\n", f"cnumpy\n{name}\n".encode())}
    schema = schema_from_petastorm(renamed, where="f")
    assert schema is not None
    assert schema["x"] == UnischemaField("x", str)


@every_case("package", ["av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit"])
@every_case("protocol", [0, 2, 4])
def test_the_module_names_from_before_petastorm_are_read(
    petastorm: Petastorm, monkeypatch: pytest.MonkeyPatch, package: str, protocol: int
) -> None:
    for module in ("codecs", "unischema"):
        moved = add_module(monkeypatch, f"{package}.{module}")
        for name, cls in vars(petastorm).items():
            if cls.__module__ == f"petastorm.{module}":
                monkeypatch.setattr(cls, "__module__", moved.__name__)
                setattr(moved, name, cls)
    metadata = pickled_schema(
        petastorm, petastorm.UnischemaField("x", np.int8, (2,), petastorm.NdarrayCodec(), True), protocol=protocol
    )
    assert package.encode() in metadata[SCHEMA_KEY]
    assert schema_from_petastorm(metadata, where="f") == Unischema(
        "S", [UnischemaField("x", np.int8, (2,), NdarrayCodec(), True)]
    )


def spark_list_codec(petastorm: Petastorm) -> Any:
    return with_state(
        petastorm.ScalarCodec, _spark_type=with_state(petastorm.ArrayType, elementType=petastorm.FloatType())
    )


def image_codec(name: str, quality: int) -> Callable[[Petastorm], Any]:
    return lambda petastorm: with_state(petastorm.CompressedImageCodec, _image_codec=name, _quality=quality)


@every_case(
    ("dtype", "shape", "codec", "expected"),
    [
        pytest.param(np.float32, (), lambda petastorm: None, None, id="no codec, scalar"),
        pytest.param(np.float32, (None,), lambda petastorm: None, ListCodec(), id="no codec, list"),
        pytest.param(np.float32, (2, 3), lambda petastorm: None, ListCodec(), id="no codec, list of lists"),
        pytest.param(np.float32, (None,), spark_list_codec, ListCodec(), id="scalar codec of a Spark list"),
        pytest.param(np.uint8, (None, None, 3), image_codec(".png", 80), CompressedImageCodec("png"), id="png"),
        pytest.param(np.uint16, (None, None), image_codec(".png", 80), CompressedImageCodec("png"), id="png16"),
        pytest.param(np.uint8, (9, 9, 3), image_codec(".jpg", 75), CompressedImageCodec("jpeg", 75), id="jpg"),
        pytest.param(np.uint8, (9, 9), image_codec(".jpeg", 101), CompressedImageCodec("jpeg", 100), id="quality 101"),
        pytest.param(np.uint8, (9, 9), image_codec(".png", 0), CompressedImageCodec("png", 1), id="quality 0"),
    ],
)
def test_every_codec_of_petastorm_has_its_counterpart(
    petastorm: Petastorm, dtype: Any, shape: Any, codec: Callable[[Petastorm], Any], expected: Any
) -> None:
    field = read_field(petastorm, "x", dtype, shape, codec(petastorm), False)
    assert (field.codec, field.shape) == (expected, shape)


@every_case(
    ("values", "message"),
    [
        pytest.param((np.object_, (), None, False), "dtype of field 'x': expected bool, integer", id="object"),
        pytest.param((np.complex64, (), None, False), "dtype of field 'x': expected bool, integer", id="complex"),
        pytest.param((set, (), None, False), r"dtype of field 'x': .* got builtins\.set", id="set"),
        pytest.param((None, (), None, False), "dtype of field 'x': .* got None", id="no dtype"),
        pytest.param((np.dtype("V3"), (), None, False), "dtype of field 'x': .* got 'V3'", id="record"),
        pytest.param((np.int8, ("a",), None, False), "shape of field 'x': .* got a tuple", id="text in shape"),
        pytest.param((np.int8, 3, None, False), "shape of field 'x': .* got 3", id="number as shape"),
        pytest.param((np.int8, (-1,), None, False), "shape of field 'x': expected axes >= 0", id="negative axis"),
        pytest.param((np.int8, (), "png", False), "codec of field 'x': .* got 'png'", id="text as codec"),
        pytest.param((np.int8, (), None, "no"), "field 'x': .* got nullable='no'", id="text as nullable"),
    ],
)
def test_a_field_that_cannot_be_read_is_named_with_its_file(petastorm: Petastorm, values: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"schema of the file: {message}"):
        read_field(petastorm, "x", *values)


def test_an_image_format_without_a_decoder_is_named_with_its_field(petastorm: Petastorm) -> None:
    codec = image_codec(".bmp", 80)(petastorm)
    with pytest.raises(SchemaError, match=r"codec of field 'x': image codec: expected .* got '\.bmp'"):
        read_field(petastorm, "x", np.uint8, (4, 4), codec, False)


def test_a_codec_of_the_users_own_is_refused_by_name(petastorm: Petastorm) -> None:
    with pytest.raises(SchemaError, match=r"the file.*the global 'our_company\.codecs\.OwnCodec'"):
        read_field(petastorm, "x", np.int8, (), petastorm.OwnCodec(), False)


@every_case(
    ("value", "message"),
    [
        pytest.param({}, "expected a pickled Unischema, got a dict", id="dict"),
        pytest.param(None, "expected a pickled Unischema, got None", id="None"),
    ],
)
def test_a_pickle_of_something_else_is_not_a_schema(value: object, message: str) -> None:
    with pytest.raises(SchemaError, match=f"metadata of the file: {message}"):
        schema_from_petastorm({SCHEMA_KEY: pickle.dumps(value)}, where="the file")


def test_a_schema_without_fields_is_refused(petastorm: Petastorm) -> None:
    for state in ({}, {"_name": "S"}, {"_name": 1, "_fields": {}}, {"_name": "S", "_fields": [1]}):
        metadata = {SCHEMA_KEY: pickle.dumps(with_state(petastorm.Unischema, **state))}
        with pytest.raises(SchemaError, match="schema of the file: expected a name and fields"):
            schema_from_petastorm(metadata, where="the file")


def test_a_field_of_another_class_is_refused(petastorm: Petastorm) -> None:
    for value in (1, petastorm.NdarrayCodec(), ("x", np.int8, ())):
        metadata = {SCHEMA_KEY: pickle.dumps(with_state(petastorm.Unischema, _name="S", _fields={"x": value}))}
        with pytest.raises(SchemaError, match="schema of the file: a field: expected a UnischemaField"):
            schema_from_petastorm(metadata, where="the file")


def test_a_named_tuple_that_spark_pickled_is_read_by_the_names_of_its_values() -> None:
    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    names = b"(" + b"".join(map(text, ["shape", "nullable", "name", "numpy_dtype"])) + b"t"
    values = b"(K\x02\x85I01\n" + text("x") + b"cnumpy\nint8\nt"
    field = b"cpyspark.serializers\n_restore\n(" + text("UnischemaField") + names + values + b"tR"
    state = b"}(" + text("_name") + text("S") + text("_fields") + b"}" + text("x") + field + b"su"
    schema = schema_from_petastorm({SCHEMA_KEY: b"cpetastorm.unischema\nUnischema\n)\x81" + state + b"b."}, where="f")
    assert schema == Unischema("S", [UnischemaField("x", np.int8, (2,), ListCodec(), True)])


@every_case("protocol", [2, 4, 5])
def test_row_group_indexes_of_python_3_are_read(petastorm: Petastorm, protocol: int) -> None:
    values = collections.defaultdict(set, {np.int64(7): {0, 2}, np.str_("a"): {1}, np.bytes_(b"b\xff"): {2}})
    single = with_state(petastorm.SingleFieldIndexer, _index_name="by_x", _column_name="x", _index_data=values)
    present = with_state(petastorm.FieldNotNullIndexer, _index_name="has_y", _column_name="y", _index_data={0, 3})
    metadata = {ROW_GROUP_INDEXES_KEY: pickle.dumps({"by_x": single, "has_y": present}, protocol)}
    assert row_group_indexes_from_petastorm(metadata, where="f") == {
        "by_x": PetastormIndex(
            name="by_x",
            column="x",
            ordinals=frozenset({0, 1, 2}),
            ordinals_by_value={7: frozenset({0, 2}), "a": frozenset({1}), b"b\xff": frozenset({2})},
        ),
        "has_y": PetastormIndex(name="has_y", column="y", ordinals=frozenset({0, 3})),
    }


def test_a_row_group_index_pickles_and_hashes() -> None:
    index = PetastormIndex(name="n", column="c", ordinals=frozenset({1}), ordinals_by_value={"a": frozenset({1})})
    assert pickle.loads(pickle.dumps(index)) == index
    assert hash(index) == hash(pickle.loads(pickle.dumps(index)))


@every_case(
    ("data", "message"),
    [
        pytest.param({1}, "index 'n' of f: expected a dict, got a set", id="no dict"),
        pytest.param({1: [1]}, "index 'n' of f: expected sets of row groups, got a list", id="list"),
        pytest.param({1: {-1}}, "index 'n' of f: expected sets of row groups", id="negative"),
        pytest.param({1: {"1"}}, "index 'n' of f: expected sets of row groups", id="text"),
    ],
)
def test_a_damaged_row_group_index_is_refused(petastorm: Petastorm, data: object, message: str) -> None:
    index = with_state(petastorm.SingleFieldIndexer, _index_name="n", _column_name="c", _index_data=data)
    with pytest.raises(SchemaError, match=message):
        row_group_indexes_from_petastorm({ROW_GROUP_INDEXES_KEY: pickle.dumps({"n": index})}, where="f")


def test_a_row_group_index_without_a_column_is_refused(petastorm: Petastorm) -> None:
    metadata = {ROW_GROUP_INDEXES_KEY: pickle.dumps({"n": petastorm.FieldNotNullIndexer()})}
    with pytest.raises(SchemaError, match="index of f: expected a name and a column, got None"):
        row_group_indexes_from_petastorm(metadata, where="f")


def test_row_group_indexes_must_be_indexes_by_name() -> None:
    with pytest.raises(SchemaError, match="indexes of f: expected a dict by name, got a list"):
        row_group_indexes_from_petastorm({ROW_GROUP_INDEXES_KEY: pickle.dumps([])}, where="f")
    with pytest.raises(SchemaError, match="expected a pickled SingleFieldIndexer or FieldNotNullIndexer, got 1"):
        row_group_indexes_from_petastorm({ROW_GROUP_INDEXES_KEY: pickle.dumps({"a": 1})}, where="f")


def test_a_schema_that_runs_code_in_petastorm_is_refused(petastorm: Petastorm, tmp_path: Path) -> None:
    proof = tmp_path / "proof"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, (f"open({str(proof)!r}, 'w').close()",)

    for protocol in range(6):
        with pytest.raises(SchemaError, match=r"the global '(__builtin__|builtins)\.eval'"):
            read_field(petastorm, "x", np.int8, (), Payload(), False, protocol=protocol)
    assert not proof.exists()
