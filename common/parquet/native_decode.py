"""Reads columns with the compiled core, in a third of Arrow's time: `read_by_core`, `CoreColumns`.

They take a file and return the columns that they could read; Arrow reads the others. They read numbers, text, bytes,
and lists of numbers without nulls that are stored uncompressed, with Snappy or with Zstandard, as plain values or as
codes of a dictionary. A column whose bytes are not as expected is left to Arrow, too, which then says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa

from ..base.memory.arena import ALIGNMENT, SCRATCH, block_memory
from ..base.memory.arrow_views import as_arrow
from ..base.memory.lru_cache import LRUCache
from ..base.native.kernels import CHUNK_COMPRESSIONS, decode_chunks
from ..base.native.library import address_of, has_zstd
from ..base.native.parquet import CHUNK, CHUNK_FACTS, ENTRY_BYTES, NO_FILE, SLACK, FileStatus
from ..base.process.dataclass import dataclass
from .file_columns import ColumnKind, FileColumns

_ENCODINGS = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8
"""The encodings that chunks may name, a bit for each: PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED and RLE_DICTIONARY of
parquet.thrift. Many writers name BIT_PACKED for levels that flat columns do not have.
"""
_COMPRESSIONS = {
    number: CHUNK_COMPRESSIONS[name]
    for number, name in ((0, "UNCOMPRESSED"), (1, "SNAPPY"), (6, "ZSTD"))
    if name in CHUNK_COMPRESSIONS
}
"""The code of the core for each compression of parquet.thrift."""
_ZSTD = CHUNK_COMPRESSIONS.get("ZSTD")
_PREFIX = 4  # bytes that each stored string has for its length
_SHORT_TEXT = 8  # bytes of a string in a dictionary, on average; more are allocated if they are needed
_READ_BYTES = 1 << 20  # chunks that follow each other are read together, as long as they stay in the processor's cache
_WINDOW_BYTES = 16 << 20  # of a chunk; a larger one is read page by page
_MOST_PAGE_BYTES = 4 << 20
_MOST_RATIO = 64  # of decoded to stored bytes; nothing is allocated because a footer claims more
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 30  # which are always, or never allocated
_TOO_MUCH = 1 << 40  # of anything in a chunk
_COLUMN_BYTES = 300  # about what Python takes for a column of a row group
MOST_KEPT_BYTES = _COLUMN_BYTES << 16
_MOST_ORDERED_BYTES = 8 << 20
"""Larger columns are not put in order as they are decoded: each thread that fetches keeps memory for one of them."""
_BYTES = np.dtype(np.uint8)
_ADDRESSES = ("target", "offsets", "validity")


@dataclass(frozen=True, slots=True, eq=False)
class OrderedNumbers:
    """Numbers of a row group, in the order of the items that take them.

    Attributes:
        values: the number of each item; 0 for null.
        valid: which items are not null, bool; ``None`` if no row is null.
        rows: how many rows they were taken from.
    """

    values: np.ndarray
    valid: np.ndarray | None
    rows: int

    def __len__(self) -> int:
        return self.rows


class DescribedGroup(Protocol):
    """What a footer says about a row group; `group_footers.GroupFooter` is one."""

    @property
    def columns(self) -> FileColumns:
        """The columns that it describes."""

    @property
    def rows(self) -> int:
        """The number of rows of the row group."""

    @property
    def facts(self) -> np.ndarray:
        """The `CHUNK_FACTS` of each column."""


Values: TypeAlias = np.ndarray | pa.Array | OrderedNumbers
"""Decoded values: a numpy array for numbers without nulls, or an Arrow array, unless they are put in order."""


class CoreRead(NamedTuple):
    """What the core read.

    Attributes:
        values: those of each column; ``None`` for columns that Arrow has to read.
        status: that of the file at the path after it was read; all 0 without a path.
        unread_bytes: the stored bytes of pages without wanted rows, which were not read.
    """

    values: list[Values | None]
    status: FileStatus
    unread_bytes: int


class CoreColumns:
    """The columns of a row group that the core may read, and how they will lie in memory.

    Numbers have their own memory, because they are kept for a shorter time than the other columns.

    Args:
        described: their chunks, in one row group.
        ordered: columns to put in the order of items, if they hold small numbers.

    Attributes:
        columns: in the order of their chunks.
        rows: how many the row group has, as the footer says.
        ordered: those that are put in order, by name, with their dtypes.
        needed_bytes: the memory that the others take, unless long text repeats.
    """

    def __init__(
        self, kinds: Sequence[ColumnKind], described: CoreChunks, rows: int, ordered: Container[str] = ()
    ) -> None:
        self.columns = columns = [kinds[number] for number in described.column.tolist()]
        self.rows = rows
        self._chunks = chunks = described.chunks
        self.ordered: list[tuple[str, np.dtype[Any]]] = []
        self._ordered: list[int] = []
        self._column_bytes = 0
        for place, column in enumerate(columns if ordered else ()):
            if column.name in ordered and column.dtype is not None and column.width * rows <= _MOST_ORDERED_BYTES:
                self.ordered.append((column.name, column.dtype))
                self._ordered.append(place)
                self._column_bytes = max(self._column_bytes, column.width * rows)
        chunks["in_order"][self._ordered] = 1
        may_be_null = (chunks["definition"] > 0) & (chunks["empty"] < 0)
        rows = rows if columns else 0  # a footer may claim any number
        sizes = np.empty((len(chunks), 3), np.int64)
        sizes[:, 0] = chunks["capacity"] * chunks["value_bytes"] * (chunks["in_order"] == 0)
        sizes[:, 1] = chunks["offset_bytes"] * (rows + 1)
        sizes[:, 2] = may_be_null * (-(-rows // 8))
        room = -(-sizes // ALIGNMENT) * ALIGNMENT
        has_offsets, places = sizes[:, 1] > 0, np.empty_like(sizes)
        self._parts: list[tuple[np.ndarray, int]] = []
        self._part_of: list[int] = [0] * len(columns)
        for apart in set(has_offsets.tolist()):
            members = np.flatnonzero(has_offsets == apart)
            ends = np.cumsum(room[members].reshape(-1))
            places[members] = ends.reshape(-1, 3) - room[members]
            for number in members.tolist():
                self._part_of[number] = len(self._parts)
            self._parts.append(((has_offsets == apart).astype(np.int64), int(ends[-1])))
        for number, name in enumerate(_ADDRESSES):
            chunks[name] = places[:, number]  # to which the address of the memory is added
        chunks["found"] = -1
        self._places = places
        self._numbers = [(column.dtype, begin) for column, (begin, _, _), _ in self._described() if column.dtype]
        self._chunk_bytes = min(int(chunks["size"].max(initial=0)), _WINDOW_BYTES)
        self._page_bytes, self._dictionary_bytes = described.scratch_bytes()
        self.needed_bytes = sum(size for _, size in self._parts)

    def read(
        self,
        source: pa.NativeFile | str,
        *,
        checked: bool,
        room_bytes: int | None = None,
        items: np.ndarray | None = None,
        targets: Sequence[np.ndarray] = (),
        wanted: np.ndarray | None = None,
    ) -> CoreRead:
        """Returns the values of each column.

        They are in memory that is reused when the last array of a row group is gone.

        Args:
            source: the file, or where it is on a local disk. The core reads that itself, so that it waits for the
                interpreter lock only once.
            checked: whether pages must match their checksums, if they have some.
            room_bytes: the memory for the columns; ``None`` = no limit.
            items: the row of each item, int32; ``None`` if no columns are ``ordered``.
            targets: memory for the numbers of the items, one array for each of those columns.
            wanted: the rows that are wanted, int64, ascending; ``None`` = all. The values of the others are anything.
        """
        chunks, blocks = self._allocate()
        memory = {
            "page": SCRATCH.array("page", (self._page_bytes + SLACK,), _BYTES),
            "dictionary": SCRATCH.array("dictionary", (self._dictionary_bytes,), _BYTES),
        }
        if self._ordered and items is None:
            raise ValueError("expected items for the columns that are put in order")
        if items is not None:
            chunks["target"][self._ordered] = [address_of(target) for target in targets]
            memory |= {"column": SCRATCH.array("column", (self._column_bytes,), _BYTES), "items": items}
        room = math.inf if room_bytes is None else room_bytes - self.needed_bytes
        longer: dict[int, np.ndarray] = {}
        status, unread_bytes = NO_FILE, 0
        for first, last, place in self._in_memory(source, chunks):
            some = chunks[first:last]
            status, left_out = decode_chunks(some, self.rows, checked=checked, wanted=wanted, **memory, **place)
            unread_bytes += left_out
            for number in np.flatnonzero(some["found"] > some["capacity"]).tolist():  # long text in a dictionary
                chunk, size = some[number : number + 1], int(some["found"][number])
                if size > min(_most_bytes(int(chunk["size"][0])), room):
                    chunk["found"] = -1
                    continue
                room -= size
                longer[first + number] = np.empty(size, np.uint8)
                chunk["target"], chunk["capacity"] = address_of(longer[first + number]), size
                status, _ = decode_chunks(chunk, self.rows, checked=checked, wanted=wanted, **memory, **place)
                if chunk["found"][0] > size:  # the file has changed in between
                    chunk["found"] = -1
        counts, nulls = chunks["found"], chunks["nulls"]
        if items is None:
            return CoreRead(self._values(blocks, counts, nulls, longer), status, unread_bytes)
        values: list[Values | None] = [None] * len(counts)
        if len(self._ordered) < len(counts):
            others = counts.copy()
            others[self._ordered] = -1
            values = self._values(blocks, others, nulls, longer)
        for number, target in zip(self._ordered, targets, strict=True):
            if counts[number] == self.rows:
                valid = self._is_valid(blocks, number)[items] if nulls[number] else None
                values[number] = OrderedNumbers(target, valid, self.rows)
        return CoreRead(values, status, unread_bytes)

    def _is_valid(self, blocks: Sequence[np.ndarray], number: int) -> np.ndarray:
        """Returns which rows of a column are not null."""
        bits = blocks[self._part_of[number]][self._places[number, -1] :][: -(-self.rows // 8)]
        return np.unpackbits(bits, count=self.rows, bitorder="little").view(np.bool_)

    def _values(
        self, blocks: Sequence[np.ndarray], found: np.ndarray, nulls: np.ndarray, longer: Mapping[int, np.ndarray]
    ) -> list[Values | None]:
        rows = self.rows
        if len(self._numbers) == len(found) and (found == rows).all() and not nulls.any():  # as in most wide tables
            return [np.frombuffer(blocks[0], dtype, rows, begin) for dtype, begin in self._numbers]
        described = zip(self._described(), found.tolist(), nulls.tolist(), strict=True)
        return [
            None if some < 0 else values_of(column, rows, blocks[part], begins, some, empty, longer.get(number))
            for number, ((column, begins, part), some, empty) in enumerate(described)
        ]

    def _described(self) -> Iterator[tuple[ColumnKind, list[int], int]]:
        """Iterates over the columns, with where they begin in their memory, and which memory that is."""
        return zip(self.columns, self._places.tolist(), self._part_of, strict=True)

    def _allocate(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Returns the chunks, which point to memory of earlier row groups, and that memory (uint8)."""
        chunks, blocks = self._chunks.copy(), []
        addresses: np.ndarray | int = 0
        for mine, size in self._parts:
            block = block_memory(size)
            addresses = addresses + mine * address_of(block)
            block.flags.writeable = False
            blocks.append(block)
        for name in _ADDRESSES:
            chunks[name] += addresses
        return chunks, blocks

    def _in_memory(self, source: pa.NativeFile | str, chunks: np.ndarray) -> Iterator[tuple[int, int, _Place]]:
        """Yields which chunks can be decoded at once: the numbers of the first, and of the one after the last.

        Chunks of an open file are in memory that the next ones reuse.
        """
        if isinstance(source, str):
            chunk = SCRATCH.array("chunk", (self._chunk_bytes + SLACK,), _BYTES)
            yield 0, len(self.columns), {"path": source, "chunk": chunk}
            return
        for first, last in _read_together(chunks):
            begin, end = int(chunks["begin"][first]), int(chunks["begin"][last - 1] + chunks["size"][last - 1])
            data = SCRATCH.array("chunk", (end - begin + SLACK,), _BYTES)
            source.seek(begin)
            if source.readinto(memoryview(data)[: end - begin]) != end - begin:  # type: ignore[arg-type]  # a buffer
                continue
            chunks["data"][first:last] = address_of(data) + chunks["begin"][first:last] - begin
            yield first, last, {}


