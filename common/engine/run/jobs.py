"""Plans the jobs of an iteration.

A `Planner` returns the jobs in order, and `JobSizer` decides how many small steps each of them makes at once.
`block_store` loads the blocks that they draw from, and `loop` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from ...base.errors import SidecarError
from ...base.process.dataclass import dataclass
from ...plan.block_reads import BlockRead
from ...plan.order.cursor import NOTHING, SkipState
from ...plan.plan import BasePlan
from .bad_rows import FailedItem, SkippedItem

_MOST_BLOCKS = 8
_GROWTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPosition:
    """A position in an iteration that skips failing rows: the elements so far, and the rows consumed for them.

    With ``bucket``, ``rows`` counts batches, and ``left_out`` says what is left out of them.
    """

    elements: int
    rows: int
    left_out: SkipState = NOTHING


Skip: TypeAlias = tuple[int, SkippedItem]
"""A row that is left out, and its position among the rows of its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPosition:
    """The position of a job among the rows of its part, some of which were left out.

    Attributes:
        begin: the position before the job.
        end: the number of rows consumed after the job.
        skips: the rows that are left out before the job's last row.
        left_out: with ``bucket``, what is left out up to the end of the job.
        ends: the number of rows consumed after each element. Empty if the rows of the job are consecutive.
    """

    begin: SkipPosition
    end: int
    skips: tuple[Skip, ...]
    left_out: SkipState = NOTHING
    ends: tuple[int, ...] = ()

    def end_of(self, element: int, elements: int, rows: int) -> int:
        """Returns the number of rows consumed after the ``element``-th of ``elements``; each has ``rows``."""
        return self.ends[element - 1] if self.ends else self.end - (elements - element) * rows

    def part(self, first: int, last: int, elements: int, rows: int) -> JobPosition:
        """Returns the place of the elements from ``first`` to ``last``; each has ``rows`` rows."""
        end = self.end_of(last, elements, rows)
        begin = self.begin
        if first:
            begin = SkipPosition(elements=begin.elements + first, rows=self.end_of(first, elements, rows))
        skips = tuple(skip for skip in self.skips if begin.rows <= skip[0] < end)
        return replace(self, begin=begin, end=end, skips=skips, ends=self.ends[first:last])


class UnfinishedJobError(SidecarError):
    """The workers that ran a job ended, one after the other. Readers catch this class and repeat the job in halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One or more steps that are made at once: batches, or a chunk of rows.

    Attributes:
        number: the number of the job, counted from the beginning of the iteration.
        count: the number of rows of all steps.
        elements: the number of elements: batches, or the rows of a chunk.
        reads: which items to take from which block.
        first: the number of elements before it, as a state counts them.
        place: the position of the job, if rows that fail are left out.
        bounds: if the steps may differ in size, the row at which each begins, and ``count``.
        is_suspect: whether it is a part of a job that ended several workers.
        is_trial: whether it is made only to see its error, so that its rows may be made apart from each other.
    """

    number: int
    steps: int
    count: int
    elements: int
    reads: tuple[BlockRead, ...]
    first: int = 0
    place: JobPosition | None = None
    bounds: tuple[int, ...] = ()
    is_suspect: bool = False
    is_trial: bool = False

    @property
    def has_halves(self) -> bool:
        """Whether the job can be repeated in halves."""
        return (self.count if self.is_trial else self.elements) > 1

    @property
    def rows_of_parts(self) -> list[int]:
        """The number of rows of each part that is made apart: of each step if they may differ in size, or of all."""
        return [last - first for first, last in pairwise(self.bounds)] if self.bounds else [self.count]

    def halves(self) -> list[tuple[Job, list[int]]]:
        """Returns the `part` with each half of the elements, in order."""
        middle = self.elements // 2
        return [self.part(0, middle), self.part(middle, self.elements)]

    def part(self, first: int, last: int) -> tuple[Job, list[int]]:
        """Returns a job with the elements from ``first`` to ``last``, and the numbers of the reads that it uses."""
        rows = self.count // self.elements
        begin, end = (self.bounds[first], self.bounds[last]) if self.bounds else (first * rows, last * rows)
        kept = []
        for number, read in enumerate(self.reads):
            places = np.arange(len(read.items)) if read.places is None else read.places
            in_part = (places >= begin) & (places < end)
            if in_part.any():
                kept.append((number, read.some(in_part, places[in_part] - begin)))
        elements = last - first
        part = replace(
            self,
            steps=min(self.steps, elements),
            count=end - begin,
            elements=elements,
            reads=tuple(read for _, read in kept),
            first=self.first + first,
            place=None if self.place is None else self.place.part(first, last, self.elements, rows),
            bounds=tuple(bound - begin for bound in self.bounds[first : last + 1]),
        )
        return part, [number for number, _ in kept]


class JobSizer:
    """How many small steps to make at once, which grows from one as steps arrive. It affects only the speed.

    The first step comes alone, as soon as possible. Later jobs hold more steps while they stay small and take their
    rows from few blocks, because a job waits for all of its blocks. Only one thread plans jobs, but `made` may be
    called in any thread.

    Args:
        most: the maximum number of steps; also an attribute.
        most_bytes: what the steps of a job may take in memory.
    """

    def __init__(self, most: int = 1, most_bytes: int = 0) -> None:
        self.most = most
        self._most_bytes = most_bytes
        self._by_size = 1
        self._by_blocks = most

    @classmethod
    def of(cls, plan: BasePlan, job_bytes: int, workers: int) -> JobSizer:
        """Returns the job sizer of a plan whose jobs may take ``job_bytes``; see `BasePlan.merged_steps`."""
        return cls(plan.merged_steps(job_bytes, workers), plan.merged_bytes(job_bytes, workers))

    @property
    def steps(self) -> int:
        """How many steps the next job may hold."""
        return max(min(self.most, self._by_size, self._by_blocks), 1)

    def planned(self, steps: int, blocks: int) -> None:
        """Notes from how many blocks a job takes its rows."""
        self._by_blocks = self.most if blocks <= 1 else max(_MOST_BLOCKS * steps // blocks, 1)

    def made(self, steps: int, num_bytes: int) -> None:
        """Notes how many bytes the steps of a job take."""
        if steps >= self._by_size or num_bytes > self._most_bytes:
            self._by_size = min(_GROWTH * steps, self._most_bytes * steps // max(num_bytes, 1))


class Planner:
    """Plans the jobs of one iteration, in order, and decides what becomes of rows that fail. Here, they are errors.

    Attributes:
        job_sizer: how many steps a job may hold.

    Args:
        jobs: the jobs. Subclasses make their own.
    """

    job_sizer: JobSizer

    def __init__(self, jobs: Iterator[Job]) -> None:
        self.job_sizer = JobSizer()
        self._jobs = jobs

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        return next(self._jobs)

    def plan_again(self, job: Job, find: Callable[[], list[FailedItem]]) -> bool:
        """Plans a failed job, or a part of one, and the jobs after it again without the rows that fail.

        Args:
            find: finds the items that fail alone, in this job and in those after it.

        Returns:
            Whether they are planned again. Otherwise, the errors of the job's elements belong to the consumer.
        """
        return False

    def passed(self, job: Job) -> Sequence[tuple[int, SkipState]]:
        """Counts the rows that a job left out. Call it when the job, or its error, is delivered.

        Returns:
            The elements of the job at which the left-out rows change, each with the new state.
        """
        return ()

    def finish(self) -> None:
        """Ends the iteration, after its last job.

        Raises:
            DatasetError: remote files have changed since the iteration began.
        """
