"""The C++ header and the Python module describe the same protocol."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from parquetry.common.transport.sidecar import protocol

HEADER = (Path(__file__).parents[2] / "tf_plugin" / "kernels" / "protocol.h").read_text()
C_FORMATS = {"uint16_t": "H", "uint32_t": "I", "uint64_t": "Q", "int64_t": "q"}


def cpp_enum(name: str) -> dict[str, int]:
    body = re.search(rf"enum class {name} : uint16_t \{{(.*?)\}};", HEADER, re.DOTALL)
    assert body is not None
    return {snake(key): int(value) for key, value in re.findall(r"k(\w+) = (\d+)", body[1])}


def cpp_struct(name: str) -> list[tuple[str, str, int]]:
    """Returns ``(field, type, array length)`` of each member."""
    body = re.search(rf"struct {name} \{{(.*?)\}};", HEADER, re.DOTALL)
    assert body is not None
    members = re.findall(r"(\w+) (\w+)(?:\[(\w+)\])?;", body[1])
    return [(field, kind, cpp_constant(length) if length else 0) for kind, field, length in members]


def cpp_constant(name: str) -> int:
    found = re.search(rf"\b{name} = (-?\w+);", HEADER)
    assert found is not None
    return int(found[1], 0)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


@pytest.mark.parametrize(
    ("cpp", "python"),
    [
        ("kMagic", protocol.MAGIC),
        ("kVersion", protocol.VERSION),
        ("kMaxBodyBytes", protocol.MAX_BODY_BYTES),
        ("kAlignment", protocol.ALIGNMENT),
        ("kMaxDims", protocol.MAX_DIMS),
        ("kInfinite", protocol.INFINITE),
        ("kUnknown", protocol.UNKNOWN),
        ("kMerge", protocol.MERGE),
        ("kResume", protocol.RESUME),
        ("kRoles", len(protocol.Role)),
    ],
)
def test_constants_are_equal(cpp: str, python: int) -> None:
    assert cpp_constant(cpp) == python


@pytest.mark.parametrize(
    ("cpp", "python"),
    [
        ("MessageType", {item.name: int(item) for item in protocol.MessageType}),
        ("Role", {item.name: int(item) for item in protocol.Role}),
        ("DType", {name.upper(): code for name, code in protocol.DTYPE_CODES.items()}),
    ],
)
def test_enumerations_are_equal(cpp: str, python: dict[str, int]) -> None:
    assert cpp_enum(cpp) == python


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("Header", protocol.HEADER),
        ("StartBody", protocol.START),
        ("StartedBody", protocol.STARTED),
        ("BatchHeader", protocol.BATCH),
        ("ErrorBody", protocol.ERROR),
    ],
)
def test_message_structs_have_the_layout_of_the_python_formats(name: str, python: struct.Struct) -> None:
    assert "<" + "".join(C_FORMATS[kind] for _, kind, _ in cpp_struct(name)) == python.format


def test_tensor_entries_have_the_layout_of_the_numpy_record() -> None:
    offset = 0
    found = {}
    for field, kind, length in cpp_struct("TensorEntry"):
        found[field] = (offset, kind, length)
        offset += struct.calcsize(C_FORMATS[kind]) * (length or 1)
    assert offset == protocol.ENTRY_BYTES == protocol.ENTRY.itemsize
    assert found.pop("reserved") == (88, "uint64_t", 0)
    assert protocol.ENTRY.fields is not None
    python = {}
    for name, (dtype, at, *_) in protocol.ENTRY.fields.items():
        kind = {"u": "uint", "i": "int"}[dtype.base.kind] + f"{dtype.base.itemsize * 8}_t"
        python[name] = (at, kind, dtype.shape[0] if dtype.shape else 0)
    assert found == python


@pytest.mark.parametrize(("name", "code"), protocol.DTYPE_CODES.items())
def test_dtypes_have_the_item_size_of_numpy(name: str, code: int) -> None:
    bits = re.search(r"\d+", name)
    cases = re.search(r"ItemBytes.*?\n\}", HEADER, re.DOTALL)
    assert cases is not None
    groups = re.findall(r"((?:\s*case DType::k\w+:)+)\s*return (\d+);", cases[0])
    sizes = {item: int(size) for labels, size in groups for item in re.findall(r"k(\w+):", labels)}
    assert sizes[name.capitalize()] == (int(bits[0]) // 8 if bits else 1)
