"""`FooterHead`: what a footer says about its file as a whole: the schema, and who wrote it, but no row groups.

Files with the same schema share it. Together with row groups as they are stored, its `FooterPart` makes a footer for
pyarrow that describes only some of the columns: pyarrow parses all columns of a footer at once, which takes a
microsecond and a kilobyte for each column chunk, and as much again for the schema.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.memory.lru_cache import LRUCache
from ..base.native.kernels import footer_fields
from ..base.native.parquet import FOOTER_FIELDS
from ..base.process.forks import cached_property
from .file_columns import FileColumns
from .thrift import field_places, number_in, struct_list, struct_places, text_in

_VERSION, _SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES, _WRITER, _ORDERS = range(1, 8)  # of FileMetaData in parquet.thrift
_TYPE, _NAME, _CHILDREN = 1, 4, 5  # of SchemaElement
_KEY, _VALUE = 1, 2  # of KeyValue
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_KINDS = {_VERSION: _I32, _SCHEMA: _LIST, _KEY_VALUES: _LIST, _WRITER: _BINARY, _ORDERS: _LIST}
_STOP = b"\0"
_ARROW_KEY = b"ARROW:schema"
_READ_KEYS = (_ARROW_KEY, b"parquetry.", b"dataset-toolkit.", b"org.apache.spark.")
"""What the metadata begins with that reading needs: schemas, and who wrote dates in which calendar."""
_MOST_VALUE_BYTES = 1 << 10  # of what else is kept of a file's own metadata when columns are left out
_MOST_HEADS, _MOST_PARTS = 16, 16


class HeadFields(NamedTuple):
    """The values of some fields of a footer as stored; empty for a field that it does not have."""

    version: bytes
    schema: bytes
    key_values: bytes
    writer: bytes
    orders: bytes

    @classmethod
    def of(cls, footer: bytes, places: Sequence[range]) -> HeadFields:
        """Takes the fields from a footer, given the places of all of its fields."""
        return cls(*(footer[places[number].start : places[number].stop] for number in _KINDS))


class _Top(NamedTuple):
    """A column of the top level: its place in the schema, and the numbers of its leaf columns."""

    name: str
    place: slice
    leaves: range


class FooterHead:
    """What the footers of some files have in common. Thread-safe.

    Raises:
        pa.ArrowException, OSError: pyarrow cannot read the schema.

    Attributes:
        empty: a footer without row groups.
    """

    def __init__(self, fields: HeadFields) -> None:
        self._fields = fields
        self.num_bytes = sum(map(len, fields))
        self._parts: LRUCache[frozenset[str] | None, FooterPart] = LRUCache(_MOST_PARTS)
        stored = _stored(_before(fields), b"", 0, 0, _after(fields))
        self.empty = pq.read_metadata(pa.BufferReader(_in_file(stored)))

    def part(self, names: frozenset[str] | None) -> FooterPart:
        """Returns the part about some columns, given by the dotted names of fields; ``None`` for all of them.

        A name also selects every column of the top level that begins it, so that no name becomes ambiguous or ceases
        to be so. If no column has one of the names, one is selected all the same.
        """
        return self._parts.made(names, lambda: self._part(names))

    @cached_property
    def bare(self) -> bytes:
        """A footer without row groups, and with only the metadata that reading needs.

        Metadata of other programs often differs from file to file, such as the last row number of pandas, or the bounds
        of the geometries.
        """
        fields, pairs = self._fields, list[bytes]()
        for begin, end in struct_places(fields.key_values, 0) if fields.key_values else ():
            key, value = _pair(fields.key_values, begin)
            if key == _ARROW_KEY:
                pairs.append(_stored_pair(key, _with_read_keys(value)))
            elif key.startswith(_READ_KEYS):
                pairs.append(fields.key_values[begin:end])
        fields = fields._replace(key_values=list_of_structs(pairs) if fields.key_values else b"")
        return _stored(_before(fields), b"", 0, 0, _after(fields))

    def _part(self, names: frozenset[str] | None) -> FooterPart:
        if names is None or not self._tops:
            return self._whole(names)
        begins = {name[:end] for name in names for end, letter in enumerate(name) if letter == "."}
        begins |= names
        numbers = [number for number, top in enumerate(self._tops) if top.name in begins] or [0]
        if len(numbers) == len(self._tops):
            return self._whole(names)
        after = self._key_values_and_orders(numbers)
        if after is None:
            return self._whole(names)
        tops = [self._tops[number] for number in numbers]
        leaves = bytearray(self.empty.num_columns)
        for top in tops:
            leaves[top.leaves.start : top.leaves.stop] = bytes([1]) * len(top.leaves)
        root = b"\x48" + _text(b"schema") + b"\x15" + _signed(len(tops)) + _STOP  # its name and number of children
        elements = b"".join([self._fields.schema[top.place] for top in tops])
        count = sum(self._elements[number] for number in numbers)
        schema = _list(1 + count) + root + elements
        key_values, orders = after
        fields = self._fields._replace(schema=schema, key_values=key_values, orders=orders)
        return FooterPart(names, bytes(leaves), _before(fields), _after(fields))

    def _whole(self, names: frozenset[str] | None) -> FooterPart:
        return FooterPart(names, bytes([1]) * self.empty.num_columns, _before(self._fields), _after(self._fields))

    def _key_values_and_orders(self, numbers: Sequence[int]) -> tuple[bytes, bytes] | None:
        """Returns both fields for some columns of the top level; ``None`` if they do not fit the schema."""
        fields, chosen, orders = self._fields, list[bytes](), b""
        for begin, _ in struct_places(fields.key_values, 0) if fields.key_values else ():
            key, value = _pair(fields.key_values, begin)
            if key == _ARROW_KEY:
                try:
                    arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
                except (pa.ArrowException, OSError, ValueError):
                    return None
                if len(arrow) != len(self._tops):
                    return None
                some = pa.schema([arrow.field(number) for number in numbers])
                value = base64.b64encode(some.serialize().to_pybytes())
            elif len(value) > _MOST_VALUE_BYTES:
                value = b""
            chosen.append(_stored_pair(key, value))
        if fields.orders:
            places_of_orders = struct_places(fields.orders, 0)
            if len(places_of_orders) != self.empty.num_columns:
                return None
            some_orders = [places_of_orders[leaf] for number in numbers for leaf in self._tops[number].leaves]
            orders = _list(len(some_orders)) + b"".join([fields.orders[slice(*place)] for place in some_orders])
        return list_of_structs(chosen) if fields.key_values else b"", orders

    @cached_property
    def _elements(self) -> list[int]:
        """How many elements of the schema each column of the top level takes."""
        return self._described[1]

    @cached_property
    def _tops(self) -> list[_Top]:
        """The columns of the top level; none if this cannot tell them apart."""
        return self._described[0]

    @cached_property
    def _described(self) -> tuple[list[_Top], list[int]]:
        schema = self._fields.schema
        count, place = struct_list(schema, 0)
        fields, place = _element(schema, place)  # the root
        tops, counts, number, leaf = list[_Top](), list[int](), 1, 0
        while number < count:
            first, begin, end, leaves, name = number, place, number + 1, 0, b""
            while number < end:  # an element, and all below it
                fields, place = _element(schema, place)
                name = name or text_in(schema, fields[_NAME][0])
                if _TYPE in fields:
                    leaves += 1
                elif _CHILDREN in fields:
                    end += number_in(schema, fields[_CHILDREN][0])
                number += 1
            tops.append(_Top(name.decode(), slice(begin, place), range(leaf, leaf + leaves)))
            counts.append(end - first)
            leaf += leaves
        return (tops, counts) if leaf == self.empty.num_columns else ([], [])


class FooterPart:
    """Makes footers that describe some columns. Thread-safe.

    Args:
        before, after: what a footer has before the value of its number of rows, and after its row groups.

    Attributes:
        names: what the columns were chosen by; ``None`` for all columns.
        leaves: a byte for each leaf column of the file; 0 if it is left out.
        empty: a footer without row groups.
    """

    def __init__(self, names: frozenset[str] | None, leaves: bytes, before: bytes, after: bytes) -> None:
        self.names = names
        self.leaves = leaves
        self._before, self._after = before, after
        self._covered = {names}
        self.empty = self.footer(b"", 0, 0)
        self._columns = FileColumns(self.empty)

    def covers(self, names: frozenset[str] | None) -> bool:
        """Whether the columns of the file that are chosen by these names are among those of this part."""
        if names in self._covered:  # without comparing thousands of names each time
            return True
        is_covered = self.names is None or (names is not None and names <= self.names)
        if is_covered:
            self._covered.add(names)
        return is_covered

    def footer(self, groups: bytes, count: int, rows: int) -> pq.FileMetaData:
        """Returns a footer.

        Args:
            groups: its row groups as stored, with only the ``wanted`` columns.
            count, rows: how many row groups these are, and how many rows they have together.

        Raises:
            pa.ArrowException, OSError, ValueError: pyarrow cannot read it.
        """
        return pq.read_metadata(pa.BufferReader(_in_file(self.stored(groups, count, rows))))

    def stored(self, groups: bytes, count: int, rows: int) -> bytes:
        """Returns what `footer` parses."""
        return _stored(self._before, groups, count, rows, self._after)

    @property
    def columns(self) -> FileColumns:
        """The columns of the footers that this makes."""
        if not self._columns.is_current(self.empty):
            self._columns = FileColumns(self.empty)
        return self._columns


_heads: LRUCache[HeadFields, FooterHead] = LRUCache(_MOST_HEADS)


def footer_head(footer: bytes, places: Sequence[range]) -> FooterHead:
    """Returns the head of a footer, given the places of its fields. Raises as `FooterHead`."""
    fields = HeadFields.of(footer, places)
    return _heads.made(fields, lambda: FooterHead(fields))


def read_head(bare: bytes) -> FooterHead:
    """The inverse of `FooterHead.bare`. Raises as `FooterHead`, or as `thrift.parse_struct`."""
    fields = footer_fields(bare)
    return footer_head(bare, fields[0] if fields is not None else fields_slowly(bare))


def fields_slowly(stored: bytes) -> list[range]:
    """Returns the places of the fields of a footer as `footer_fields` does."""
    places = field_places(stored, 0)
    return [range(*places.get(number, (0, 0))) for number in range(FOOTER_FIELDS)]


def _element(schema: bytes, begin: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Returns the places of the fields of an element of the schema, and where it ends."""
    fields = field_places(schema, begin)
    return fields, max((end for _, end in fields.values()), default=begin) + len(_STOP)


