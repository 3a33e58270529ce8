"""INT96 timestamps, exactly, whoever wrote them.

A value is 12 bytes: the nanoseconds of the day, and the Julian day. Arrow makes one number of them: nanoseconds, which
wrap around outside 1677 to 2262, or microseconds, which drop the last digits. So Arrow gets a footer in which these
columns are byte strings (`bytes_footer`), and `decode_int96` converts the bytes. A column has microseconds, which cover
290,000 years. If a value has more digits, nanoseconds are returned, and the cast to the column's type refuses them.
Source of the layout: the Parquet readers of Impala and Spark; Spark's test file int96_from_spark.parquet in
https://github.com/apache/parquet-testing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DecodeError
from ..base.memory.arrow_views import as_arrow, as_numpy
from ..base.memory.lru_cache import LRUCache
from .nested import member_arrays, members, stored_schema, with_member_arrays, with_members
from .thrift import field_places, struct_places

_BYTES = pa.binary(12)
_TIMESTAMP = pa.timestamp("ns").id
_VALUE = np.dtype([("nanoseconds", "<i8"), ("day", "<i4")])
_EPOCH_DAY = 2_440_588  # the Julian day of 1970-01-01
_DAY_US = 86_400_000_000
_MOST_DAYS = 106_600_000  # before or after 1970: whatever the time of day says, int64 holds the microseconds
_WRAPPED_DAYS = -(2**63 // _DAY_US) - _EPOCH_DAY
"""The least day. Those below `-_MOST_DAYS` mean years after 287,000: Spark adds the epoch's Julian day to microseconds,
and their sum wraps around.
"""
_MOST_US = 2**63 // 1000 - 1  # before or after 1970: int64 holds the nanoseconds
_SCHEMA, _TYPE, _REPETITION, _NAME = 2, 1, 3, 4  # the numbers of fields in parquet.thrift
_INT96 = b"\x06"
_FIXED_12 = b"\x15\x0e\x15\x18"  # the type FIXED_LEN_BYTE_ARRAY, and the length 12
_NEXT_NUMBER, _NEXT_TEXT, _STOP = b"\x15", b"\x18", b"\0"
_MOST_KEPT_BYTES = 16 << 20
_GROWTH = 10  # from a footer as stored to a parsed one

_kept: LRUCache[str, tuple[pq.FileMetaData, pq.FileMetaData]] = LRUCache(
    _MOST_KEPT_BYTES, lambda both: _GROWTH * int(both[1].serialized_size)
)


class _FinerError(Exception):
    """A value has more digits than microseconds."""


class _OutsideError(Exception):
    """int64 cannot count the value at ``place`` in a unit."""

    def __init__(self, place: int, value: np.void, unit: str) -> None:
        super().__init__(place)
        self.place = place
        self.text = f"Julian day {value['day']} and {value['nanoseconds']} ns"
        self.unit = unit


def footer_schema(footer: pq.FileMetaData) -> pa.Schema:
    """The `stored_schema` of a file, with INT96 columns as microseconds."""
    return with_int96(stored_schema(footer.schema.to_arrow_schema()), footer)


def with_int96(arrow: pa.Schema, footer: pq.FileMetaData) -> pa.Schema:
    """Returns a `stored_schema` with the INT96 columns as microseconds; the same object if there are none."""
    if not any(map(_has_nanoseconds, arrow.types)):
        return arrow
    schema = footer.schema
    are_int96 = [schema.column(number).physical_type == "INT96" for number in range(len(schema))]
    if not any(are_int96):
        return arrow
    leaves = iter(are_int96)
    columns = [column.with_type(_in_microseconds(column.type, leaves)) for column in arrow]
    return pa.schema(columns, metadata=arrow.metadata)


def _has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a type has timestamps in nanoseconds, as which Arrow describes INT96."""
    if kind.num_fields:
        return any(_has_nanoseconds(kind.field(number).type) for number in range(kind.num_fields))
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nanoseconds(kind.storage_type)
    return bool(kind.id == _TIMESTAMP and kind.unit == "ns")


def _in_microseconds(kind: pa.DataType, leaves: Iterator[bool]) -> pa.DataType:
    """Returns a type with its INT96 leaves in microseconds. Takes as many ``leaves`` as the type has."""
    if isinstance(kind, pa.BaseExtensionType):
        _in_microseconds(kind.storage_type, leaves)
        return kind
    if not kind.num_fields:
        return pa.timestamp("us", kind.tz) if next(leaves, False) else kind
    return with_members(kind, [_in_microseconds(member.type, leaves) for member in members(kind)])


def bytes_footer(footer: pq.FileMetaData, key: str) -> pq.FileMetaData:
    """Returns a footer with its INT96 columns as byte strings of 12. It is kept under ``key``, the row group's."""
    known = _kept.get(key)
    if known is None or known[0] is not footer:
        known = footer, _with_bytes(footer)
        _kept.replace(key, known)
    return known[1]


