"""`PipelineIterator`: iterates a pipeline as numpy rows or batches, with either executor, and saves its state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..base.errors import ELEMENT_ERRORS, ParquetryError
from ..base.metrics.loader_stats import LoaderStats
from ..base.process.forks import ForkLock, leave_to_parent
from ..base.tracebacks import shorten
from ..engine.columns.batch import (
    Column,
    Dense,
    Strings,
    by_output,
    rows_of,
    split_array,
    split_column,
    timed,
    to_numpy,
)
from ..engine.run.step_source import split_columns
from ..schema.element import Element, OutputField
from ..transport.sidecar.request import open_request
from .resumes import PlainProgress, elements_at_end
from .step_iterator import Iterated, IterationCounter, StepIterator

if TYPE_CHECKING:
    import typing_extensions

    ElementT = typing_extensions.TypeVar("ElementT", default=dict[Any, Any])
else:
    ElementT = TypeVar("ElementT")
"""The type of a row or batch, for type checkers: a dict by field name, unless ``as_tuple`` says otherwise."""


class PipelineIterator(Generic[ElementT]):
    """Iterates a pipeline as numpy: dicts of arrays (batches) or of single values (rows), or as set by ``as_tuple``.

    Threads may share an iterator: each element is returned to one of them.
    """

    def __init__(self, pipeline: Iterated, iteration: int, iterations: IterationCounter | None = None) -> None:
        self._iterations = iterations or IterationCounter()
        converter = partial(batches_to_numpy, pipeline.element) if pipeline.element.batched else split_columns
        self._steps = StepIterator(pipeline, iteration, strict_nulls=False, converter=converter)
        self._rows: Iterator[ElementT] = iter(())
        self._taken = PlainProgress()
        self._has_begun = False
        self._lock = ForkLock()
        leave_to_parent(self)

    def __iter__(self) -> PipelineIterator[ElementT]:
        return self

    def __next__(self) -> ElementT:
        row = next(self._rows, None)
        if row is not None:
            self._taken.consumed += 1
            return row
        try:
            with self._lock:  # one thread takes the next step, and the others its rows
                return self._of_next_step()
        except ParquetryError as error:
            shorten(error)
            raise

    def _of_next_step(self) -> ElementT:
        element = self._steps.element
        if not self._has_begun:
            self._has_begun = True
            self._iterations.resumes.begins(self._taken)
        while True:
            row = next(self._rows, None)
            if row is not None:
                self._taken.consumed += 1
                return row
            try:
                count, step = next(self._steps)
            except ELEMENT_ERRORS:
                self._taken.consumed = self._steps.position
                raise
            except StopIteration:
                self._taken.finished = self._steps.ended  # not if it was closed
                raise
            if element.batched:
                self._taken.consumed = self._steps.position
                return cast(ElementT, step)
            self._taken.consumed = self._steps.position - count
            self._rows = rows_to_numpy(element, step)

    def state_dict(self) -> dict[str, Any]:
        """The position of this iterator, as a small JSON-serializable dict."""
        # A rank that has ended may be a step behind others, and reports the position where all ranks have ended.
        consumed = max(self._taken.consumed, self._steps.longest) if self._steps.ended else self._taken.consumed
        result: dict[str, Any] = json.loads(self._steps.state(consumed))
        return result

    def load_state_dict(self, state: dict[str, Any] | str, *, strict: bool = True) -> PipelineIterator[ElementT]:
        """Resumes where the state was taken, with the element that would have come next. Returns the iterator itself.

        ``strict=False`` accepts a state of a pipeline with other fields or transforms if the order is the same.

        Raises:
            StateError: iteration has begun, or the state belongs to another dataset or pipeline.
        """
        self._taken.consumed = self._steps.restore(state, strict=strict)
        cursor, plan = self._steps.cursor, self._steps.pipeline.plan()
        self._iterations.go_on_after(cursor.iteration)
        self._iterations.resumes.took_state(self._taken, elements_at_end(plan, cursor))
        return self

    def stats(self) -> LoaderStats:
        """Statistics of this iterator so far, and whether it or its consumer is the bottleneck.

        May be called from any thread.

        >>> batches = iter(Pipeline("data/train").batch(64))  # doctest: +SKIP
        >>> for batch in batches: train(batch)  # doctest: +SKIP
        >>> batches.stats().verdict  # doctest: +SKIP
        'model-bound'
        """
        return self._steps.stats()

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._rows = iter(())
        self._steps.close()

    def forget_elements(self) -> object:
        """As `HoldsElements`."""
        rows, self._rows = self._rows, iter(())
        return rows


def batch_to_numpy(element: Element, columns: Sequence[Column]) -> Any:
    """Converts a batch to numpy arrays."""
    return next(batches_to_numpy(element, columns, 1))


def batches_to_numpy(element: Element, columns: Sequence[Column], count: int) -> Iterator[Any]:
    """Cuts columns that hold the rows of ``count`` consecutive batches into these batches.

    With many small arrays, the overhead per array dominates. So all columns are cut in one call, and the arrays are
    made batch by batch, in memory that the previous batch has just left.
    """
    return element.each([_batch_values(output, column, count) for output, column in by_output(element, columns)])


def _batch_values(output: OutputField, column: Column, count: int) -> Iterable[Any]:
    column = timed(output, column)
    if isinstance(column, Dense) and column.valid is None:
        return split_array(column.values, count)
    text = output.kind == "text"
    if isinstance(column, Strings) and count > 1:
        parts = split_array(column.to_objects(text=text), count)
        return (part.copy() for part in parts)  # a batch that is kept does not keep the strings of the others
    return (to_numpy(part, text=text) for part in split_column(column, count))


def rows_to_numpy(element: Element, columns: list[Column]) -> Iterator[Any]:
    """Yields the rows of a chunk as numpy values."""
    pairs = by_output(element, columns)
    return element.each([rows_of(timed(output, column), text=output.kind == "text") for output, column in pairs])


def sidecar_request(pipeline: Iterated, element: Element | None = None) -> str:
    """The request that a client outside of Python sends to a sidecar: nulls are errors.

    ``element`` is the element expected back.
    """
    program = replace(pipeline.plan().program, strict_nulls=True)
    return open_request(pipeline.to_json(), pipeline.versions, program, pipeline.options.parallelism, element)
