"""Parses the Thrift compact protocol, in which Parquet writes footers and page headers.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

_STOP, _BOOLS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = 0, (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_TRUE = 1
_MOST_NESTED = 32
_MIN_NUMBER, _MAX_NUMBER = -(1 << 15), (1 << 15) - 1

PLACE = 0
"""The key under which a wanted struct has the range of its bytes. Parquet numbers its fields from 1."""
Wanted = Mapping[int, Any]
"""The fields whose own fields are parsed, by number: a `Wanted` for a struct, ``[Wanted]`` for a list of structs."""


def parse_struct(data: bytes | memoryview, position: int, wanted: Wanted, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Returns the fields of a struct by number, and where it ends.

    Flags and integers are returned as they are, wanted structs as dicts, byte strings and lists as a range of their
    length, which is no integer. For all other values, ``None`` shows that they are there.

    Raises:
        ValueError, IndexError: the bytes are not a struct in the compact protocol, or a wanted field has another type.
    """
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[position]
        position += 1
        kind = head & 15
        if kind == _STOP:
            return fields, position
        if head > 15:
            number += head >> 4
        else:
            value, position = unsigned(data, position)
            number = (value >> 1) ^ -(value & 1)
        if not _MIN_NUMBER <= number <= _MAX_NUMBER:
            raise ValueError(f"a field with the number {number}, which is not an int16")
        if number in wanted:
            fields[number], position = _parse_nested(data, position, kind, wanted[number], depth)
        elif kind in _INTEGERS:
            value = data[position]
            position += 1
            if value > 127:
                value, position = unsigned(data, position - 1)
            fields[number] = (value >> 1) ^ -(value & 1)
        else:
            fields[number], position = _skip(data, position, kind, depth)


def _parse_nested(
    data: bytes | memoryview, position: int, kind: int, wanted: Wanted | list[Wanted], depth: int
) -> tuple[dict[int, Any] | list[dict[int, Any]], int]:
    if not isinstance(wanted, list):
        if kind != _STRUCT:
            raise ValueError(f"a value of type {kind} where a struct should be")
        fields, end = parse_struct(data, position, wanted, depth + 1)
        fields[PLACE] = range(position, end)
        return fields, end
    if kind not in _LISTS:
        raise ValueError(f"a value of type {kind} where a list should be")
    kind, size, position = _list_head(data, position)
    if size and kind != _STRUCT:  # an empty list may have any type, even none
        raise ValueError("a list of values that are not structs")
    items = []
    for _ in range(size):
        value, position = parse_struct(data, position, wanted[0], depth + 1)
        items.append(value)
    return items, position


def _skip(data: bytes | memoryview, position: int, kind: int, depth: int) -> tuple[bool | range | None, int]:
    """Returns what `parse_struct` says of a value that is not wanted, and where the value ends."""
    if depth > _MOST_NESTED:
        raise ValueError("structs nested too deeply")
    if kind in _BOOLS:
        return kind == _TRUE, position
    if kind in _INTEGERS:
        return None, unsigned(data, position)[1]
    if kind == _BYTE:
        return None, position + 1
    if kind == _DOUBLE:
        return None, position + 8
    if kind == _BINARY:
        size, position = unsigned(data, position)
        return range(size), position + size
    if kind == _STRUCT:
        return None, parse_struct(data, position, {}, depth + 1)[1]
    if kind not in _LISTS:
        raise ValueError(f"a value of type {kind}, which the compact protocol does not have")
    inner, size, position = _list_head(data, position)
    for _ in range(size):
        position = position + 1 if inner in _BOOLS else _skip(data, position, inner, depth + 1)[1]
    return range(size), position


def _list_head(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    head = data[position]
    size, position = (head >> 4, position + 1) if head < 240 else unsigned(data, position + 1)
    if size > len(data):
        raise ValueError(f"a list of {size} values in {len(data)} bytes")
    return head & 15, size, position


def unsigned(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Parses an unsigned varint. Returns the number and where it ends.

    Raises:
        ValueError, IndexError: the bytes are not a varint of at most 64 bits.
    """
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def field_places(data: bytes, position: int) -> dict[int, tuple[int, int]]:
    """Returns where the value of each field of a struct begins and ends, by the field's number.

    Raises:
        ValueError, IndexError: as `parse_struct`.
    """
    places: dict[int, tuple[int, int]] = {}
    number = 0
    while data[position] & 15 != _STOP:
        head, begin = data[position], position + 1
        if head > 15:
            number += head >> 4
        else:
            value, begin = unsigned(data, begin)
            number = (value >> 1) ^ -(value & 1)
        position = _skip(data, begin, head & 15, 0)[1]
        places[number] = begin, position
    return places


def struct_places(data: bytes, position: int) -> list[tuple[int, int]]:
    """Returns where each struct of a list begins and ends.

    Raises:
        ValueError, IndexError: as `parse_struct`.
    """
    _, count, position = _list_head(data, position)
    ends = [position]
    for _ in range(count):
        ends.append(_skip(data, ends[-1], _STRUCT, 0)[1])
    return [*pairwise(ends)]


def struct_list(data: bytes, position: int) -> tuple[int, int]:
    """Returns the length of a list of structs, and where the first one begins. Raises as `parse_struct`."""
    return _list_head(data, position)[1:]


def number_in(data: bytes, position: int) -> int:
    """Returns the integer at a place. Raises as `unsigned`."""
    value, _ = unsigned(data, position)
    return (value >> 1) ^ -(value & 1)


def text_in(data: bytes, position: int) -> bytes:
    """Returns the byte string at a place. Raises as `unsigned`."""
    size, begin = unsigned(data, position)
    return data[begin : begin + size]
