"""Finds the items that make a job fail, by repeating it in parts. Names the stored rows of a job, and says what the job
is waiting for, for errors and warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ...base.errors import ELEMENT_ERRORS, DatasetError
from ...plan.block_reads import BlockRead, BlockRows
from ..read.external_images import ListedPlace
from .bad_rows import FailedItem
from .block_store import BlockHandle
from .jobs import Job, UnfinishedJobError

_FEWEST_TRIED = 16

Make = Callable[[Job, list[BlockHandle]], object]
"""Makes a job only to see its error, which it raises."""
_MOST_ROW_GROUPS = 3
_MOST_ROWS = 8


def failing_items(job: Job, error: BaseException, handles: Sequence[BlockHandle], make: Make) -> list[FailedItem]:
    """Returns the items of a failed job that also fail alone.

    If the error names an item, that one and those after it are tried. Otherwise, the job is repeated in halves until a
    single item fails. An error that no item causes alone belongs to none of them.
    """
    whole = _Trial(replace(job, steps=1, elements=job.count, place=None, bounds=()), handles, make)
    return whole.failing(error)


class _Trial:
    """Items of a job, to be made apart from the others."""

    def __init__(self, job: Job, handles: Sequence[BlockHandle], make: Make) -> None:
        self._job = job
        self._handles = handles
        self._make = make

    def error(self) -> BaseException | None:
        """Makes the items in one piece, and returns the error."""
        try:
            self._make(replace(self._job, elements=1, is_trial=True), list(self._handles))
        except ELEMENT_ERRORS as error:
            return error
        except UnfinishedJobError as error:
            if self._job.count == 1:
                raise
            return error
        return None

    def failing(self, error: BaseException) -> list[FailedItem]:
        """Returns the items that fail alone, after all of them failed together with an error."""
        count = self._job.count
        if count == 1:
            return [_named(self._job, error)]
        item = getattr(error, "item", None)
        if item is not None and 0 <= item < count and (failures := self._failing_in(item, item + 1)):
            return failures + self._failing_from(item + 1)
        middle = count // 2
        return self._failing_in(0, middle) + self._failing_in(middle, count)

    def _failing_from(self, first: int) -> list[FailedItem]:
        """Tries as many items at once as are likely to have one or two that fail."""
        failures: list[FailedItem] = []
        step = max(_FEWEST_TRIED, 2 * first)
        while first < self._job.count:
            end = min(first + step, self._job.count)
            failures += self._failing_in(first, end)
            first = end
        return failures

    def _failing_in(self, first: int, end: int) -> list[FailedItem]:
        part = self._part(first, end)
        error = part.error()
        return [] if error is None else part.failing(error)

    def _part(self, first: int, end: int) -> _Trial:
        job, numbers = self._job.part(first, end)
        return _Trial(job, [self._handles[number] for number in numbers], self._make)


def _named(job: Job, error: BaseException) -> FailedItem:
    """Returns the only item of a job. An item of joined tokens is named after its first piece."""
    for read in job.reads:
        if read.spans is None:
            return FailedItem(read.key, int(read.items[0]), None, error)
        first = np.flatnonzero(read.spans[:, 2] == 0)
        if len(first):
            return FailedItem(read.key, int(read.items[first[0]]), int(read.spans[first[0], 0]), error)
    raise AssertionError("an item without a first piece")


def check_blocks(handles: Sequence[BlockHandle]) -> None:
    """Raises `DatasetError` if a whole block failed to load, because its rows cannot be tested one by one."""
    for handle in handles:
        error = handle.future.exception()
        if isinstance(error, ELEMENT_ERRORS):
            raise DatasetError(
                f"on_error='skip': cannot skip a bad row that prevents its whole block from loading: {error}"
            ) from error


class RowGroupPlaces(Protocol):
    """Knows where row groups are stored: a `Fetcher`, or an object that has one."""

    def places(self, row_groups: Sequence[int]) -> list[str]:
        """Describes the file and number of each row group."""


def describe_rows(reads: Sequence[BlockRead], rows: Sequence[BlockRows], places: Sequence[RowGroupPlaces]) -> str:
    """Names files, row groups and rows."""
    named: dict[str, np.ndarray] = {}
    for read, block in zip(reads, rows, strict=True):
        stored = block.stored_rows(read.items)
        row_groups = places[read.key.source].places(list(stored))
        for place, numbers in zip(row_groups, stored.values(), strict=True):
            named[place] = np.union1d(named[place], numbers) if place in named else numbers
    some = [_describe_rows_of(place, numbers) for place, numbers in list(named.items())[:_MOST_ROW_GROUPS]]
    return "; ".join(some) + _more(len(named) - len(some), "row group")


def describe_wait(job: Job, handles: Sequence[BlockHandle], places: Sequence[RowGroupPlaces]) -> str:
    """Describes what a job waits for: storage, or decoding and functions, and for which rows."""
    loading = [handle for handle in handles if not handle.future.done()]
    if not loading:
        rows = [handle.rows for handle in handles if handle.rows is not None]
        about = f": {describe_rows(job.reads, rows, places)}" if rows and len(rows) == len(handles) else ""
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
