"""`IndexFooters`: what footers say about row groups, from the row-group index, so that no footer has to be read.

It takes the number of a row group and the columns to read, and returns a `GroupFooter`, or ``None`` if only the footer
has them. The columns of an index are read as they are needed, a row group of the index at a time.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError
from ..base.memory.arrow_views import as_arrow, as_numpy
from ..base.native.parquet import RowGroupBytes
from ..base.process.forks import cached_property, pc
from ..parquet.chunk_statistics import leaf_columns
from ..parquet.footer_check import check_footer
from ..parquet.footer_head import FooterHead, FooterPart, around_chunks, read_head
from ..parquet.group_footers import CutFooter, GroupFooter, kept_cut, read_group_footers
from ..storage.files import DataFile
from ..storage.temporary import NoRoomError
from .index_file import IndexFile
from .index_format import head_from_text

_CHUNKS_AT_ONCE = 1 << 15


class UnreadableIndexError(DatasetError):
    """The index cannot be read, so the footers have to be. Never leaves this room."""


class IndexFooters:
    """The footers of the row groups of one index file. Thread-safe."""

    def __init__(self, index: IndexFile) -> None:
        self._index = index
        self._ends = np.cumsum(index.footer.rows)
        self._sources: dict[tuple[int, int], IndexedGroups] = {}
        self._heads: dict[int, IndexedHead] = {}

    def head(self, line: int) -> FooterHead | None:
        """Returns the head of the file that has the row group of a line.

        Raises:
            UnreadableIndexError: it is damaged.
        """
        number = int(self._index.heads[line])
        return None if number < 0 else self._head(number).head

    def group_footers(
        self, lines: Sequence[int], file: DataFile, names: frozenset[str] | None
    ) -> list[GroupFooter] | None:
        """Returns what the index says about the row groups of some lines, which are of one file and ascend.

        Args:
            names: the dotted names of the fields that are read; ``None`` for all columns of the file.

        Returns:
            ``None`` if only the footer describes them.

        Raises:
            UnreadableIndexError: the index is damaged, or was replaced.
            DatasetError: the file cannot have such a row group.
        """
        number = int(self._index.heads[lines[0]])
        if number < 0 or not self._head(number).covers(names):
            return None
        described: list[GroupFooter] = []
        while len(described) < len(lines):
            first = len(described)
            piece = int(np.searchsorted(self._ends, lines[first], side="right"))
            last = bisect_left(lines, int(self._ends[piece]))
            source = self._source(piece, number)
            described += read_group_footers(source, [source.place(line) for line in lines[first:last]], file, names)
        return described

    def _source(self, piece: int, number: int) -> IndexedGroups:
        source = self._sources.get((piece, number))
        if source is None:
            lines = range(int(self._ends[piece - 1]) if piece else 0, int(self._ends[piece]))
            source = IndexedGroups(self._index, piece, lines, number, self._head(number))
            source = self._sources.setdefault((piece, number), source)
        return source

    def _head(self, number: int) -> IndexedHead:
        head = self._heads.get(number)
        if head is None:
            head = self._heads.setdefault(number, IndexedHead(self._index, number))
        return head


class IndexedHead:
    """A head of files, and in which columns of the index their chunks are described."""

    def __init__(self, index: IndexFile, number: int) -> None:
        try:
            bare = head_from_text(index.description.heads[number])
            self.head = read_head(bare)
            check_footer(bare, self.head.empty, len(bare))
        except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, zlib.error) as error:
            raise UnreadableIndexError(
                f"row-group index {index.version.shown_path}: expected a valid head of files, got: {error!r}."
            ) from error
        described = frozenset(index.description.leaves)
        names = {number: path for path, number in leaf_columns(self.head.empty).items() if path in described}
        self._columns = [names.get(number) for number in range(self.head.empty.num_columns)]
        self._covered: dict[frozenset[str] | None, bool] = {}

    def covers(self, names: frozenset[str] | None) -> bool:
        """Whether the index describes the columns that are read for these names."""
        if names not in self._covered:
            chosen = self._chosen(self.head.part(names))
            self._covered[names] = bool(chosen) and None not in chosen
        return self._covered[names]

    def columns(self, part: FooterPart) -> list[str]:
        """Returns the columns of the index for those of a part, in their order."""
        return [f"chunk:{leaf}" for leaf in self._chosen(part)]

    def _chosen(self, part: FooterPart) -> list[str | None]:
        return [leaf for leaf, is_chosen in zip(self._columns, part.leaves, strict=True) if is_chosen]


class IndexedGroups:
    """The lines of a row group of the index whose files have the same head; a `GroupSource`.

    Args:
        lines: the lines of the row group of the index.
        number: that of the head.
    """

    def __init__(self, index: IndexFile, piece: int, lines: range, number: int, head: IndexedHead) -> None:
        self._index, self._piece, self._lines, self._number, self._head = index, piece, lines, number, head
        self.key = f"{index.version.key}\0{piece}\0{number}"

    @cached_property
    def _own(self) -> np.ndarray:
        """Which of the lines have the head."""
        own: np.ndarray = self._index.heads[self._lines.start : self._lines.stop] == self._number
        return own

    @cached_property
    def _places(self) -> np.ndarray | None:
        return None if self._own.all() else np.cumsum(self._own) - 1

    def place(self, line: int) -> int:
        """Returns the number of a line among those with the head."""
        place = line - self._lines.start
        return place if self._places is None else int(self._places[place])

    def cut(self, names: frozenset[str] | None) -> CutFooter:
        """Raises `UnreadableIndexError` if the index is damaged, or was replaced."""
        part = self._head.head.part(names)
        columns = self._head.columns(part)
        index = self._index
        try:
            return index.reading(
                columns, lambda reader: kept_cut(part, self._portions(reader, columns), index.version.shown_path)
            )
        except (DatasetError, NoRoomError) as error:
            raise UnreadableIndexError(str(error)) from error

    def _portions(self, reader: pq.ParquetFile, columns: Sequence[str]) -> Iterator[RowGroupBytes]:
        at_once = max(1, _CHUNKS_AT_ONCE // len(columns))
        batches = reader.iter_batches(at_once, row_groups=[self._piece], columns=list(columns), use_threads=False)
        place = 0
        for batch in batches:
            own = self._own[place : place + batch.num_rows]
            first = self._lines.start + place
            rows = as_numpy(self._index.rows.slice(first, batch.num_rows))[own]
            place += batch.num_rows
            if len(own) != batch.num_rows:
                break
            chunks = batch.select(columns)
            yield _joined(chunks if own.all() else chunks.take(as_arrow(np.flatnonzero(own))), rows)
        if place != len(self._lines):
            raise ValueError(f"expected {len(self._lines)} lines, got others")


def _joined(chunks: pa.RecordBatch, rows: np.ndarray) -> RowGroupBytes:
    """Puts row groups together from the descriptions of their chunks."""
    if not len(rows):
        return RowGroupBytes(b"", rows, rows)
    counts, numbers = np.unique(rows, return_inverse=True)
    around = [around_chunks(chunks.num_columns, count) for count in counts.tolist()]
    before, after = (_as_arrow(each).take(as_arrow(numbers)) for each in zip(*around, strict=True))
    joined = pc.binary_join_element_wise(before, *chunks.columns, after, _as_arrow([b""])[0])
    _, offsets, content = joined.buffers()
    ends = np.frombuffer(offsets, np.int32, len(joined) + 1)[1:].astype(np.int64)
    return RowGroupBytes(content.to_pybytes(), ends, rows)


def _as_arrow(parts: Sequence[bytes]) -> pa.Array:
    """As ``pa.array``, which imports pandas."""
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(parts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))])