def _with_read_keys(value: bytes) -> bytes:
    """Returns a stored Arrow schema with only the metadata that reading needs."""
    try:
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
    except (pa.ArrowException, OSError, ValueError):
        return value
    metadata = {key: text for key, text in (arrow.metadata or {}).items() if key.startswith(_READ_KEYS)}
    return base64.b64encode(arrow.with_metadata(metadata or None).serialize().to_pybytes())


def _pair(stored: bytes, begin: int) -> tuple[bytes, bytes]:
    """Returns a key and its value."""
    places = field_places(stored, begin)
    return text_in(stored, places[_KEY][0]), text_in(stored, places[_VALUE][0]) if _VALUE in places else b""


def _stored_pair(key: bytes, value: bytes) -> bytes:
    return b"\x18" + _text(key) + b"\x18" + _text(value) + _STOP


def _before(fields: HeadFields) -> bytes:
    version = b"\x15" + fields.version if fields.version else b""
    return version + (b"\x19" if version else b"\x29") + fields.schema + b"\x16"


def _after(fields: HeadFields) -> bytes:
    parts, before = list[bytes](), _ROW_GROUPS
    for number, value in ((_KEY_VALUES, fields.key_values), (_WRITER, fields.writer), (_ORDERS, fields.orders)):
        if value:
            parts += [bytes([(number - before) << 4 | _KINDS[number]]), value]
            before = number
    return b"".join([*parts, _STOP])


