"""Finds the items that make a job fail, by repeating it in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...errors import ELEMENT_ERRORS, DatasetError
from .bad_rows import Failing
from .jobs import Handle, Job

Make = Callable[[Job, list[Handle]], Callable[[], object]]
"""Starts a job only to see its errors. Returns a function that waits for the job and raises its error."""


def failing_items(job: Job, handles: Sequence[Handle], make: Make) -> list[Failing]:
    """Returns the items of a failed job that fail alone.

    The job is repeated in halves until a single item fails. An error that no item causes alone belongs to none of them.
    """
    if job.count == 1:
        wait = make(job, list(handles))
        try:
            wait()
        except ELEMENT_ERRORS as error:
            return [_named(job, error)]
        return []
    rows = replace(job, steps=1, elements=job.count)
    found = []
    for half, numbers in rows.halves():
        mine = [handles[number] for number in numbers]
        if half.count == 1:
            found += failing_items(half, mine, make)
            continue
        wait = make(replace(half, elements=1), mine)
        try:
            wait()
        except ELEMENT_ERRORS:
            found += failing_items(half, mine, make)
    return found


def _named(job: Job, error: BaseException) -> Failing:
    """Returns the only item of a job. An item of joined tokens has the name of its first piece."""
    for draw in job.draws:
        if draw.spans is None:
            return Failing(draw.key, int(draw.items[0]), None, error)
        first = np.flatnonzero(draw.spans[:, 2] == 0)
        if len(first):
            return Failing(draw.key, int(draw.items[first[0]]), int(draw.spans[first[0], 0]), error)
    raise AssertionError("an item without a first piece")


def check_blocks(handles: Sequence[Handle]) -> None:
    """Raises `DatasetError` if a whole block failed to load, because its rows cannot be tested one by one."""
    for handle in handles:
        error = handle.future.exception()
        if isinstance(error, ELEMENT_ERRORS):
            raise DatasetError(
                f"on_error='skip': expected rows that fail one by one, got a row that makes the whole block that it is "
                f"loaded with fail: {error}"
            ) from error
