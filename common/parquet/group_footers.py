"""What the footers of files say about some of their row groups and columns.

A footer is kept in memory as it is stored (`StoredFooter`), and so is the part of it that is read (`CutFooter`). From
that, pyarrow gets footers with a single row group and the columns that are read: a parsed footer takes ten times the
memory of a stored one. All of this is limited in bytes, and counts for the ``memory_limit`` of pipelines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError
from ..base.memory.lru_cache import LRUCache
from ..base.native.kernels import chunk_facts, cut_row_groups, footer_fields, passes
from ..base.native.parquet import CHUNK_FACTS, RowGroupBytes
from ..base.process.dataclass import dataclass
from ..base.process.forks import ForkLock, cached_property
from ..base.progress import progress, thread_pool
from ..storage.files import DataFile
from ..storage.retries import retry_if_damaged
from ..storage.temporary import NoRoomError, TemporaryBuffer
from .footer_check import check_slowly
from .footer_head import FooterHead, FooterPart, fields_slowly, footer_head, list_of_structs, struct_with_totals
from .footers import FIRST_BYTES, check_loaded, footer_tail, from_footer, naming_file, parse_footer
from .native_decode import MOST_KEPT_BYTES, kept_columns
from .thrift import field_places, number_in, struct_list, struct_places

_ROWS, _ROW_GROUPS = 3, 4  # of FileMetaData in parquet.thrift
_CHUNKS, _GROUP_ROWS, _OTHER_FILE, _METADATA, _UNPACKED = 1, 3, 1, 3, 6  # of RowGroup, ColumnChunk, ColumnMetaData
_SMALL_BYTES = 64 << 10  # of row groups that are kept uncompressed
_MOST_STORED_BYTES, _MOST_CUT_BYTES, _MOST_PARSED_BYTES = 32 << 20, 32 << 20, 16 << 20
_MOST_SPILLED_BYTES = 256 << 20  # in one temporary file
_COLUMNS_PART = 4  # of the limit, for the columns that the core reads
_PARSED_BYTES = 2 << 10  # about what pyarrow takes for each column of a footer with one row group
_FOOTER_BYTES = 500  # about what Python takes for each
_PLACE_BYTES = 24  # of a row group
LENGTH_BYTES = 8
"""What follows a footer: its length, and the end of the file."""
_FILES_AT_A_TIME, _THREADS = 64, 16
_LARGE_BYTES = 4 << 20
_MOST_ENDS, _LEAST_END_BYTES, _MOST_END_BYTES = 256, 8 << 10, 16 << 20
_LOGGER = logging.getLogger(__name__)
_large = ForkLock()


class GroupFooter:
    """What the footer of a file says about a row group, and at least the columns that were asked for.

    Attributes:
        part: the head of the footer.
        columns: the columns that it describes.
        rows: the number of rows of the row group.
        index: the row-group index that says this, for messages; empty if the footer does.
        group: its number in ``footer``.
    """

    group = 0

    def __init__(self, file: DataFile, part: FooterPart, stored: bytes, rows: int, index: str = "") -> None:
        self._file = file
        self.part = part
        self.columns = part.columns
        self.rows = rows
        self.index = index
        self._stored = stored

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """A footer with this row group alone.

        Raises:
            DatasetError: pyarrow cannot read it.
        """
        with naming_file(self._file):
            return self.part.footer(self._stored, 1, self.rows)

    def check(self) -> None:
        """Raises `DatasetError` if the row group cannot be as an index says, so that pyarrow must not see it."""
        footer, limit = self.part.stored(self._stored, 1, self.rows), self._file.size_bytes - LENGTH_BYTES
        if not passes(footer, len(self.columns), limit):
            try:
                if not check_slowly(footer, self.part.empty, limit + len(footer)):
                    return
                why = "bounds in it"
            except ValueError as error:
                why = str(error)
            raise DatasetError(
                f"row-group index {self.index}: expected the places of columns in file {self._file.shown_path}, got "
                f"{why}. write_index() makes a new index."
            )

    def chunk_descriptions(self) -> list[bytes]:
        """Returns the description of each column chunk as stored."""
        facts = self.facts
        places = zip(facts["begin"].tolist(), facts["end"].tolist(), strict=True)
        return [self._stored[begin:end] for begin, end in places]

    @cached_property
    def facts(self) -> np.ndarray:
        """The `CHUNK_FACTS` of each column."""
        facts = chunk_facts(self._stored, len(self.columns))
        return self._facts_slowly() if facts is None else facts

    def _facts_slowly(self) -> np.ndarray:
        """Does what `chunk_facts` does, but leaves out what only the compiled core needs."""
        facts = np.full((len(self.columns), len(CHUNK_FACTS.names or ())), -1, np.int64).view(CHUNK_FACTS)[:, 0]
        group = self.footer.row_group(self.group)
        for number in range(len(facts)):
            chunk = group.column(number)
            facts["values"][number], facts["data_page"][number] = chunk.num_values, chunk.data_page_offset
            facts["unpacked_bytes"][number] = chunk.total_uncompressed_size
            facts["stored_bytes"][number] = chunk.total_compressed_size
            if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
                facts["dictionary_page"][number] = chunk.dictionary_page_offset
        places = struct_places(self._stored, field_places(self._stored, 0)[_CHUNKS][0])
        facts["begin"], facts["end"] = np.array(places, np.int64).reshape(-1, 2).T
        facts["elsewhere"] = [_OTHER_FILE in field_places(self._stored, begin) for begin, _ in places]
        return facts

    def chunks(self, leaves: Sequence[int]) -> list[tuple[int, int]]:
        """Returns where the chunks of some columns begin and end in the file, given their numbers."""
        facts = self.facts[leaves]
        data, dictionary = facts["data_page"], facts["dictionary_page"]
        begins = np.where(dictionary > 0, np.minimum(data, dictionary), data)
        return list(zip(begins.tolist(), (begins + facts["stored_bytes"]).tolist(), strict=True))

    @property
    def head(self) -> pq.FileMetaData:
        """The footer without its row group."""
        return self.part.empty


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredFooter:
    """A checked footer, as stored.

    Attributes:
        head: what it says about the whole file.
        rows: the number of rows of each row group, int64.
        content: its list of row groups, compressed if it is large; ``size_bytes`` long without compression.
    """

    head: FooterHead
    rows: np.ndarray
    content: bytes
    size_bytes: int

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.content) + int(self.rows.nbytes) + _FOOTER_BYTES

    def cut(self, part: FooterPart, *, bare: bool) -> RowGroupBytes:
        """Returns the row groups with the columns of a part of the head.

        Args:
            bare: whether to leave out statistics, and all else that reading does not need.
        """
        with _alone_if_large(self.size_bytes):
            content = self.content
            if len(content) != self.size_bytes:
                content = pa.decompress(content, self.size_bytes, codec="zstd", asbytes=True)
            return _cut(content, 0, len(self.rows), part.leaves, bare=bare)

    def columns_footer(self, names: frozenset[str]) -> pq.FileMetaData:
        """Returns a footer with all row groups, and the statistics of at least the columns with these names."""
        part = self.head.part(names)
        return part.footer(self.cut(part, bare=False).stored, len(self.rows), int(self.rows.sum()))

    def bare_groups(self, file: DataFile) -> list[GroupFooter]:
        """Returns what it says about each row group and all columns, given the file that it is of."""
        part = self.head.part(None)
        groups = self.cut(part, bare=True)
        places = zip([0, *groups.ends.tolist()], groups.ends.tolist(), groups.rows.tolist(), strict=False)
        return [GroupFooter(file, part, groups.stored[begin:end], rows) for begin, end, rows in places]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutFooter:
    """Some row groups with some of their columns, as stored.

    Attributes:
        rows: the number of rows of each row group, int64.
        begins, ends: where each of them is stored, int64: in ``content``, or in the temporary file ``file``.
        index: as in `GroupFooter`.
    """

    part: FooterPart
    rows: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    content: bytes = b""
    file: TemporaryBuffer | None = None
    index: str = ""

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.content) + _PLACE_BYTES * len(self.rows) + _FOOTER_BYTES

    def covers(self, names: frozenset[str] | None) -> bool:
        """Whether it has the columns with these names; ``None`` for all."""
        return self.part.covers(names)

    def group(self, file: DataFile, group: int) -> GroupFooter:
        """Returns what it says about a row group, given the file that has it.

        Raises:
            DatasetError: it is from an index, and cannot be true.
        """
        begin, end = int(self.begins[group]), int(self.ends[group])
        if self.file is None:
            stored = self.content[begin:end]
        else:
            with _spill.lock:  # the file may move to another directory
                stored = self.file.read(begin, end - begin)
        described = GroupFooter(file, self.part, stored, int(self.rows[group]), self.index)
        if self.index:
            described.check()
        return described


class GroupSource(Protocol):
    """Row groups that are described in one place: those of a file in its footer, or some of those in an index."""

    @property
    def key(self) -> str:
        """Names this version of the place."""

    def cut(self, names: frozenset[str] | None) -> CutFooter:
        """Returns what it says about the columns with these names; ``None`` for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFooter:
    """The footer of a file, as a `GroupSource`."""

    filesystem: pafs.FileSystem
    file: DataFile

    @property
    def key(self) -> str:
        """The key of the file's version."""
        return self.file.version.key

    def cut(self, names: frozenset[str] | None) -> CutFooter:
        """Raises `DatasetError` as `load_footer`."""
        stored = read_stored_footer(self.filesystem, self.file)
        with naming_file(self.file):
            part = stored.head.part(names)
            return kept_cut(part, [stored.cut(part, bare=True)])