class _Place(TypedDict, total=False):
    """Where chunks are, if not in memory; see `decode_chunks`."""

    path: str
    chunk: np.ndarray


kept_columns: LRUCache[tuple[str, tuple[str, ...], frozenset[str]], CoreColumns] = LRUCache(
    MOST_KEPT_BYTES, lambda kept: _COLUMN_BYTES * (1 + len(kept.columns))
)


def core_compressions() -> frozenset[str]:
    """Returns the compressions of column chunks that the core can read; empty if it is not compiled."""
    return frozenset(name for name in CHUNK_COMPRESSIONS if name != "ZSTD" or has_zstd())


def read_by_core(
    source: pa.NativeFile,
    described: DescribedGroup,
    names: Sequence[str],
    *,
    path: str | None,
    key: str,
    checked: bool,
) -> dict[str, pa.Array]:
    """Reads columns of a row group without Arrow. Returns them by name, except for columns that only Arrow can read.

    Args:
        path: where the file is on a local disk; ``None`` if it is not.
        key: names the version of the file, and the row group.
        checked: see `CoreColumns.read`.
    """
    most = _TOO_MUCH if path is not None else _WINDOW_BYTES  # what a store sent is in memory, and would be copied
    columns = core_columns(lambda: described, tuple(names), key, most_chunk_bytes=most)
    if not columns.columns:
        return {}
    read = columns.read(source if path is None else path, checked=checked)
    return {
        column.name: as_arrow(each) if isinstance(each, np.ndarray) else each
        for column, each in zip(columns.columns, read.values, strict=True)
        if each is not None
    }


