"""Hostile pickles are refused without running anything; benign ones become plain data."""

from __future__ import annotations

import collections
import pickle
import pickletools
import random
import struct
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import every_case

from parquetry.common.base.errors import SchemaError
from parquetry.common.schema import petastorm_machine, petastorm_pickle
from parquetry.common.schema.petastorm_names import Global, InertObject
from parquetry.common.schema.petastorm_pickle import load_inert

DATA = Path(__file__).parents[2] / "data" / "petastorm"
SCALAR_CODEC = b"cpetastorm.codecs\nScalarCodec\n"
SET = b"c__builtin__\nset\n"
OPCODES = "".join(opcode.code for opcode in pickletools.opcodes).encode("latin1")


def short_text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def stack_global(module: str, name: str) -> bytes:
    return short_text(module) + short_text(name) + b"\x93"


def call_on_file(module: str, name: str, expression: str) -> bytes:
    """Returns a pickle that calls ``module.name(expression)`` if it is actually loaded."""
    return f"c{module}\n{name}\n(V{expression}\ntR.".encode()


def test_a_payload_that_the_standard_library_runs_is_refused_without_running(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    payload = call_on_file("builtins", "eval", f"open({str(proof)!r}, 'w').close()")
    with pytest.raises(SchemaError, match=r"file\.parquet.*the global 'builtins\.eval'"):
        load_inert(payload, where="file.parquet")
    assert not proof.exists()
    pickle.loads(payload)
    assert proof.exists(), "the payload is real"


@every_case(
    ("module", "name"),
    [
        ("__builtin__", "eval"),
        ("builtins", "getattr"),
        ("builtins", "__import__"),
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "Popen"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.testing._private.utils", "runstring"),
        ("petastorm.utils", "run_in_subprocess"),
        ("petastorm.codecs", "np"),
        ("petastorm.unischema", "Unischema.__init__"),
        ("pyspark.serializers", "_hack_namedtuple"),
        ("pyspark.sql.types", "_parse_datatype_json_string"),
        ("collections", "namedtuple"),
        ("copyreg", "add_extension"),
        ("av.ml.dataset_toolkit", "Unischema"),
        ("", "eval"),
    ],
)
def test_a_global_outside_the_exact_list_is_refused_by_name(module: str, name: str) -> None:
    for pickled in (f"c{module}\n{name}\n.".encode(), b"\x80\x04" + stack_global(module, name) + b"."):
        with pytest.raises(SchemaError, match=rf"the global '{module}\.{name}'"):
            load_inert(pickled, where="f")


@every_case(
    ("pickled", "message"),
    [
        pytest.param(
            b"\x80\x04" + stack_global("petastorm.unischema", "Unischema.__init__.__globals__") + b".",
            r"the global 'petastorm\.unischema\.Unischema\.__init__\.__globals__'",
            id="dotted name",
        ),
        pytest.param(b"\x80\x04" + short_text("numpy") + b"K\x01\x93.", "expected str, got 1", id="name not text"),
        pytest.param(b"Pid\n.", "opcode PERSID", id="persistent id"),
        pytest.param(b"\x80\x02U\x02idQ.", "opcode BINPERSID", id="binary persistent id"),
        pytest.param(b"\x80\x02\x82\x01.", "opcode EXT1", id="ext1"),
        pytest.param(b"\x80\x02\x83\x01\x00.", "opcode EXT2", id="ext2"),
        pytest.param(b"\x80\x02\x84\x01\x00\x00\x00.", "opcode EXT4", id="ext4"),
        pytest.param(b"(S'id'\nios\nsystem\n.", "opcode INST", id="inst"),
        pytest.param(b"(" + SCALAR_CODEC + b"o.", "opcode OBJ", id="obj"),
        pytest.param(b"\x80\x04" + SCALAR_CODEC + b")}\x92.", "opcode NEWOBJ_EX", id="newobj_ex"),
        pytest.param(b"\x80\x05\x96" + bytes(8) + b".", "opcode BYTEARRAY8", id="byte array"),
        pytest.param(b"\x80\x05\x97.", "opcode NEXT_BUFFER", id="out-of-band buffer"),
        pytest.param(b"\xff.", "opcode b'.xff'", id="unknown opcode"),
        pytest.param(b"\x80\x06N.", "protocol 0 to 5, got 6", id="protocol 6"),
    ],
)
def test_opcodes_and_names_that_reach_for_live_objects_are_refused(pickled: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        load_inert(pickled, where="f")


@every_case(
    ("pickled", "message"),
    [
        pytest.param(b"cnumpy\nfloat32\nK\x01\x85R.", r"a call of numpy\.float32", id="numpy type"),
        pytest.param(b"cdecimal\nDecimal\nU\x011\x85R.", r"a call of decimal\.Decimal", id="Decimal"),
        pytest.param(b"c__builtin__\nstr\nK\x01\x85R.", r"a call of builtins\.str", id="str"),
        pytest.param(SCALAR_CODEC + b")R)R.", "a name, got an object of", id="calling an instance"),
        pytest.param(SET + b"]R.", "expected tuple, got a list", id="arguments not a tuple"),
        pytest.param(SET + b"K\x01\x85R.", "list or tuple, got 1", id="set of a number"),
        pytest.param(SET + b"]]\x86R.", "one list, got 2 arguments", id="set of two lists"),
        pytest.param(b"ccopy_reg\n_reconstructor\n(" + SET + b"c__builtin__\nobject\nNtR.", r"builtins\.set", id="set"),
        pytest.param(
            b"ccopy_reg\n_reconstructor\n(" + SCALAR_CODEC + b"c__builtin__\nint\nK\x01tR.",
            r"expected an object or a tuple, got builtins\.int",
            id="other base",
        ),
        pytest.param(b"ccollections\ndefaultdict\nc__builtin__\nint\n\x85R.", r"defaultdict\(set\)", id="defaultdict"),
        pytest.param(b"ccollections\ndefaultdict\n]\x85R.", "expected a name, got a list", id="defaultdict of list"),
        pytest.param(b"cpyspark.serializers\n_restore\n(U\x01X))tR.", "named tuple UnischemaField", id="_restore"),
        pytest.param(b"cpyspark.serializers\n_restore\n(U\x0eUnischemaField))tR.", "KeyError", id="_restore empty"),
        pytest.param(b"c_codecs\nencode\nU\x01aU\x04zlib\x86R.", "encoding latin1, got 'zlib'", id="other encoding"),
        pytest.param(b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.", r"bytes\(\) without", id="bytes(2147483647)"),
        pytest.param(b"cnumpy.core.multiarray\nscalar\nNN\x86R.", "an object, got None", id="scalar of None"),
        pytest.param(
            b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x01O\x85RU\x00\x86R.",
            "plain numpy dtype, got 'O'",
            id="object dtype",
        ),
        pytest.param(
            b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x0aS999999999\x85RU\x00\x86R.",
            "expected 999999999 bytes",
            id="huge scalar",
        ),
        pytest.param(
            b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x02U1\x85RU\x04\xff\xff\xff\xff\x86R.",
            "UnicodeDecodeError",
            id="no such code point",
        ),
    ],
)
def test_calls_that_do_more_than_build_data_are_refused(pickled: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        load_inert(pickled, where="f")


@every_case(
    ("pickled", "message"),
    [
        pytest.param(SCALAR_CODEC + b"}U\x08__init__Nsb.", r"object, got petastorm\.codecs\.ScalarCodec", id="a class"),
        pytest.param(b"ccopy_reg\n_reconstructor\n}b.", r"got copyreg\._reconstructor", id="a function"),
        pytest.param(b"}}b.", "expected an object, got a dict", id="a dict"),
        pytest.param(SCALAR_CODEC + b")\x81N}\x86b.", "expected dict, got a tuple", id="slots"),
        pytest.param(SCALAR_CODEC + b")\x81}b}b.", "one state for each object", id="twice"),
    ],
)
def test_state_goes_to_inert_objects_only(pickled: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        load_inert(pickled, where="f")


def test_state_with_odd_names_is_only_kept() -> None:
    value = load_inert(SCALAR_CODEC + b")\x81}(U\x09__class__NU\x08__dict__K\x01U\x03clsK\x02ub.", where="f")
    assert type(value) is InertObject
    assert value.cls == Global("petastorm.codecs", "ScalarCodec")
    assert value.state == {"__class__": None, "__dict__": 1, "cls": 2}


@every_case(
    "pickled",
    [
        pytest.param(b"})K\x01s.", id="tuple"),
        pytest.param(b"}" + SCALAR_CODEC + b"K\x01s.", id="name"),
        pytest.param(b"(]K\x01d.", id="list in DICT"),
        pytest.param(b"}(" + SCALAR_CODEC + b")RNu.", id="object"),
        pytest.param(b"\x8f()\x90.", id="set item"),
        pytest.param(b"()\x91.", id="frozenset item"),
        pytest.param(SET + b"])a\x85R.", id="item of set(...)"),
        pytest.param(b"ccollections\nOrderedDict\n]](]Nea\x85R.", id="OrderedDict key"),
    ],
)
def test_keys_must_be_scalars(pickled: bytes) -> None:
    with pytest.raises(SchemaError, match="text, bytes or a number as key"):
        load_inert(pickled, where="f")


@every_case(
    ("pickled", "message"),
    [
        pytest.param(b")" + b"\x85" * 200_000 + b".", "at most 64 levels", id="nested tuples"),
        pytest.param(b"]" * 500 + b"a" * 499 + b".", "at most 64 levels", id="nested lists"),
        pytest.param(SCALAR_CODEC * 500 + b")" + b"\x81\x85" * 500 + b".", "at most 64 levels", id="nested objects"),
        pytest.param(b"(" * 100 + b"t" * 100 + b".", "at most 64 open marks", id="nested marks"),
        pytest.param(b"]q\x00h\x00a.", "at most 64 levels", id="a list in itself"),
        pytest.param(SCALAR_CODEC + b")\x81q\x00}U\x01ah\x00sb.", "at most 64 levels", id="an object in itself"),
        pytest.param(b"N" + b"r\xff\xff\xff\xff.", "memo number below", id="memo number 4294967295"),
        pytest.param(b"Np999999999\n.", "memo number below", id="memo number 999999999"),
        pytest.param(b"Np" + b"9" * 10_000 + b"\n.", "expected a memo number", id="memo number of 10000 digits"),
        pytest.param(b"Np-1\n.", "expected a memo number", id="negative memo number"),
        pytest.param(b"h\x07.", r"KeyError \(7\)", id="memo never set"),
        pytest.param(b"q\x07.", "IndexError", id="nothing to remember"),
        pytest.param(b"I" + b"9" * 100_000 + b"\n.", "64-bit integer", id="long decimal integer"),
        pytest.param(b"L" + b"9" * 20 + b"L\n.", "64-bit integer", id="integer above 64 bits"),
        pytest.param(b"\x8b\xff\xff\xff\x7f.", "64-bit integer", id="integer of 2 GiB"),
        pytest.param(b"\x8a\x09" + b"\x7f" * 9 + b".", "64-bit integer", id="integer of 9 bytes"),
        pytest.param(b"F" + b"1" * 1000 + b"\n.", "expected a float", id="long float"),
        pytest.param(b"B\xff\xff\xff\xffx.", "expected 4294967295 more bytes, got 2", id="bytes of 4 GiB"),
        pytest.param(b"\x8e" + struct.pack("<Q", 2**62) + b".", "more bytes, got 1", id="bytes of 4 EiB"),
        pytest.param(b"T\xff\xff\xff\xff.", "expected -1 more bytes", id="string of -1 bytes"),
        pytest.param(b"\x95" + struct.pack("<Q", 2**62) + b"N.", "more bytes, got 2", id="frame of 4 EiB"),
        pytest.param(b"S'\\q'\n.", "KeyError", id="unknown escape"),
        pytest.param(b"S'a\n.", "a quoted string", id="string without an end"),
        pytest.param(b"X\x01\x00\x00\x00\xff.", "UnicodeDecodeError", id="not UTF-8"),
        pytest.param(b"V\\ud800\n.", "UnicodeDecodeError", id="lone surrogate"),
        pytest.param(b"K\x01\x86.", "2 values on the stack, got 1", id="stack underflow"),
        pytest.param(b"}(Nu.", "pairs of key and value", id="half a pair"),
        pytest.param(b"NNa.", "expected list, got None", id="append to None"),
        pytest.param(b"N(u.", "expected dict, got None", id="items for None"),
    ],
)
def test_damaged_and_oversized_pickles_are_refused(pickled: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        load_inert(pickled, where="f")


def doubling(first: bytes, join: bytes) -> bytes:
    """Returns a value with 2**60 leaves in a few hundred bytes."""
    result = first + b"q\x00"
    for level in range(60):
        result += b"h" + bytes([level]) + b"h" + bytes([level]) + join + b"q" + bytes([level + 1])
    return result + b"."


@every_case(
    "pickled",
    [
        pytest.param(doubling(b"N", b"\x86"), id="tuples of tuples"),
        pytest.param(doubling(b"]", b"\x86"), id="tuples of lists"),
        pytest.param(b"](" + b"K\x01" * 1000 + b"eq\x000" + (SET + b"h\x00\x85R0") * 10 + b"N.", id="copied list"),
        pytest.param(
            b"V" + b"x" * 1000 + b"\nq\x000" + b"c_codecs\nencode\nh\x00Vlatin1\n\x86R0" * 10 + b"N.", id="copied text"
        ),
        pytest.param(
            b"\x8f("
            + b"".join(b"M" + struct.pack("<H", n) for n in range(1000))
            + b"\x90q\x000("
            + b"h\x00" * 10
            + b"t.",
            id="a long set many times",
        ),
        pytest.param(b"N0" * 5000 + b"N.", id="many opcodes"),
    ],
)
def test_small_pickles_of_huge_values_run_out_of_budget(pickled: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(petastorm_machine, "MAX_STEPS", 4000)
    with pytest.raises(SchemaError, match=r"at most (4000 steps|64 levels and 4000 values), got more"):
        load_inert(pickled, where="f")


def test_a_pickle_above_the_size_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(petastorm_pickle, "MAX_BYTES", 10)
    with pytest.raises(SchemaError, match="at most 10 bytes, got 11"):
        load_inert(b"(" * 11, where="f")


@pytest.mark.slow
def test_no_damage_to_a_real_pickle_raises_anything_but_a_schema_error() -> None:
    metadata = pq.read_schema(DATA / "0.12.1" / "_common_metadata").metadata
    whole = metadata[b"dataset-toolkit.unischema.v1"]
    for end in range(len(whole)):
        with pytest.raises(SchemaError):
            load_inert(whole[:end], where="f")
    generator, refused = random.Random(7), 0
    for _ in range(2000):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] = generator.choice(OPCODES)
        try:
            load_inert(bytes(damaged), where="f")
        except SchemaError:
            refused += 1
    assert refused > 100


PLAIN_VALUES = [
    None,
    True,
    False,
    0,
    255,
    65535,
    -1,
    2**31,
    -(2**63),
    2**64 - 1,
    1.5,
    float("-inf"),
    "",
    "grün \n '\" \\ \U0001f600",
    "x" * 300,
    b"",
    b"a\x00\xff",
    b"y" * 300,
    (),
    (1,),
    (1, 2),
    (1, 2, 3),
    (1, 2, 3, 4),
    [],
    [1, [2]],
    {},
    {"a": 1, 2: {b"b": None}},
    set(),
    {"a"},
    frozenset({1, 2}),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(set, {"a": {1}}),
]


@every_case("protocol", range(6))
@every_case("value", PLAIN_VALUES, ids=lambda value: repr(value)[:20])
def test_plain_values_of_python_3_come_back_equal(value: object, protocol: int) -> None:
    loaded = load_inert(pickle.dumps(value, protocol), where="f")
    assert loaded == value
    assert type(loaded) is (dict if isinstance(value, dict) else type(value))


@every_case("protocol", range(6))
@every_case(
    "value",
    [np.int64(-5), np.uint8(200), np.float32(0.5), np.bool_(True), np.str_("grün"), np.str_(""), np.bytes_(b"a\xff")],
    ids=repr,
)
def test_numpy_scalars_become_python_scalars(value: np.generic, protocol: int) -> None:
    loaded = load_inert(pickle.dumps(value, protocol), where="f")
    assert loaded == value.item()
    assert type(loaded) is type(value.item())


def test_strings_of_python_2_are_read_as_latin1() -> None:
    assert load_inert(rb"S'a\x00\xe9\n\'" + b"'\n.", where="f") == "a\x00\xe9\n'"
    assert load_inert(b"U\x02a\xe9.", where="f") == "a\xe9"
    assert load_inert(b"V\\ud83d\\ude00\n.", where="f") == "\U0001f600"
    assert load_inert(b"(I01\nI00\nI-7\nL12L\nF0.5\nt.", where="f") == (True, False, -7, 12, 0.5)


def test_numpy_scalars_of_both_byte_orders_are_read() -> None:
    state = b"(K\x03U\x01>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    pickled = b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x02%s\x85R" + state
    assert load_inert(pickled % b"i4" + b"U\x04\x00\x00\x01\x02\x86R.", where="f") == 258
    assert load_inert(pickled % b"U1" + b"U\x04\x00\x00\x00a\x86R.", where="f") == "a"
