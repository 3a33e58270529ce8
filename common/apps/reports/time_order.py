"""Finds out which rows follow each other in time, from a sample of rows: the order that windows over them need.

`timed_pieces` reads the times, and columns that may say which recording a row belongs to. `time_order` takes these
arrays and returns a `TimeOrder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.types import is_temporal

from ...base.memory.arrow_views import as_numpy
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...parquet.chunk_statistics import flat_columns
from ...parquet.nested import one_array

_ROWS_PER_RUN = 4  # a column that changes more often does not name recordings
_MOST_ROWS, _MOST_RESETS, _MOST_GROUPS = 20_000, 4, 12
_REGULAR = 0.9  # of the steps in time


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOrder:
    """Which rows follow each other in time.

    Attributes:
        group: the column that tells recordings apart; ``None`` if no column does.
        rows: the number of rows in the sample.
        resets: how often the time goes backward.
        pairs: the windows of two rows in stored order: rows of one group whose times do not go backward.
        sorted_pairs: the same if the rows are sorted by group and time.
    """

    group: str | None
    rows: int
    resets: int
    pairs: int
    sorted_pairs: int

    @property
    def gains(self) -> bool:
        """Whether sorting makes far more windows."""
        return self.sorted_pairs > 1.1 * self.pairs


Piece = tuple[np.ndarray, Mapping[str, np.ndarray]]
"""Times, int64 or float64 ``[rows]``, and the codes of columns by name, int64 ``[rows]``, of consecutive rows."""


def time_order(pieces: Sequence[Piece]) -> TimeOrder:
    """Finds the column that changes where time starts again, and counts windows.

    If time never starts again, rows of several recordings may alternate. Then the steps in time are regular only within
    the values of a column.
    """
    names = [name for name in pieces[0][1] if all(name in columns for _, columns in pieces)] if pieces else []
    resets = sum(int(_goes_back(times).sum()) for times, _ in pieces)
    group = _changes_at_resets(pieces, names, resets) if resets else None
    if group is None and not _is_regular(pieces, None):
        group = next((name for name in names if _is_regular(pieces, name)), None)
    return TimeOrder(
        group=group,
        rows=sum(len(times) for times, _ in pieces),
        resets=resets,
        pairs=sum(_pairs(times, _groups(columns, group, len(times))) for times, columns in pieces),
        sorted_pairs=sum(
            len(times) - len(np.unique(_groups(columns, group, len(times)))) for times, columns in pieces if len(times)
        ),
    )


def _changes_at_resets(pieces: Sequence[Piece], names: Sequence[str], resets: int) -> str | None:
    """The column with the fewest changes among those that change wherever the time goes backward."""
    changes: dict[str, int] = {}
    for name in names:
        count = 0
        for times, columns in pieces:
            codes = columns[name]
            changed = codes[1:] != codes[:-1]
            if not changed[_goes_back(times)].all():
                break
            count += int(changed.sum())
        else:
            changes[name] = count
    rows = sum(len(times) for times, _ in pieces)
    few = {name: count for name, count in changes.items() if count <= 4 * resets + 4 and rows >= _ROWS_PER_RUN * count}
    return min(few, key=few.__getitem__) if few else None


def _is_regular(pieces: Sequence[Piece], group: str | None) -> bool:
    """Whether nearly all steps in time are alike, between rows of one group."""
    steps, groups, rows = [], 0, 0
    for times, columns in pieces:
        codes = _groups(columns, group, len(times))
        order = np.lexsort((times, codes))
        within = codes[order][1:] == codes[order][:-1]
        steps.append(np.diff(times[order])[within])
        groups, rows = groups + len(np.unique(codes)), rows + len(times)
    every = np.concatenate(steps) if steps else np.zeros(0)
    ahead = every[every > 0]
    if not len(ahead) or rows < _ROWS_PER_RUN * groups:
        return False
    usual = np.median(ahead)
    return bool(np.mean(np.abs(every - usual) <= usual / 2) >= _REGULAR)


def _pairs(times: np.ndarray, codes: np.ndarray) -> int:
    return int(((codes[1:] == codes[:-1]) & ~_goes_back(times)).sum())


def _goes_back(times: np.ndarray) -> np.ndarray:
    return times[1:] < times[:-1]


def _groups(columns: Mapping[str, np.ndarray], group: str | None, rows: int) -> np.ndarray:
    return np.zeros(rows, np.int64) if group is None else columns[group]


def timed_pieces(dataset: StoredDataset, name: str, groups: Sequence[str], back: np.ndarray) -> list[Piece]:
    """Reads the beginning of the first file, and some places where time starts again.

    Args:
        name: the field of times.
        groups: the columns that may tell recordings apart.
        back: the row groups of which the next one has earlier times.
    """
    rows = dataset.row_groups.rows
    begin = range(
        min(int(np.searchsorted(np.cumsum(rows), _MOST_ROWS)) + 1, int(np.searchsorted(dataset.row_groups.file, 1)))
    )
    few = [n for n in back if n + 1 not in begin and rows[n : n + 2].sum() <= 10 * _MOST_ROWS]
    some = few[:: max(len(few) // _MOST_RESETS, 1)][:_MOST_RESETS]
    runs = [begin, *(range(number, number + 2) for number in some)]
    pieces = [_timed_rows(dataset, run, name, groups[:_MOST_GROUPS]) for run in runs if len(run)]
    return [piece for piece in pieces if piece is not None]


def _timed_rows(dataset: StoredDataset, run: range, name: str, groups: Sequence[str]) -> Piece | None:
    file = int(dataset.row_groups.file[run[0]])
    stored = {each: dataset.stored_name(file, each) for each in (name, *groups)}
    with dataset.open(file) as source:
        reader = pq.ParquetFile(source)
        flat = flat_columns(reader.metadata)
        places = {each: place for each, place in stored.items() if place is not None and place in flat}
        if name not in places:
            return None
        numbers = [int(dataset.row_groups.group[number]) for number in run]
        batches: list[pa.RecordBatch] = []
        for batch in reader.iter_batches(_MOST_ROWS, row_groups=numbers, columns=[*places.values()]):
            batches.append(batch)  # each is of one row group
            if sum(map(len, batches)) >= 10 * _MOST_ROWS:
                break
    if not batches:
        return None
    table = pa.Table.from_batches(batches)
    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()  # the columns get dotted paths
    table = table.filter(table.column(places[name]).is_valid())
    times = one_array(table.column(places[name]))
    times = times.cast(pa.int32() if times.type.bit_width == 32 else pa.int64()) if is_temporal(times.type) else times
    return as_numpy(times), {each: _codes(table.column(place)) for each, place in places.items() if each != name}


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return as_numpy(one_array(column).dictionary_encode(null_encoding="encode").indices)