def _with_bytes(footer: pq.FileMetaData) -> pq.FileMetaData:
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    whole = sink.getvalue().to_pybytes()
    stored = whole[len(whole) - 8 - int.from_bytes(whole[-8:-4], "little") : -8]
    parts, end = list[bytes](), 0
    for begin, stop in struct_places(stored, field_places(stored, 0)[_SCHEMA][0]):
        values = {number: stored[slice(*place)] for number, place in field_places(stored, begin).items()}
        if values.get(_TYPE) == _INT96:  # without annotations, which a byte string might not have
            repetition, name = _NEXT_NUMBER + values[_REPETITION], _NEXT_TEXT + values[_NAME]
            parts += [stored[end:begin], _FIXED_12, repetition, name, _STOP]
            end = stop
    made = b"".join([*parts, stored[end:]])
    return pq.read_metadata(pa.BufferReader(b"PAR1" + made + len(made).to_bytes(4, "little") + b"PAR1"))


def decode_int96(table: pa.Table, arrow: pa.Schema, place: str, first_row: int = 0) -> pa.Table:
    """Returns a table that was read with a `bytes_footer`, with timestamps in place of the bytes.

    Args:
        arrow: the `footer_schema` of the file. The table may have only some of its columns and members.
        place: describes the row group, for errors.
        first_row: the number of the table's first row in it.

    Raises:
        DecodeError: int64 cannot count a value exactly.
    """
    for number, field in enumerate(table.schema):
        kind = arrow.types[arrow.get_all_field_indices(field.name)[0]]
        if not _has_bytes(field.type, kind):
            continue
        chunks = table.column(number).chunks
        try:
            try:
                decoded = _decoded_chunks(chunks, kind, "us")
            except _FinerError:
                decoded = _decoded_chunks(chunks, kind, "ns")
        except _OutsideError as error:
            row = "" if field.type.num_fields else f", row {first_row + error.place}"
            raise DecodeError(
                f"{place}{row}: field '{field.name}': expected INT96 timestamps that int64 holds in {error.unit}, got "
                f"{error.text}. Write the file again with such values as null, or deselect the field."
            ) from None
        column = pa.chunked_array(decoded, decoded[0].type if decoded else kind)
        table = table.set_column(number, field.with_type(column.type), column)
    return table


def _has_bytes(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column has byte strings where its type in the file has timestamps."""
    if not kind.num_fields:
        return bool(kind == _BYTES and pa.types.is_timestamp(wanted))
    return any(_has_bytes(part.type, other) for part, other in zip(members(kind), _like(kind, wanted), strict=True))


def _like(kind: pa.DataType, wanted: pa.DataType) -> list[pa.DataType]:
    """Returns the types of the `members` of ``wanted``. Only some members of a struct may be in ``kind``."""
    if pa.types.is_struct(kind):
        return [wanted.field(member.name).type for member in kind]
    return [member.type for member in members(wanted)]


def _decoded_chunks(chunks: Sequence[pa.Array], wanted: pa.DataType, unit: str) -> list[pa.Array]:
    first, made = 0, list[pa.Array]()
    for chunk in chunks:
        try:
            made.append(_decoded(chunk, wanted, unit))
        except _OutsideError as error:
            error.place += first
            raise
        first += len(chunk)
    return made


def _decoded(array: pa.Array, wanted: pa.DataType, unit: str) -> pa.Array:
    if not _has_bytes(array.type, wanted):
        return array
    if not array.type.num_fields:
        return _timestamps(array, unit).view(pa.timestamp(unit, wanted.tz))
    parts = zip(member_arrays(array), _like(array.type, wanted), strict=True)
    return with_member_arrays(array, [_decoded(part, kind, unit) for part, kind in parts])


def _timestamps(array: pa.Array, unit: str) -> pa.Array:
    """Returns the values as int64 counts of a unit since 1970."""
    if not len(array):
        return pa.array([], pa.int64())
    values = np.frombuffer(array.buffers()[1], _VALUE, len(array), array.offset * _VALUE.itemsize)
    nanoseconds, days = values["nanoseconds"], values["day"].astype(np.int64) - _EPOCH_DAY
    valid = as_numpy(array.is_valid()) if array.null_count else None
    if valid is not None:  # what stands beneath a null is not a value
        nanoseconds, days = np.where(valid, nanoseconds, 0), np.where(valid, days, 0)
    fits = (days >= -_MOST_DAYS) & (days <= _MOST_DAYS)
    if not fits.all():
        in_day = (nanoseconds > -1000 * _DAY_US) & (nanoseconds < 1000 * _DAY_US)
        fits |= (days >= _WRAPPED_DAYS) & (days < 0) & in_day
        _require(fits, values, "microseconds")
    counts = nanoseconds // 1000
    rest = nanoseconds - 1000 * counts
    counts += days * _DAY_US
    if unit == "ns":
        _require((counts >= -_MOST_US) & (counts <= _MOST_US), values, "nanoseconds, because some have such digits")
        counts = 1000 * counts + rest
    elif rest.any():
        raise _FinerError
    return as_arrow(counts, valid)


def _require(fits: np.ndarray, values: np.ndarray, unit: str) -> None:
    if not fits.all():
        place = int(np.argmin(fits))
        raise _OutsideError(place, values[place], unit)
