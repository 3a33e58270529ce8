"""The Thrift compact protocol: values of a wrong type are not taken for those that a header should have."""

from __future__ import annotations

import pytest

from parquetry.common.parquet.page_header import PageHeader, page_headers
from parquetry.common.parquet.thrift import field_places, parse_struct, struct_places

HEAD = bytes.fromhex("1500 1528")  # a data page of 20 bytes
REST = bytes.fromhex("2c 1508 1500 1506 1506 00 00")  # four values, plain


def page_of(header: bytes) -> PageHeader:
    chunk = memoryview(header + bytes(20))
    return next(page_headers(lambda begin, end: chunk[begin:end], len(chunk)))


def test_a_header_says_where_its_page_is() -> None:
    page = page_of(HEAD + bytes.fromhex("1528") + REST)
    assert (page.end - page.begin, page.values, page.plain) == (20, 4, True)


@pytest.mark.parametrize("size", ["1814" + "00" * 20, "19e3" + "00" * 14, "13 14"], ids=["text", "list", "byte"])
def test_what_is_no_integer_is_no_size(size: str) -> None:
    with pytest.raises(ValueError, match="an integer in field 3"):
        page_of(HEAD + bytes.fromhex(size) + REST)


@pytest.mark.parametrize("kind", ["58", "59", "55", "51"], ids=["text", "list", "integer", "flag"])
def test_what_is_no_struct_is_no_page(kind: str) -> None:
    for head, rest in ("1500", "2c"), ("1506", "5c"):
        header = bytes.fromhex(f"{head} 1528 1528 {rest} 1508 1500 1500 1506 1500 1500 00 00")
        assert page_of(header).is_data
        with pytest.raises(ValueError, match="a struct should be"):
            page_of(header.replace(bytes.fromhex(rest), bytes([int(rest[0] + kind[1], 16)]), 1))


def test_a_field_number_fits_into_16_bits() -> None:
    assert parse_struct(bytes.fromhex("05 feff03 02 00"), 0, {})[0] == {32767: 1}
    with pytest.raises(ValueError, match="not an int16"):
        parse_struct(bytes.fromhex("05 feff03 02 15 02 00"), 0, {})


def test_a_struct_is_no_list() -> None:
    with pytest.raises(ValueError, match="a list should be"):
        parse_struct(bytes.fromhex("4c 00 00"), 0, {4: [{}]})


def test_an_empty_text_is_no_encoding() -> None:
    with pytest.raises(ValueError, match="an integer in field 2"):
        page_of(HEAD + bytes.fromhex("1528") + REST.replace(b"\x15\x00", b"\x18\x00"))


def test_lengths_are_known() -> None:
    fields, end = parse_struct(bytes.fromhex("1803 616263 1922 0102 11 00"), 0, {})
    assert [len(fields[1]), len(fields[2]), fields[3], end] == [3, 2, True, 11]


def test_the_places_of_fields_and_structs_are_known() -> None:
    data = bytes.fromhex("1502 2c150400 05 c801 06 00")  # fields 1, 3 (a struct) and 100
    assert {number: data[slice(*place)].hex() for number, place in field_places(data, 0).items()} == {
        1: "02",
        3: "150400",
        100: "06",
    }
    structs = bytes.fromhex("3c 00 150200 1803616263 00")
    assert [structs[begin:end].hex() for begin, end in struct_places(structs, 0)] == ["00", "150200", "180361626300"]
