"""The seam of transport: what a pipeline asks for (`StepRequest`), and what every transport gives (`StepSource`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..counting.counters import Counters
from ..order.cursor import Cursor
from ..plan.options import Options
from ..plan.plan import BasePlan
from .served.address import ServerAddress

DEFAULT_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """The steps of one iteration.

    Attributes:
        plan: of the pipeline.
        cursor: where it begins, and which part it is.
        strict_nulls: whether a null is an error (where the consumer has no form for it).
        threads: how many steps are decoded at once.
        memory_limit: bytes of encoded blocks in flight, and of decoded steps that wait for the consumer.
        executor: ``"threads"`` or ``"sidecar"``.
        options: as they were given; those above are what has come of them.
        address: the server that makes the steps instead, if one does.
        describe: the pipeline as JSON, for another process.
        versions: of the datasets that the pipeline reads, for another process.
        counters: of what is done for it.
    """

    plan: BasePlan
    cursor: Cursor
    strict_nulls: bool
    threads: int
    memory_limit: int
    executor: str
    options: Options
    address: ServerAddress | None
    describe: Callable[[], dict[str, Any]]
    versions: Callable[[], list[str]]
    counters: Counters


class StepSource(Protocol):
    """Makes the steps of one iteration, in order. One consumer at a time; `close` may come from any thread."""

    @property
    def position(self) -> int:
        """Elements consumed after the last step, as a state counts them; the rows of a chunk of an unbatched pipeline
        count one each, up to it.
        """

    @property
    def skipped(self) -> int:
        """Rows that failed and were left out before that position; 0 where they raise errors."""

    def __next__(self) -> tuple[int, Any]:
        """The next step: its rows, and a column for each output (or what else was asked for).

        Raises:
            DecodeError, NullValueError, TransformError: an element failed, which `position` has passed; the next call
                gives the step after it.
        """

    def close(self) -> None:
        """Stops all work. Idempotent."""


def usable_processors() -> int:
    """Processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1
