"""The interface of all transports: a pipeline passes a `StepRequest` and gets a `StepSource`.

A job or a message of the sidecar holds many small steps, which a `StepRun` hands over one at a time. Cutting its
columns once, and making the arrays of a step when it is taken, costs a fraction of doing both for each step: the arrays
reuse memory that the previous step has just left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from ...base.metrics.counters import Counters
from ...base.process.dataclass import dataclass
from ...plan.options import Options
from ...plan.order.cursor import Cursor, SkipState
from ...plan.plan import BasePlan
from ...plan.program import ElementProgram, MixedProgram
from ..columns.batch import Column, split_column
from ..read.column_reader import TableCache

Converter = Callable[[Sequence[Column], int], Iterable[Any]]
"""Converts the columns of several steps, and the number of steps, to one value for each step."""


def split_columns(columns: Sequence[Column], parts: int) -> list[list[Column]]:
    """Cuts columns into equal parts along their first axis, and returns the columns of each: the simplest converter."""
    return [list(part) for part in zip(*(split_column(column, parts) for column in columns), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A request for the steps of one iteration.

    Attributes:
        plan: the pipeline's plan.
        program: the plan's program, which says whether a null is an error, because the consumer cannot represent it.
        cursor: where the iteration begins, and which part of the elements it covers.
        executor: ``"threads"``, ``"sidecar"``, or ``"server"`` if a server makes the steps.
        describe: the pipeline as JSON, for another process.
        versions: the versions of the datasets that the pipeline reads, for another process.
        counters: where the work for this request is counted.
        converter: converts each step to the value that is returned.
        shared: row groups that loader workers share.
    """

    plan: BasePlan
    program: ElementProgram | MixedProgram
    cursor: Cursor
    executor: str
    options: Options
    describe: Callable[[], dict[str, Any]]
    versions: Callable[[], list[str]]
    counters: Counters
    converter: Converter = split_columns
    shared: TableCache | None = None


class StepSource(Protocol):
    """Makes the steps of one iteration, in order. One consumer at a time; `close` may come from any thread."""

    @property
    def position(self) -> int:
        """The number of elements consumed up to the end of the last step, as a state counts them.

        In an unbatched pipeline, each row of a chunk counts as one element.
        """

    @property
    def skipped(self) -> SkipState:
        """What was left out before that position; nothing if failed rows raise errors."""

    @property
    def ready(self) -> int:
        """The number of further steps that have arrived together with the last one. They have as many rows."""

    def __next__(self) -> tuple[int, Any]:
        """Returns the next step: its number of rows, and a column for each output (or the requested form).

        Raises:
            DecodeError, NullValueError, TransformError: an element failed. `position` is already past it, and the next
                call returns the step after it.
        """

    def close(self) -> None:
        """Stops all work. Idempotent."""


class StepRun:
    """The steps in some columns, in order.

        >>> run = StepRun(split_columns, [([Dense(np.arange(6))], 3, 2)])
        >>> run.take(), run.rows, run.left
        ([Dense(values=array([0, 1]), valid=None)], 2, 2)

    Attributes:
        left: how many steps were not taken yet.
        rows: the number of rows of the step taken last.

    Args:
        converter: converts columns; called once for each part.
        parts: what was made at once: the columns, how many steps of equal size they hold, and the rows of each step.
    """

    __slots__ = ("_here", "_parts", "_values", "left", "rows")

    def __init__(self, converter: Converter, parts: Iterable[tuple[Sequence[Column], int, int]]) -> None:
        self._parts = deque((iter(converter(columns, steps)), steps, rows) for columns, steps, rows in parts)
        self.left = sum(steps for _, steps, _ in self._parts)
        self._values: Iterator[Any] = iter(())
        self._here = self.rows = 0

    def take(self) -> Any:
        """Returns the next step. There must be one.

        After the last step of a part, its columns are released: only the steps you hold keep their memory.
        """
        if not self._here:
            self._values, self._here, self.rows = self._parts.popleft()
        self._here -= 1
        self.left -= 1
        value = next(self._values)
        if not self._here:
            self._values = iter(())
        return value


NO_STEPS = StepRun(lambda columns, steps: (), ())
"""A run that has ended."""


class RunSource:
    """A `StepSource` that receives several steps at once. Subclasses set `position` and `_run` in `_receive`."""

    def __init__(self, request: StepRequest) -> None:
        self._converter = request.converter
        self.position = request.cursor.start
        self.skipped = request.cursor.skipped
        self._batched = request.plan.element.batched
        self._run = NO_STEPS
        self._changes: deque[tuple[int, SkipState]] = deque()  # (position, what is left out from there on)

    def __next__(self) -> tuple[int, Any]:
        while not (run := self._run).left:
            self._receive()
        step = run.take()
        self.position += 1 if self._batched else run.rows
        if self._changes:
            self._note_skipped()
        return run.rows, step

    @property
    def ready(self) -> int:
        """As `StepSource`."""
        return self._run.left

    def _receive(self) -> None:
        """Waits for the next steps. Raises ``StopIteration`` at the end."""
        raise NotImplementedError

    def _note_skipped(self) -> None:
        while self._changes and self._changes[0][0] <= self.position:
            _, self.skipped = self._changes.popleft()
