"""Names the stored rows of a job, and says what the job is waiting for, for errors and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...plan.draws import BlockRows, Draw
from ..read.external_images import ListedPlace
from .block_store import BlockHandle
from .jobs import Job

_MOST_ROW_GROUPS = 3
_MOST_ROWS = 8


class RowGroupPlaces(Protocol):
    """Knows where row groups are stored: a `Fetcher`, or an object that has one."""

    def places(self, row_groups: Sequence[int]) -> list[str]:
        """Describes the file and number of each row group."""


def describe_rows(draws: Sequence[Draw], rows: Sequence[BlockRows], places: Sequence[RowGroupPlaces]) -> str:
    """Names files, row groups and rows.

    Args:
        draws: what a job draws from blocks.
        rows: the rows of these blocks.
        places: describes row groups, for each source.
    """
    named: dict[str, np.ndarray] = {}
    for draw, block in zip(draws, rows, strict=True):
        stored = block.stored_rows(draw.items)
        row_groups = places[draw.key.source].places(list(stored))
        for place, numbers in zip(row_groups, stored.values(), strict=True):
            named[place] = np.union1d(named[place], numbers) if place in named else numbers
    some = [_describe_rows_of(place, numbers) for place, numbers in list(named.items())[:_MOST_ROW_GROUPS]]
    return "; ".join(some) + _more(len(named) - len(some), "row group")


def describe_wait(job: Job, handles: Sequence[BlockHandle], places: Sequence[RowGroupPlaces]) -> str:
    """Describes what a job waits for: storage, or decoding and functions, and for which rows."""
    loading = [handle for handle in handles if not handle.future.done()]
    if not loading:
        rows = [handle.rows for handle in handles if handle.rows is not None]
        about = f": {describe_rows(job.draws, rows, places)}" if len(rows) == len(handles) else ""
        return f"a decoder or a function is working on them{about}"
    groups = [
        place
        for handle in loading
        if handle.rows is not None
        for place in places[handle.key.source].places(handle.rows.row_groups)
    ]
    some = groups[:_MOST_ROW_GROUPS]
    about = f": {'; '.join(some)}{_more(len(groups) - len(some), 'row group')}" if groups else ""
    blocks = "1 block has" if len(loading) == 1 else f"{len(loading)} blocks have"
    return f"{blocks} not been read yet, by the storage or by Parquet's decoder{about}"


def _describe_rows_of(place: str, rows: np.ndarray) -> str:
    first, last, count = int(rows[0]), int(rows[-1]), len(rows)
    if count == 1:
        return place.describe(first) if isinstance(place, ListedPlace) else f"{place}, row {first}"
    if last - first == count - 1:
        return f"{place}, rows {first} to {last}"
    return f"{place}, rows {', '.join(map(str, rows[:_MOST_ROWS].tolist()))}{_more(count - _MOST_ROWS, 'row')}"


def _more(count: int, what: str) -> str:
    return f" and {count} more {what}{'s' * (count > 1)}" if count > 0 else ""
