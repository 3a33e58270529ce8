"""`open_source`: starts the transport for a request."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator
from functools import cache
from typing import Any

from ..engine.columns.batch import Column
from ..engine.run.rebatch import Emission, Rebatcher, rebatcher_of
from ..engine.run.step_run import Converter, split_columns
from ..engine.run.threads import ThreadedEngine
from ..errors import ELEMENT_ERRORS
from ..order.cursor import SkipState
from .source import StepRequest, StepSource

_LOGGER = logging.getLogger(__name__)


def open_source(request: StepRequest, converter: Converter) -> StepSource:
    """Opens the steps of an iteration, each in the requested form.

    Raises:
        EmptySelectionError: the pipeline selects nothing.
    """
    if request.executor == "server":
        from .served.client import ServedSource
        from .served.served_plan import ServedPlan

        assert isinstance(request.plan, ServedPlan)
        return FormedSource(ServedSource(request, request.plan.address), converter)
    request.plan.check_not_empty()
    if request.executor == "sidecar":
        from .sidecar.sidecar_source import SidecarSource

        return SidecarSource(request, converter)
    if request.options.stall_timeout is not None and multiprocessing.parent_process() is None:
        _warn_of_stall_timeout(request.options.stall_timeout)
    drops = request.plan.program.drops
    engine = ThreadedEngine(
        request.plan,
        request.cursor,
        threads=request.threads,
        memory_limit=request.memory_limit,
        strict_nulls=request.strict_nulls,
        max_errors=request.options.max_errors,
        converter=split_columns if drops else converter,
        counters=request.counters,
        shared=request.shared,
    )
    if not drops:
        return engine
    return FormedSource(RebatchingSource(engine, rebatcher_of(request.plan, request.cursor.start)), converter)


@cache
def _warn_of_stall_timeout(seconds: float) -> None:
    """Logs, once in a process that is no loader worker, that the option has no effect in threads."""
    _LOGGER.warning(
        "stall_timeout=%g has no effect: this pipeline runs in threads, which cannot be replaced. If one of them "
        "hangs, a warning names its rows. Use executor='sidecar' to have processes that hang replaced.",
        seconds,
    )


class FormedSource:
    """Converts the columns of a source into the requested form."""

    ready = 0

    def __init__(self, source: StepSource, converter: Converter) -> None:
        self._source = source
        self._converter = converter

    @property
    def position(self) -> int:
        """As `StepSource`."""
        return self._source.position

    @property
    def skipped(self) -> SkipState:
        """As `StepSource`."""
        return self._source.skipped

    def __next__(self) -> tuple[int, Any]:
        count, columns = next(self._source)
        (step,) = self._converter(columns, 1)
        return count, step

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._source.close()


class RebatchingSource:
    """Builds elements from the rows that user functions keep; see `engine.run.rebatch`."""

    ready = 0

    def __init__(self, engine: ThreadedEngine, rebatcher: Rebatcher) -> None:
        self._engine = engine
        self._rebatcher = rebatcher
        self._emissions: Iterator[Emission] = iter(())
        self._over = False
        self.position, self.skipped = engine.position, engine.skipped

    def __next__(self) -> tuple[int, list[Column]]:
        while True:
            emission = next(self._emissions, None)
            if emission is not None:
                self.position, self.skipped = emission.position, emission.skipped
                return emission.rows, emission.columns
            if self._over:
                raise StopIteration
            self._emissions = self._emitted()

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._engine.close()

    def _emitted(self) -> Iterator[Emission]:
        try:
            count, columns = next(self._engine)
        except StopIteration:
            self._over = True
            return self._rebatcher.finish()
        except ELEMENT_ERRORS:
            position = self._rebatcher.skip()
            if position is not None:
                self.position, self.skipped = position, self._engine.skipped
            raise
        return self._rebatcher.add(columns, count, self._engine.skipped)
