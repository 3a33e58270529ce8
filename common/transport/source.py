"""The interface of all transports: a pipeline passes a `StepRequest` and gets a `StepSource`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..base.metrics.counters import Counters
from ..base.process.dataclass import dataclass
from ..engine.read.column_reader import TableCache
from ..plan.options import Options
from ..plan.order.cursor import Cursor, SkipState
from ..plan.plan import BasePlan
from ..plan.program import ElementProgram, MixedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A request for the steps of one iteration.

    Attributes:
        plan: the pipeline's plan.
        program: the plan's program, which says whether a null is an error, because the consumer cannot represent it.
        cursor: where the iteration begins, and which part of the elements it covers.
        threads: the number of steps that are decoded at once.
        memory_limit: the bytes allowed for encoded blocks in flight, and for decoded steps that wait for the consumer.
        executor: ``"threads"``, ``"sidecar"``, or ``"server"`` if a server makes the steps.
        options: the options as given; the attributes above are derived from them.
        describe: the pipeline as JSON, for another process.
        versions: the versions of the datasets that the pipeline reads, for another process.
        counters: where the work for this request is counted.
        shared: row groups that loader workers share.
    """

    plan: BasePlan
    program: ElementProgram | MixedProgram
    cursor: Cursor
    threads: int
    memory_limit: int
    executor: str
    options: Options
    describe: Callable[[], dict[str, Any]]
    versions: Callable[[], list[str]]
    counters: Counters
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
