"""`StoredValues`: the encoded values of a column in a loaded block, one after the other, as they are in the file.
`JpegFiles` decodes many JPEG images of a column at a time, with the compiled core.

It remembers, for the life of the process, which images were read to their end without an error. For these, it reads
only the rows that a crop needs. So damage is noticed in any part of an image, but the image is read whole only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...base.native import kernels
from ...base.native.jpeg import Parts
from ...base.native.library import address_of
from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...dataset.video.frames import EncodedFrames
from ...parquet.native_decode import OrderedNumbers
from ...plan.selection.rows import RowNumbers
from ...schema.codec import Codec
from ...schema.field import UnischemaField
from ...schema.images import CompressedImageCodec, channel_count
from ...schema.ragged import ends_of
from ..read.file_cells import Part
from ..read.stored_cells import StoredCells, cells_of
from .first_job import in_parts, parts_of

_NOTHING = np.zeros(0, np.int64)
_AT_ONCE = 16  # images in one call, which needs the interpreter lock once and cannot be interrupted
_PIXELS_AT_ONCE = 1 << 24  # small images: more of them, up to so many pixels together; takes 50 to 100 ms
_MOST_INTACT = 1 << 26


class StoredValues:
    """Where the encoded values of a column are. Rows count from the beginning of the block.

    Args:
        parts: the column's part of each row group.

    Attributes:
        in_memory: whether all of them are in memory. Otherwise they are read from the file one by one.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._start = ends_of([len(part) for part in parts])
        # This leaves nothing out, because numbers are not encoded and frames have columns of their own, but type
        # checkers cannot know that.
        encoded = [part for part in parts if not isinstance(part, np.ndarray | OrderedNumbers | EncodedFrames)]
        cells = [cells_of(part) if isinstance(part, pa.Array) else part for part in encoded]
        self._starts = np.concatenate([_NOTHING, *(each.starts for each in cells)])
        self._ends = np.concatenate([_NOTHING, *(each.ends for each in cells)])
        self._data = [
            memoryview(each.data) if isinstance(each, StoredCells) else each.data  # type: ignore[arg-type]
            for each in cells
        ]
        self._arrays = [each.data for each in cells if isinstance(each, StoredCells)]
        self.in_memory = len(self._arrays) == len(self._data)

    def __len__(self) -> int:
        return len(self._starts)

    def bytes_of(self, row: int) -> memoryview:
        """Returns the bytes of a row, valid until this thread requests another row. Raises as `FileData`."""
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return self._data[part][self._starts[row] : self._ends[row]]

    def each(self, rows: np.ndarray) -> Iterator[memoryview]:
        """Iterates over the bytes of many rows. Each item is valid until the next one."""
        parts = np.searchsorted(self._start, rows, side="right") - 1
        places = zip(parts.tolist(), self._starts[rows].tolist(), self._ends[rows].tolist(), strict=True)
        return (self._data[part][start:end] for part, start, end in places)

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the address and the size of each row's bytes, int64, valid as long as this object.

        If they are not `in_memory`, ask for one row at a time: it is valid until this thread requests another one.
        """
        if self.in_memory:
            return self._addresses[rows], self._ends[rows] - self._starts[rows]
        values = [self.bytes_of(row) for row in rows.tolist()]
        return np.array(list(map(address_of, values)), np.int64), np.array(list(map(len, values)), np.int64)

    @cached_property
    def _addresses(self) -> np.ndarray:
        begins = np.array([address_of(each) for each in self._arrays], np.int64)
        addresses: np.ndarray = np.repeat(begins, np.diff(self._start)) + self._starts
        return addresses


@dataclass(frozen=True, slots=True)
class IntactRows:
    """Which values of a stored column were read to their end, for the row groups of a block.

    Attributes:
        keys: names the column of each row group and its version, or ``None`` if it has no lasting name.
        rows: the rows that the block has of each row group.
        totals: the number of rows of each row group.
    """

    keys: Sequence[str | None]
    rows: Sequence[RowNumbers]
    totals: Sequence[int]

    def load(self) -> np.ndarray:
        """Returns which rows of the block are known to be intact; bool."""
        parts = zip(self.keys, self.rows, strict=True)
        known = [_nothing_known(rows) if key is None else _known(key, rows) for key, rows in parts]
        return np.concatenate([np.zeros(0, bool), *known])

    def add(self, rows: np.ndarray) -> None:
        """Remembers rows of the block (numbers in the block; int64)."""
        first = 0
        for key, inside, total in zip(self.keys, self.rows, self.totals, strict=True):
            own_rows = rows[(rows >= first) & (rows < first + len(inside))] - first
            first += len(inside)
            if key is not None and len(own_rows):
                _remember(key, np.asarray(inside, np.int64)[own_rows], total)


_intact: dict[str, np.ndarray] = {}
"""For each column of a row group (`IntactRows.keys`), which of its rows are intact; the least recently made first."""


def _nothing_known(rows: RowNumbers) -> np.ndarray:
    return np.zeros(len(rows), bool)


def _known(key: str, rows: RowNumbers) -> np.ndarray:
    flags = _intact.get(key)
    if flags is None or not len(rows) or rows[-1] >= len(flags):
        return _nothing_known(rows)
    return flags[np.asarray(rows, np.int64)]


def _remember(key: str, rows: np.ndarray, total: int) -> None:
    flags = _intact.get(key)
    if flags is None:
        while sum(map(len, list(_intact.values()))) + total > _MOST_INTACT and _intact:
            _intact.pop(next(iter(_intact)), None)
        flags = _intact.setdefault(key, np.zeros(total, bool))
    flags[rows] = True


class JpegFiles:
    """The images of a column.

    Args:
        stored: the files.
        intact: what is known about the images.
    """

    def __init__(self, stored: StoredValues, *, intact: IntactRows) -> None:
        self._stored = stored
        self._intact = intact
        self._known = intact.load()

    def decode(
        self,
        rows: np.ndarray,
        out: np.ndarray,
        places: np.ndarray,
        *,
        sizes: np.ndarray,
        boxes: np.ndarray | None = None,
        reductions: np.ndarray | None = None,
        flips: np.ndarray | None = None,
        factors: tuple[np.ndarray, np.ndarray] | None = None,
        filter_number: int = 0,
    ) -> np.ndarray:
        """Decodes the images of the given rows, or parts of them, into ``out[places]``. Returns which were decoded.

        Args:
            rows: numbers of rows in the block, none of them null; int64.
            out, factors, filter_number: as for `base.native.jpeg.decode_parts`.
            sizes, boxes, reductions, flips: `base.native.jpeg.Parts.sizes`, ``boxes``, ``factors`` and ``flips``. By
                default, whole images are decoded as they are.
        """
        decoded = np.zeros(len(rows), bool)
        boxes = np.concatenate([np.zeros_like(sizes), sizes], axis=1) if boxes is None else boxes
        reductions = np.ones(len(rows), np.int64) if reductions is None else reductions
        flips = np.zeros(len(rows), np.int64) if flips is None else flips
        reads_all = ~self._known[rows]

        def decode(some: slice) -> None:
            data, lengths = self._stored.places(rows[some])
            parts = Parts(data, lengths, sizes[some], reductions[some], boxes[some], flips[some], reads_all[some])
            decoded[some] = kernels.decode_parts(parts, out, factors, places=places[some], filter_number=filter_number)

        if self._stored.in_memory:
            pixels = max(int(sizes.prod(axis=1).sum()), 1)
            in_parts(len(rows), max(len(rows) * _PIXELS_AT_ONCE // pixels, _AT_ONCE), decode)
        else:
            for some in parts_of(len(rows), 1):
                decode(some)
        new = rows[decoded & reads_all]
        if len(new):
            self._known[new] = True
            self._intact.add(new)
        return decoded


def can_decode(field: UnischemaField, codec: Codec) -> bool:
    """Returns whether the compiled core decodes the images of a field that are JPEG files."""
    return (
        isinstance(codec, CompressedImageCodec)
        and codec.frees_interpreter
        and codec.convert is not False
        and field.dtype == np.uint8
        and channel_count(field.shape) in (1, 3)
        and kernels.decodes_parts()
    )
