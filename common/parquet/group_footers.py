"""What the footers of files say about some of their row groups and columns.

A footer is kept in memory as it is stored (`StoredFooter`), and so is the part of it that is read (`CutFooter`). From
that, pyarrow gets footers with a single row group and the columns that are read: a parsed footer takes ten times the
memory of a stored one. All of this is limited in bytes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError
from ..base.memory.lru_cache import LRUCache
from ..base.native.kernels import chunk_facts, cut_row_groups, footer_fields, passes
from ..base.native.parquet import CHUNK_FACTS, FOOTER_FIELDS, RowGroupBytes
from ..base.process.dataclass import dataclass
from ..base.process.forks import ForkLock, cached_property
from ..base.progress import progress, thread_pool
from ..storage.files import DataFile
from ..storage.retries import retry_if_damaged
from ..storage.temporary import NoRoomError, TemporaryBuffer
from .footer_head import FooterHead, FooterPart, footer_head, list_of_structs, struct_with_totals
from .footers import FIRST_BYTES, check_loaded, footer_tail, from_footer, naming_file, parse_footer
from .thrift import field_places, number_in, struct_count, struct_places

_ROWS, _ROW_GROUPS = 3, 4  # of FileMetaData in parquet.thrift
_CHUNKS, _GROUP_ROWS, _METADATA, _UNPACKED = 1, 3, 3, 6  # of RowGroup; of ColumnChunk; of ColumnMetaData
_SMALL_BYTES = 64 << 10  # of row groups that are kept uncompressed
_MOST_STORED_BYTES, _MOST_CUT_BYTES, _MOST_PARSED_BYTES = 32 << 20, 32 << 20, 16 << 20
_MOST_SPILLED_BYTES = 256 << 20  # in one temporary file
_PARSED_BYTES = 2 << 10  # about what pyarrow takes for each column of a footer with one row group
_FOOTER_BYTES = 500  # about what Python takes for each
_FILES_AT_A_TIME, _THREADS = 64, 16
_LARGE_BYTES, _LOADING_BYTES = 4 << 20, 32 << 20
_MOST_ENDS, _LEAST_END_BYTES, _MOST_END_BYTES = 256, 8 << 10, 16 << 20
_LOGGER = logging.getLogger(__name__)
_large = ForkLock()


class GroupFooter:
    """What the footer of a file says about a row group, and at least the columns that were asked for.

    Attributes:
        part: the head of the footer.
        columns: the columns that it describes.
        rows: the number of rows of the row group.
        group: its number in ``footer``.
    """

    group = 0

    def __init__(self, file: DataFile, part: FooterPart, stored: bytes, rows: int) -> None:
        self._file = file
        self.part = part
        self.columns = part.columns
        self.rows = rows
        self._stored = stored

    @cached_property
    def footer(self) -> pq.FileMetaData:
        """A footer with this row group alone.

        Raises:
            DatasetError: pyarrow cannot read it.
        """
        with naming_file(self._file):
            return self.part.footer(self._stored, 1, self.rows)

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

    def cut(self, part: FooterPart, *, bare: bool) -> CutFooter:
        """Returns the row groups with the columns of a part of the head.

        Args:
            bare: whether to leave out statistics, and all else that reading does not need.
        """
        with _alone_if_large(self.size_bytes):
            content = self.content
            if len(content) != self.size_bytes:
                content = pa.decompress(content, self.size_bytes, codec="zstd", asbytes=True)
            return CutFooter(part=part, groups=_cut(content, 0, len(self.rows), part.leaves, bare=bare))

    def columns_footer(self, names: frozenset[str]) -> pq.FileMetaData:
        """Returns a footer with all row groups, and the statistics of at least the columns with these names."""
        cut = self.cut(self.head.part(names), bare=False)
        return cut.part.footer(cut.groups.stored, len(self.rows), int(self.rows.sum()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutFooter:
    """The row groups of a file with some of its columns, as stored.

    Attributes:
        file, begin: the temporary file that holds their bytes, and where they begin there; ``None`` if ``groups`` does.
    """

    part: FooterPart
    groups: RowGroupBytes
    file: TemporaryBuffer | None = None
    begin: int = 0

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.groups.stored) + int(self.groups.ends.nbytes + self.groups.rows.nbytes) + _FOOTER_BYTES

    def covers(self, names: frozenset[str] | None) -> bool:
        """Whether it has the columns with these names; ``None`` for all."""
        return self.part.covers(names)

    def group(self, file: DataFile, group: int) -> GroupFooter:
        """Returns what it says about a row group of the file that it is of."""
        begin, end = int(self.groups.ends[group - 1]) if group else 0, int(self.groups.ends[group])
        if self.file is None:
            stored = self.groups.stored[begin:end]
        else:
            with _spill.lock:  # the file may move to another directory
                stored = self.file.read(self.begin + begin, end - begin)
        return GroupFooter(file, self.part, stored, int(self.groups.rows[group]))


_stored: LRUCache[str, StoredFooter] = LRUCache(_MOST_STORED_BYTES, lambda footer: footer.num_bytes)
_cuts: LRUCache[str, CutFooter] = LRUCache(_MOST_CUT_BYTES, lambda footer: footer.num_bytes)
_groups: LRUCache[tuple[str, int], GroupFooter] = LRUCache(
    _MOST_PARSED_BYTES, lambda group: _FOOTER_BYTES + _PARSED_BYTES * len(group.columns)
)


def read_group_footer(
    filesystem: pafs.FileSystem, file: DataFile, group: int, names: frozenset[str] | None = None
) -> GroupFooter:
    """Returns what the footer of a file says about one of its row groups.

    Args:
        names: the dotted names of the fields that are read; ``None`` for all columns of the file.

    Raises:
        DatasetError: as `load_footer`.
    """
    cut = _cut_footer(filesystem, file, names)
    key = file.version.key, group
    known = _groups.get(key)
    if known is not None and known.part is cut.part and known.columns is cut.part.columns:
        return known
    if group >= len(cut.groups.rows):
        raise DatasetError(
            f"file {file.shown_path}: expected row group {group}, got a footer of {len(cut.groups.rows)}. If there is "
            "a row-group index, write_index() makes a new one."
        )
    made = cut.group(file, group)
    _groups.replace(key, made)
    return made


def _cut_footer(filesystem: pafs.FileSystem, file: DataFile, names: frozenset[str] | None) -> CutFooter:
    """Returns the row groups of a file with at least some columns. Those that were read before are among them."""
    key = file.version.key
    known = _cuts.get(key)
    if known is not None and known.covers(names):
        return known
    stored = read_stored_footer(filesystem, file)
    before = known.part.names if known is not None else frozenset()
    with naming_file(file):
        part = stored.head.part(None if names is None or before is None else names | before)
        cut = _spilled(stored.cut(part, bare=True))
    _cuts.replace(key, cut)
    return cut


class _Spill:
    """The temporary file of this process for the row groups of files that there is no room for in memory.

    Attributes:
        file: ``None`` until it is needed. A full one is left to the footers that are in it, and goes with the last.
    """

    def __init__(self) -> None:
        self.file: TemporaryBuffer | None = None
        self.owner = 0
        self.lock = ForkLock()


_spill = _Spill()


def _spilled(cut: CutFooter) -> CutFooter:
    """Moves the row groups of a file to a temporary file, unless there is room in memory, so that they stay at hand."""
    if _cuts.size + cut.num_bytes <= _cuts.limit:
        return cut
    try:
        with _spill.lock:
            is_full = _spill.file is not None and _spill.file.num_bytes >= _MOST_SPILLED_BYTES
            if _spill.file is None or is_full or _spill.owner != os.getpid():  # a child appends to a file of its own
                _spill.file, _spill.owner = TemporaryBuffer(), os.getpid()
            begin = _spill.file.num_bytes
            _spill.file.append(cut.groups.stored)
            return replace(cut, groups=cut.groups._replace(stored=b""), file=_spill.file, begin=begin)
    except NoRoomError as error:
        _LOGGER.debug("footers stay in memory, and are read again if they take too much of it: %s", error)
        return cut


def read_stored_footer(filesystem: pafs.FileSystem, file: DataFile) -> StoredFooter:
    """Like `load_stored_footer`, but cached in memory, and loaded once for all threads that need it."""
    return _stored.made(file.version.key, lambda: load_stored_footer(filesystem, file))


def stored_footers(filesystem: pafs.FileSystem, files: Sequence[DataFile]) -> Iterator[StoredFooter]:
    """Yields the footer of each file, in order, several at a time.

    A progress bar appears if this takes longer than two seconds.

    Raises:
        DatasetError: as `load_footer`.
    """
    if len(files) <= 2:
        yield from (read_stored_footer(filesystem, file) for file in files)
        return
    first = read_stored_footer(filesystem, files[0])
    at_once = max(1, min(_THREADS, _LOADING_BYTES // max(1, first.size_bytes)))  # the others are probably as large
    with thread_pool(at_once, "parquetry-footers") as pool:

        def read() -> Iterator[StoredFooter]:
            yield first
            for begin in range(1, len(files), _FILES_AT_A_TIME):
                some = files[begin : begin + _FILES_AT_A_TIME]
                yield from pool.map(lambda file: read_stored_footer(filesystem, file), some)

        yield from progress(read(), "reading footers", len(files), unit="file")


def load_stored_footer(filesystem: pafs.FileSystem, file: DataFile) -> StoredFooter:
    """Reads the footer of one file, and checks it.

    Raises:
        DatasetError: as `load_footer`.
    """

    def load() -> StoredFooter:
        with naming_file(file):
            tail = from_footer(filesystem, file, partial(footer_tail, first_bytes=_first_bytes(file)))
            if tail is not None and tail.endswith(b"PAR1"):
                with _alone_if_large(len(tail)):
                    footer = _quickly_checked(tail[:-8], file.size_bytes)
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
    """Lets only one thread at a time take a large footer apart, because that needs several times its memory."""
    with _large if size_bytes > _LARGE_BYTES else nullcontext():
        yield


def _quickly_checked(stored: bytes, file_bytes: int) -> StoredFooter | None:
    """Returns a footer; ``None`` unless it is certainly sound."""
    fields = footer_fields(stored)
    if fields is None or fields[1] != len(stored):  # a signature may follow
        return None
    places, _ = fields
    if not places[_ROWS] or not places[_ROW_GROUPS]:
        return None
    try:
        head = footer_head(stored, places)
    except (pa.ArrowException, OSError, ValueError):
        return None
    if not passes(stored, head.empty.num_columns, file_bytes - len(stored)):
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
    places = fields[0] if fields is not None else _fields_slowly(stored)
    return _stored_footer(stored, places, footer_head(stored, places))


def _fields_slowly(stored: bytes) -> list[range]:
    """Does what `footer_fields` does."""
    places = field_places(stored, 0)
    return [range(*places.get(number, (0, 0))) for number in range(FOOTER_FIELDS)]


def _stored_footer(stored: bytes, places: Sequence[range], head: FooterHead) -> StoredFooter:
    content = stored[places[_ROW_GROUPS].start : places[_ROW_GROUPS].stop]
    count = struct_count(content)
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