def _read_together(chunks: np.ndarray) -> list[tuple[int, int]]:
    """Returns which chunks to read together: the numbers of the first, and of the one after the last."""
    runs: list[tuple[int, int]] = []
    begins, ends = chunks["begin"].tolist(), (chunks["begin"] + chunks["size"]).tolist()
    first = 0
    for number in range(1, len(chunks)):
        if begins[number] != ends[number - 1] or ends[number] - begins[first] > _READ_BYTES:
            runs.append((first, number))
            first = number
    return [*runs, (first, len(chunks))]


def values_of(
    kind: ColumnKind,
    rows: int,
    block: np.ndarray,
    begins: Sequence[int],
    found: int,
    nulls: int,
    longer: np.ndarray | None = None,
) -> Values:
    """Returns the values of a decoded column.

    Args:
        block, begins: their memory, and where values, offsets and validity begin there.
        found: how many numbers, or bytes of strings, there are.
        longer: memory for the values, if that in ``block`` was too small.
    """
    begin, offsets, validity = begins
    if kind.dtype is not None and not nulls:
        return np.frombuffer(block, kind.dtype, rows, begin)
    size = found * kind.width
    values = pa.py_buffer(block[begin : begin + size] if longer is None else longer)
    valid = pa.py_buffer(block[validity : validity + -(-rows // 8)]) if nulls else None
    if kind.dtype is not None:
        return pa.Array.from_buffers(kind.type, rows, [valid, values], nulls)
    ends = pa.py_buffer(block[offsets : offsets + kind.offset_bytes * (rows + 1)])
    if not kind.type.num_fields:
        return pa.Array.from_buffers(kind.type, rows, [valid, ends, values], nulls)
    inside = pa.Array.from_buffers(kind.type.value_type, found, [None, values], 0)
    return pa.Array.from_buffers(kind.type, rows, [None, ends], 0, 0, [inside])


def core_columns(
    describe: Callable[[], DescribedGroup],
    names: tuple[str, ...],
    key: str,
    *,
    types: Sequence[pa.DataType] | None = None,
    types_key: str = "",
    ordered: frozenset[str] = frozenset(),
    most_chunk_bytes: int = _TOO_MUCH,
) -> CoreColumns:
    """Returns the columns of a row group that the core may read: none if it is not compiled.

    Args:
        describe: returns what the footer says about the row group.
        key: names the version of the file, and the row group.
        types, types_key: see `FileColumns.kinds`.
        ordered: see `CoreColumns`.
        most_chunk_bytes: the size of the largest chunk that it may read.
    """
    key = f"{key}\0{types_key}\0{most_chunk_bytes}"
    known = kept_columns.get((key, names, ordered))
    if known is not None:
        return known
    described = describe()
    rows = described.rows
    here = described.columns.kinds(names, types, types_key) if _COMPRESSIONS else ()
    chunks = chunks_of([described] if here else [], here, most_chunk_bytes)
    made = CoreColumns(here, chunks, rows, ordered)
    kept_columns.keep((key, names, ordered), made)
    return made


def facts_of(described: Sequence[DescribedGroup], leaves: Sequence[int]) -> np.ndarray:
    """Returns the `CHUNK_FACTS` of columns in each of several row groups of a file, ``[row groups, columns]``."""
    facts = [each.facts.view(np.int64).reshape(-1, len(CHUNK_FACTS.names or ()))[leaves] for each in described]
    return np.stack(facts).view(CHUNK_FACTS)[..., 0]


def read_numbers(
    path: str,
    described: Sequence[DescribedGroup],
    kinds: Sequence[ColumnKind],
    *,
    checked: bool,
    most_bytes: int,
) -> tuple[list[dict[str, np.ndarray]], FileStatus]:
    """Reads columns of numbers of small row groups of a local file, which are all decoded by one call.

    Args:
        described: what the footer says about each row group.
        kinds: the columns, which are the same in each.
        checked: see `CoreColumns.read`.
        most_bytes: the memory for all of them. Nothing is read if they take more.

    Returns:
        The values of each row group by column, and the status of the file after it was read. Chunks with nulls, and
        those that only Arrow can read, are left out.
    """
    numbers = [kind for kind in kinds if kind.dtype is not None]
    nothing: list[dict[str, np.ndarray]] = [{} for _ in described]
    if not numbers:
        return nothing, NO_FILE
    rows = np.array([each.rows for each in described], np.int64)
    each = chunks_of(described, numbers)
    chunks = each.chunks
    bit_bytes = np.where(chunks["definition"] > 0, -(-chunks["capacity"] // 8), 0)
    row_bytes = np.array([kind.width for kind in numbers])
    begins = np.zeros(len(numbers) + 1, np.int64)  # the numbers of a column follow each other
    np.cumsum(-(-(row_bytes * rows.sum()) // ALIGNMENT) * ALIGNMENT, out=begins[1:])
    if not len(chunks) or begins[-1] + bit_bytes.sum() > most_bytes:
        return nothing, NO_FILE
    before = np.concatenate([[0], np.cumsum(rows)])
    block = block_memory(int(begins[-1] + bit_bytes.sum()))
    chunks["target"] = address_of(block) + begins[each.column] + before[each.row_group] * row_bytes[each.column]
    chunks["validity"] = address_of(block) + begins[-1] + np.cumsum(bit_bytes) - bit_bytes
    block.flags.writeable = False
    status, (page_bytes, dictionary_bytes) = NO_FILE, each.scratch_bytes()
    memory = {
        "page": SCRATCH.array("page", (page_bytes + SLACK,), _BYTES),
        "dictionary": SCRATCH.array("dictionary", (dictionary_bytes,), _BYTES),
        "chunk": SCRATCH.array("chunk", (min(int(chunks["size"].max()), _WINDOW_BYTES) + SLACK,), _BYTES),
    }
    values = nothing
    for count in np.unique(chunks["capacity"]).tolist():
        own = chunks["capacity"] == count
        some = chunks[own]
        status, _ = decode_chunks(some, count, checked=checked, path=path, **memory)
        sound = (some["found"] == count) & (some["nulls"] == 0)
        columns, groups = each.column[own][sound], each.row_group[own][sound]
        for number, kind in enumerate(numbers):
            whole = np.frombuffer(block, kind.dtype, int(before[-1]), int(begins[number]))
            for group in groups[columns == number].tolist():
                values[group][kind.name] = whole[before[group] : before[group + 1]]
    return values, status


class CoreChunks(NamedTuple):
    """Chunks of row groups of a file that the core may read, in the order of the file.

    Attributes:
        chunks: of dtype `CHUNK`, without addresses.
        unpacked_bytes: the size of each without compression; int64.
        row_group, column: the index of the row group and of the column of each; int64.
    """

    chunks: np.ndarray
    unpacked_bytes: np.ndarray
    row_group: np.ndarray
    column: np.ndarray

    def scratch_bytes(self) -> tuple[int, int]:
        """Returns the sizes of the largest page and of the largest dictionary in memory, at most."""
        pages = np.minimum(self.unpacked_bytes, _MOST_PAGE_BYTES)
        dictionaries = pages * np.where(self.chunks["stored_bytes"] > 0, 1, 1 + ENTRY_BYTES // _PREFIX)
        return int(pages.max(initial=0)), int(dictionaries.max(initial=0))


def chunks_of(
    described: Sequence[DescribedGroup], kinds: Sequence[ColumnKind], most_chunk_bytes: int = _TOO_MUCH
) -> CoreChunks:
    """Returns those of the columns that the core may read in each of several row groups of a file."""
    if not described:
        return CoreChunks(np.zeros(0, CHUNK), *np.zeros((3, 0), np.int64))
    facts = facts_of(described, [kind.leaf for kind in kinds])
    chunks = np.zeros(facts.shape, CHUNK)
    for name, of_kind in (
        *(("stored_bytes", "stored"), ("value_bytes", "width"), ("definition", "definition")),
        *(("empty", "empty"), ("offset_bytes", "offset_bytes")),
    ):
        chunks[name] = [getattr(kind, of_kind) for kind in kinds]
    # Numbers of footers may be wrong: larger ones would overflow.
    names = ("values", "unpacked_bytes", "stored_bytes")
    values, unpacked, size = (np.minimum(facts[name], _TOO_MUCH) for name in names)
    rows = np.array([[min(each.rows, _TOO_MUCH)] for each in described], np.int64)
    begin, dictionary = facts["data_page"], facts["dictionary_page"]
    codes = np.full(facts.shape, -1, np.int64)
    for codec, code in _COMPRESSIONS.items():
        if code != _ZSTD or has_zstd():
            codes[facts["codec"] == codec] = code
    lists, stored = chunks["empty"] >= 0, chunks["stored_bytes"]
    text_bytes = unpacked + np.where(dictionary >= 0, _SHORT_TEXT * rows, 0)
    capacity = np.where(stored == 0, text_bytes, np.where(lists, values, rows))
    chunks["begin"] = np.where(dictionary > 0, np.minimum(begin, dictionary), begin)
    chunks["size"], chunks["compressed"], chunks["capacity"] = size, codes, capacity
    needed = np.maximum(np.maximum(capacity * np.maximum(stored, 1), chunks["offset_bytes"] * rows), unpacked)
    possible = (facts["encodings"] & ~_ENCODINGS == 0) & (codes >= 0) & (lists | (values == rows))
    possible &= (np.minimum(chunks["begin"], unpacked) >= 0) & (capacity >= 0)
    possible &= (size > 0) & (size <= most_chunk_bytes) & (needed <= _most_bytes(size))
    groups, columns = np.nonzero(possible)
    order = np.argsort(chunks["begin"][groups, columns], kind="stable")
    groups, columns = groups[order], columns[order]
    return CoreChunks(chunks[groups, columns], unpacked[groups, columns], groups, columns)


def _most_bytes(size: Any) -> Any:
    """Returns what the values of chunks may take in memory, by their bytes in the file."""
    return np.clip(_MOST_RATIO * size, _LEAST_BYTES, _MOST_BYTES)
