"""`read_by_core`: reads columns with the compiled core, in a third of Arrow's time.

It takes an open file and returns the columns that it could read; Arrow reads the others. It reads numbers, text, bytes,
and lists of numbers without nulls that are stored uncompressed or with Snappy, as plain values or as codes of a
dictionary. A column whose bytes are not as expected is left to Arrow, too, which then says what is wrong.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..memory.arena import ALIGNMENT, BLOCK_REGIONS, SCRATCH
from ..memory.arrow_views import is_number
from ..native.library import is_compiled
from ..native.parquet import CHUNK, ENTRY_BYTES, SLACK, decode_chunks
from ..process.forks import ForkLock
from .nested import has_extensions

_STORED_BYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_OFFSET_BYTES = {pa.string().id: 4, pa.binary().id: 4, pa.large_string().id: 8, pa.large_binary().id: 8}
_ENCODINGS = {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BIT_PACKED"}
"""Encodings that chunks may name. Many writers name the last one for levels that flat columns do not have."""
_COMPRESSED = {"UNCOMPRESSED": 0, "SNAPPY": 1}
_PREFIX = 4  # bytes that each stored string has for its length
_SHORT_TEXT = 8  # bytes of a string in a dictionary, on average; more are allocated if they are needed
_READ_BYTES = 1 << 20  # chunks that follow each other are read together, as long as they stay in the processor's cache
_MOST_CHUNK_BYTES = 16 << 20
_MOST_PAGE_BYTES = 4 << 20
_MOST_RATIO = 64  # of decoded to stored bytes; nothing is allocated because a footer claims more
_LEAST_BYTES = 1 << 20  # which are always allocated
_MOST_KEPT = 1 << 16  # columns of row groups
_BYTES = np.dtype(np.uint8)
_VALUE_BYTES, _OFFSETS = (CHUNK.names.index(name) for name in ("value_bytes", "offset_bytes"))  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that may be read.

    Attributes:
        begin, end: where its chunk lies in the file.
        chunk: a value of dtype `CHUNK`, without addresses.
        page_bytes: the size of its largest page, at most.
        dictionary_bytes: what its dictionary takes in memory, at most.
        most_bytes: what its values may take in memory.
    """

    name: str
    type: pa.DataType
    begin: int
    end: int
    chunk: tuple[int, ...]
    page_bytes: int
    dictionary_bytes: int
    most_bytes: int

    def array(
        self,
        rows: int,
        block: np.ndarray,
        begins: Sequence[int],
        found: int,
        nulls: int,
        longer: np.ndarray | None = None,
    ) -> pa.Array:
        """Returns the column.

        Args:
            block, begins: its memory, and where values, offsets and validity begin there.
            found: how many numbers, or bytes of strings, there are.
            longer: memory for the values, if that in ``block`` was too small.
        """
        begin, offsets, validity = begins
        size = found * self.value_bytes
        values = pa.py_buffer(block[begin : begin + size] if longer is None else longer)
        valid = pa.py_buffer(block[validity : validity + -(-rows // 8)]) if nulls else None
        if not self.offset_bytes:
            return pa.Array.from_buffers(self.type, rows, [valid, values], nulls)
        ends = pa.py_buffer(block[offsets : offsets + self.offset_bytes * (rows + 1)])
        if not self.type.num_fields:
            return pa.Array.from_buffers(self.type, rows, [valid, ends, values], nulls)
        inside = pa.Array.from_buffers(self.type.value_type, found, [None, values], 0)
        return pa.Array.from_buffers(self.type, rows, [None, ends], 0, 0, [inside])

    @property
    def value_bytes(self) -> int:
        """The size of a number; 1 for strings."""
        return self.chunk[_VALUE_BYTES]

    @property
    def offset_bytes(self) -> int:
        """The size of an offset of a string or list; 0 for numbers."""
        return self.chunk[_OFFSETS]


_known: OrderedDict[tuple[str, tuple[str, ...]], Sequence[_Column]] = OrderedDict()
_kept = 0
_lock = ForkLock()

Leaves = Mapping[str, tuple[int, pa.Field]]


class _Stored(TypedDict, total=False):
    """Where chunks are, if not in memory; see `decode_chunks`."""

    descriptor: int
    chunk: np.ndarray


def core_compressions() -> frozenset[str]:
    """Returns the compressions of column chunks that the core can read; empty if it is not compiled."""
    return frozenset(_COMPRESSED) if is_compiled() else frozenset()


def read_by_core(
    source: pa.NativeFile,
    footer: pq.FileMetaData,
    group: int,
    names: Sequence[str],
    leaves: Leaves,
    *,
    path: str | None,
    key: str,
    checked: bool,
) -> dict[str, pa.Array]:
    """Returns those of some columns of a row group that can be read without Arrow, by name.

    The values are in memory that is reused when the last array of a row group is gone.

    Args:
        leaves: the `leaves_of` the file.
        path: where the file is on a local disk; ``None`` if it is not.
        key: names the version of the file, and the row group.
        checked: whether pages must match their checksums, if they have some.
    """
    columns = _columns(footer, group, tuple(names), leaves, key) if is_compiled() else ()
    if not columns:
        return {}
    rows = footer.row_group(group).num_rows
    chunks = np.array([column.chunk for column in columns], CHUNK)
    blocks, places = _memory(chunks, rows)
    longer: dict[int, np.ndarray] = {}
    memory = {
        "page": SCRATCH.array("page", (max(column.page_bytes for column in columns) + SLACK,), _BYTES),
        "dictionary": SCRATCH.array("dictionary", (max(column.dictionary_bytes for column in columns),), _BYTES),
    }
    for first, last, stored in _stored(source, path, columns, chunks):
        some = chunks[first:last]
        decode_chunks(some, rows, checked=checked, **memory, **stored)
        for number in np.flatnonzero(some["found"] > some["capacity"]).tolist():  # long text in a dictionary
            chunk, size = some[number : number + 1], int(some["found"][number])
            if size > columns[first + number].most_bytes:
                chunk["found"] = -1
                continue
            longer[first + number] = np.empty(size, np.uint8)
            chunk["target"], chunk["capacity"] = longer[first + number].ctypes.data, size
            decode_chunks(chunk, rows, checked=checked, **memory, **stored)
    made = zip(columns, blocks, places.tolist(), chunks["found"].tolist(), chunks["nulls"].tolist(), strict=True)
    return {
        column.name: column.array(rows, block, begins, found, nulls, longer.get(number))
        for number, (column, block, begins, found, nulls) in enumerate(made)
        if found >= 0
    }


def _memory(chunks: np.ndarray, rows: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Points chunks to memory for what is decoded.

    Numbers have memory of their own, because a row group's numbers are kept for a shorter time than the rest.

    Returns:
        The memory of each chunk (uint8), and where its values, offsets and validity begin there, int64 ``[chunks, 3]``.
    """
    may_be_null = (chunks["definition"] > 0) & (chunks["empty"] < 0)
    sizes = np.empty((len(chunks), 3), np.int64)
    sizes[:, 0] = chunks["capacity"] * chunks["value_bytes"]
    sizes[:, 1] = chunks["offset_bytes"] * (rows + 1)
    sizes[:, 2] = may_be_null * (-(-rows // 8))
    room = -(-sizes // ALIGNMENT) * ALIGNMENT
    kinds, places = sizes[:, 1] > 0, np.empty_like(sizes)
    blocks: dict[bool, np.ndarray] = {}
    for kind in set(kinds.tolist()):
        mine = kinds == kind
        ends = np.cumsum(room[mine].reshape(-1))
        places[mine] = ends.reshape(-1, 3) - room[mine]
        region = BLOCK_REGIONS.acquire(int(ends[-1]))
        try:
            blocks[kind] = region.allocate(_BYTES, (int(ends[-1]),))
        finally:
            region.end()
        addresses = blocks[kind].ctypes.data + places[mine]
        for number, name in enumerate(("target", "offsets", "validity")):
            chunks[name][mine] = addresses[:, number]
    return [blocks[kind] for kind in kinds.tolist()], places


def _stored(
    source: pa.NativeFile, path: str | None, columns: Sequence[_Column], chunks: np.ndarray
) -> Iterator[tuple[int, int, _Stored]]:
    """Yields which chunks can be decoded at once: the numbers of the first, and of the one after the last.

    The core reads those of a local file itself, so that it waits for the interpreter lock only once. Others are in
    memory that is used again for the next ones.
    """
    chunks["found"] = -1
    if path is not None:
        size = int(chunks["size"].max())
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunk = SCRATCH.array("chunk", (size + SLACK,), _BYTES)
            yield 0, len(columns), {"descriptor": descriptor, "chunk": chunk}
        finally:
            os.close(descriptor)
        return
    for first, last in _read_together(columns):
        begin, end = columns[first].begin, columns[last - 1].end
        data = SCRATCH.array("chunk", (end - begin + SLACK,), _BYTES)
        source.seek(begin)
        if source.readinto(memoryview(data)[: end - begin]) != end - begin:  # type: ignore[arg-type]  # a buffer
            continue
        chunks["data"][first:last] = data.ctypes.data + chunks["begin"][first:last] - begin
        yield first, last, {}


def _read_together(columns: Sequence[_Column]) -> list[tuple[int, int]]:
    """Returns which chunks to read together: the numbers of the first, and of the one after the last."""
    runs: list[tuple[int, int]] = []
    first = 0
    for number, column in enumerate(columns):
        follows = number > first and column.begin == columns[number - 1].end
        if number > first and (not follows or column.end - columns[first].begin > _READ_BYTES):
            runs.append((first, number))
            first = number
    return [*runs, (first, len(columns))]


def _columns(
    footer: pq.FileMetaData, group: int, names: tuple[str, ...], leaves: Leaves, key: str
) -> Sequence[_Column]:
    """Returns the columns that may be read, in the order of their chunks."""
    global _kept
    with _lock:
        if (key, names) in _known:
            _known.move_to_end((key, names))
            return _known[key, names]
    found = (_column(footer, group, *leaves[name]) for name in names if name in leaves)
    made = tuple(sorted((column for column in found if column is not None), key=lambda column: column.begin))
    with _lock:
        if (key, names) not in _known:
            _known[key, names] = made
            _kept += 1 + len(made)
        while _kept > _MOST_KEPT and len(_known) > 1:
            _kept -= 1 + len(_known.popitem(last=False)[1])
    return made


def leaves_of(footer: pq.FileMetaData, arrow: pa.Schema) -> Leaves:
    """Returns the columns of a file that consist of a single leaf: its number, and the field, by name.

    Names with a dot, or that occur twice, are left out, and extension types, which depend on what this process has
    registered so far.

    Args:
        arrow: the Arrow schema of the file.
    """
    counts = [_leaf_count(kind) for kind in arrow.types]
    if sum(counts) != footer.num_columns:
        return {}
    times = Counter(arrow.names)
    columns = zip(arrow, counts, accumulate(counts), strict=True)
    plain = ((field, end - 1) for field, count, end in columns if count == 1 and times[field.name] == 1)
    return {field.name: (leaf, field) for field, leaf in plain if "." not in field.name and not has_extensions(field)}


def _leaf_count(kind: pa.DataType) -> int:
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if not kind.num_fields:
        return 1
    return sum(_leaf_count(kind.field(number).type) for number in range(kind.num_fields))


def _column(footer: pq.FileMetaData, group: int, leaf: int, field: pa.Field) -> _Column | None:
    """Returns how to read a column, or ``None`` if only Arrow can."""
    levels, chunk = footer.schema.column(leaf), footer.row_group(group).column(leaf)
    kind, rows = field.type, footer.row_group(group).num_rows
    if not {*chunk.encodings} <= _ENCODINGS or chunk.compression not in _COMPRESSED:
        return None
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    definition = int(field.nullable) + (1 + int(kind.value_field.nullable) if lists else 0)
    if levels.max_repetition_level != int(lists) or levels.max_definition_level != definition:
        return None
    size, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        begin = min(begin, chunk.dictionary_page_offset)
    empty, offset_bytes, count = -1, 0, rows
    if lists:
        empty, offset_bytes = int(field.nullable), 4 if pa.types.is_list(kind) else 8
        kind, count = kind.value_type, chunk.num_values
    if is_number(kind):
        stored, width = _STORED_BYTES.get(chunk.physical_type, 0), kind.bit_width // 8
        floats = chunk.physical_type in ("FLOAT", "DOUBLE")
        narrowed = chunk.physical_type == "INT32" and width < stored
        if pa.types.is_floating(kind) != floats or not (width == stored or narrowed):
            return None
        needed = count * stored
    elif kind.id in _OFFSET_BYTES and not lists and chunk.physical_type == "BYTE_ARRAY":
        stored, width, offset_bytes = 0, 1, _OFFSET_BYTES[kind.id]
        count = needed = unpacked + (_SHORT_TEXT * rows if chunk.has_dictionary_page else 0)
    else:
        return None
    most = max(_MOST_RATIO * size, _LEAST_BYTES)
    compressed = _COMPRESSED[chunk.compression]
    if min(begin, size - 1, count, unpacked) < 0 or max(needed, unpacked, offset_bytes * rows) > most:
        return None
    if size > _MOST_CHUNK_BYTES or not (lists or chunk.num_values == rows):
        return None
    page_bytes = min(unpacked, _MOST_PAGE_BYTES)
    return _Column(
        name=field.name,
        type=field.type,
        begin=begin,
        end=begin + size,
        chunk=(0, begin, size, stored, width, compressed, definition, empty, 0, count, 0, offset_bytes, 0, 0, 0),
        page_bytes=page_bytes,
        dictionary_bytes=page_bytes if stored else page_bytes * (1 + ENTRY_BYTES // _PREFIX),
        most_bytes=most,
    )