def _stored(before: bytes, groups: bytes, count: int, rows: int, after: bytes) -> bytes:
    return b"".join([before, _signed(rows), b"\x19", _list(count), groups, after])


def _in_file(stored: bytes) -> bytes:
    return stored + len(stored).to_bytes(4, "little") + b"PAR1"


def list_of_structs(parts: Sequence[bytes]) -> bytes:
    """Returns a list of structs as stored."""
    return _list(len(parts)) + b"".join(parts)


def struct_with_totals(chunks: bytes, size_bytes: int, rows: int) -> bytes:
    """Returns a row group as stored, given its list of column chunks, their size when decompressed, and its rows."""
    return b"".join([b"\x19", chunks, b"\x16", _signed(size_bytes), b"\x16", _signed(rows), _STOP])


def around_chunks(count: int, rows: int) -> tuple[bytes, bytes]:
    """Returns what is stored before and after the column chunks of a row group, which leaves its size open."""
    return b"\x19" + _list(count), struct_with_totals(b"", 0, rows)[1:]


def _list(count: int) -> bytes:
    """The head of a list of structs."""
    return bytes([count << 4 | _STRUCT]) if count < 15 else bytes([15 << 4 | _STRUCT]) + _unsigned(count)


def _text(value: bytes) -> bytes:
    return _unsigned(len(value)) + value


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else -value * 2 - 1)


def _unsigned(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