_stored: LRUCache[str, StoredFooter] = LRUCache(_MOST_STORED_BYTES, lambda footer: footer.num_bytes)
_cuts: LRUCache[str, CutFooter] = LRUCache(_MOST_CUT_BYTES, lambda footer: footer.num_bytes)
_groups: LRUCache[tuple[str, int], GroupFooter] = LRUCache(
    _MOST_PARSED_BYTES, lambda group: _FOOTER_BYTES + _PARSED_BYTES * len(group.columns)
)


_limits: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_limits_lock = ForkLock()


def keep_footers_within(limit_bytes: int, owner: object) -> None:
    """Limits the memory for the footers that this process keeps: to the largest limit of the owners that are alive."""
    with _limits_lock:
        _limits[owner] = limit_bytes
        limit_bytes = max(_limits.values())
    most = _MOST_STORED_BYTES, _MOST_CUT_BYTES, _MOST_PARSED_BYTES
    caches: tuple[LRUCache[Any, Any], ...] = (_stored, _cuts, _groups)
    for cache, limit in zip(caches, most, strict=True):
        cache.limit_to(min(limit, limit_bytes * limit // sum(most)))
    kept_columns.limit_to(min(MOST_KEPT_BYTES, limit_bytes // _COLUMNS_PART))


def kept_footer_bytes() -> int:
    """Returns about how much memory the footers take that this process keeps, and what it found in them."""
    return _stored.size + _cuts.size + _groups.size + kept_columns.size


def read_group_footer(
    source: GroupSource, group: int, file: DataFile, names: frozenset[str] | None = None
) -> GroupFooter:
    """Returns what a footer or an index says about a row group.

    Args:
        group: the number of the row group among those of the source.
        names: the dotted names of the fields that are read; ``None`` for all columns of the file.

    Raises:
        DatasetError: as `load_footer`; an index does not describe the file.
    """
    cut = _cut_footer(source, names)
    key = source.key, group
    known = _groups.get(key)
    if known is not None and known.part is cut.part and known.columns is cut.part.columns:
        return known
    if group >= len(cut.rows):
        raise DatasetError(
            f"file {file.shown_path}: expected row group {group}, got a footer of {len(cut.rows)}. If there is "
            "a row-group index, write_index() makes a new one."
        )
    made = cut.group(file, group)
    _groups.replace(key, made)
    return made


def read_group_footers(
    source: GroupSource, groups: Sequence[int], file: DataFile, names: frozenset[str] | None = None
) -> list[GroupFooter]:
    """Returns what `read_group_footer` does for several row groups, which it does not keep.

    Raises:
        DatasetError: as `read_group_footer`.
    """
    cut = _cut_footer(source, names)
    if len(groups) == 1 or max(groups) >= len(cut.rows):
        return [read_group_footer(source, group, file, names) for group in groups]
    return [cut.group(file, group) for group in groups]


def _cut_footer(source: GroupSource, names: frozenset[str] | None) -> CutFooter:
    """Returns row groups with at least some columns. Those that were read before are among them.

    A thread that needs what another one reads waits for it.
    """
    key = source.key

    def cut() -> CutFooter:
        known = _cuts.get(key)
        before = frozenset[str]() if known is None else known.part.names
        return source.cut(None if names is None or before is None else names | before)

    return _cuts.made(key, cut, lambda known: known.covers(names))


class _Spill:
    """The temporary file of this process for the row groups that there is no room for in memory.

    Attributes:
        file: ``None`` until it is needed. A full one is left to the footers that are in it, and goes with the last.
    """

    def __init__(self) -> None:
        self.file: TemporaryBuffer | None = None
        self.owner = 0
        self.lock = ForkLock()

    def append(self, content: bytes, file: TemporaryBuffer | None = None) -> tuple[TemporaryBuffer, int]:
        """Appends to a file, or else to the present one. Returns which it is, and where the content begins there.

        Raises:
            NoRoomError: there is no room for it.
        """
        with self.lock:
            if file is None:
                is_full = self.file is not None and self.file.num_bytes >= _MOST_SPILLED_BYTES
                if self.file is None or is_full or self.owner != os.getpid():  # a child appends to a file of its own
                    self.file, self.owner = TemporaryBuffer(), os.getpid()
                file = self.file
            begin = file.num_bytes
            file.append(content)
            return file, begin


_spill = _Spill()


def kept_cut(part: FooterPart, portions: Iterable[RowGroupBytes], index: str = "") -> CutFooter:
    """Keeps row groups in memory if there is room, or else in a temporary file, so that they stay at hand.

    Args:
        portions: the row groups, some at a time.
        index: as in `GroupFooter`.

    Raises:
        NoRoomError: the disk filled up in between.
    """
    held, begins, ends, rows = list[bytes](), list[np.ndarray](), list[np.ndarray](), [np.zeros(0, np.int64)]
    file: TemporaryBuffer | None = None
    size, stays = 0, False
    for portion in portions:
        place = size if file is None else _spill.append(portion.stored, file)[1]
        begins.append(place + np.concatenate([[0], portion.ends])[:-1])
        ends.append(place + portion.ends)
        rows.append(portion.rows)
        if file is not None:
            continue
        held.append(portion.stored)
        size += len(portion.stored)
        if stays or _cuts.size + size + _PLACE_BYTES * sum(map(len, rows)) + _FOOTER_BYTES <= _cuts.limit:
            continue
        try:
            file, place = _spill.append(b"".join(held))
        except NoRoomError as error:
            stays = True
            _LOGGER.debug("footers stay in memory, and are read again if they take too much of it: %s", error)
            continue
        held.clear()
        begins, ends = [each + place for each in begins], [each + place for each in ends]
    nothing = [np.zeros(0, np.int64)]
    return CutFooter(
        part=part,
        rows=np.concatenate(rows),
        begins=np.concatenate(begins or nothing),
        ends=np.concatenate(ends or nothing),
        content=b"".join(held),
        file=file,
        index=index,
    )


def read_stored_footer(filesystem: pafs.FileSystem, file: DataFile) -> StoredFooter:
    """Like `load_stored_footer`, but cached in memory, and loaded once for all threads that need it."""
    return _stored.made(file.version.key, lambda: load_stored_footer(filesystem, file))


def stored_footers(
    filesystem: pafs.FileSystem, files: Sequence[DataFile], what: str = "reading footers"
) -> Iterator[StoredFooter]:
    """Yields the footer of each file, in order, several at a time.

    A progress bar about ``what`` appears if this takes longer than two seconds.

    Raises:
        DatasetError: as `load_footer`.
    """
    if len(files) <= 2:
        yield from (read_stored_footer(filesystem, file) for file in files)
        return
    first = read_stored_footer(filesystem, files[0])
    at_once = max(1, min(_THREADS, _LARGE_BYTES // max(1, first.size_bytes)))  # the others are probably as large
    waiting = _FILES_AT_A_TIME if at_once == _THREADS else at_once
    with thread_pool(at_once, "parquetry-footers") as pool:

        def read() -> Iterator[StoredFooter]:
            yield first
            for begin in range(1, len(files), waiting):
                some = files[begin : begin + waiting]
                yield from pool.map(lambda file: read_stored_footer(filesystem, file), some)

        yield from progress(read(), what, len(files), unit="file")


def load_stored_footer(filesystem: pafs.FileSystem, file: DataFile) -> StoredFooter:
    """Reads the footer of one file, and checks it.

    Raises:
        DatasetError: as `load_footer`.
    """

    def load() -> StoredFooter:
        with naming_file(file):
            first_bytes = _first_bytes(file)
            with _alone_if_large(first_bytes):
                tail = from_footer(filesystem, file, partial(footer_tail, first_bytes=first_bytes))
                if tail is not None and tail.endswith(b"PAR1"):
                    with _alone_if_large(len(tail) if first_bytes <= _LARGE_BYTES else 0):
                        footer = _quickly_checked(tail, file.size_bytes)
                    if footer is not None:
                        _note_length(file, len(tail))
                        return footer
            read = from_footer(filesystem, file, parse_footer) if tail is None else parse_footer(pa.BufferReader(tail))
            return rewritten(check_loaded(file, *read))

    return retry_if_damaged(filesystem, load, f"file {file.shown_path}")


_ends: LRUCache[str, int] = LRUCache(_MOST_ENDS)


def _first_bytes(file: DataFile) -> int:
    """How much of the end of a file to read at first: a little more than the footers of other files took."""
    return _ends.get(file.path.removesuffix(file.relative)) or FIRST_BYTES


def _note_length(file: DataFile, size_bytes: int) -> None:
    before = _first_bytes(file)
    guess = max(_LEAST_END_BYTES, size_bytes + size_bytes // 4, before - before // 8)
    _ends.replace(file.path.removesuffix(file.relative), min(guess, _MOST_END_BYTES))


@contextmanager
def _alone_if_large(size_bytes: int) -> Iterator[None]:
    """Lets only one thread at a time read a large footer, because that needs several times its memory."""
    with _large if size_bytes > _LARGE_BYTES else nullcontext():
        yield


def _quickly_checked(stored: bytes, file_bytes: int) -> StoredFooter | None:
    """Returns a footer, given the end of a file from it on; ``None`` unless it is certainly sound."""
    fields, size = footer_fields(stored), len(stored) - LENGTH_BYTES
    if fields is None or fields[1] != size:  # a signature may follow
        return None
    places, _ = fields
    if not places[_ROWS] or not places[_ROW_GROUPS]:
        return None
    try:
        head = footer_head(stored, places)
    except (pa.ArrowException, OSError, ValueError):
        return None
    if not passes(stored, head.empty.num_columns, file_bytes - size):
        return None
    footer = _stored_footer(stored, places, head)
    return footer if int(footer.rows.sum()) == number_in(stored, places[_ROWS].start) else None


def rewritten(footer: pq.FileMetaData) -> StoredFooter:
    """Returns a footer that has been checked in another way, as pyarrow writes it."""
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    whole = sink.getvalue().to_pybytes()
    stored = whole[len(whole) - 8 - int.from_bytes(whole[-8:-4], "little") : -8]
    fields = footer_fields(stored)
    places = fields[0] if fields is not None else fields_slowly(stored)
    return _stored_footer(stored, places, footer_head(stored, places))


def _stored_footer(stored: bytes, places: Sequence[range], head: FooterHead) -> StoredFooter:
    content = stored[places[_ROW_GROUPS].start : places[_ROW_GROUPS].stop]
    count, _ = struct_list(content, 0)
    rows = _cut(content, 0, count, bytes(head.empty.num_columns), bare=True).rows
    size_bytes = len(content)
    if size_bytes > _SMALL_BYTES:
        content = pa.compress(content, codec="zstd", asbytes=True)
    return StoredFooter(head=head, rows=rows, content=content, size_bytes=size_bytes)


def _cut(content: bytes, begin: int, count: int, wanted: bytes, *, bare: bool) -> RowGroupBytes:
    return cut_row_groups(content, begin, count, wanted, bare=bare) or _cut_slowly(content, begin, wanted)


def _cut_slowly(content: bytes, begin: int, wanted: bytes) -> RowGroupBytes:
    """Does what `cut_row_groups` does, but leaves out no statistics.

    Raises:
        ValueError, KeyError, IndexError: the bytes are not a list of row groups.
    """
    parts, ends, rows, size = list[bytes](), list[int](), list[int](), 0
    for place, _ in struct_places(content, begin):
        fields = field_places(content, place)
        chunks = struct_places(content, fields[_CHUNKS][0])
        some = [chunk for chunk, keep in zip(chunks, wanted, strict=True) if keep]
        total = 0
        for chunk, _ in some:
            metadata = field_places(content, field_places(content, chunk)[_METADATA][0])
            total += max(0, number_in(content, metadata[_UNPACKED][0]))
        rows.append(number_in(content, fields[_GROUP_ROWS][0]))
        head = list_of_structs([content[slice(*chunk)] for chunk in some])
        parts.append(struct_with_totals(head, total, rows[-1]))
        size += len(parts[-1])
        ends.append(size)
    return RowGroupBytes(b"".join(parts), np.array(ends, np.int64), np.array(rows, np.int64))
