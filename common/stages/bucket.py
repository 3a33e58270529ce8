"""``bucket``: makes batches of rows of similar length."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from ..base.errors import DecodeError, PipelineError
from ..base.memory.arrow_views import as_numpy, is_list
from ..base.process.dataclass import dataclass
from ..base.process.forks import pc
from .base import Decision, Fill, Stage, check_fill, positive_integer
from .columns import Columns, ResolveFields
from .measure import LengthStep, Measure, Refusal
from .names import StoredName
from .pad import Pad
from .tokens import list_lengths, null_lists, nulls_of

PadTo = Literal["bucket", "longest"]


@dataclass(frozen=True)
class RowLengths(Measure):
    """The length of each row: the number of values in a list or of bytes in a string, or the value of an integer field.

    ``most`` is the largest length allowed (``None`` = no limit).
    """

    field: StoredName
    most: int | None = None
    leaves_out: tuple[str, ...] | None = None

    @property
    def lists(self) -> tuple[str, ...]:
        return (self.field,)

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> np.ndarray:
        refusals = self.refusals(table)
        if refusals and self.leaves_out is None:
            raise refusals[0].error_of_first(describe)
        return _lengths(self.field, table.column(0))

    def refusals(self, table: pa.Table) -> list[Refusal]:
        column = table.column(0)
        refusals = _nulls(self.field, column) if column.null_count else []
        if refusals and self.leaves_out is None:
            return refusals
        lengths = _lengths(self.field, column)
        if len(lengths) and lengths.min() < 0:
            refusals.append(
                Refusal(
                    error=DecodeError,
                    field=self.field,
                    rows=np.flatnonzero(lengths < 0),
                    problem=lambda row: f"expected a length >= 0, got {lengths[row]}",
                    remedy="Leave such rows out with where().",
                )
            )
        long = self.too_long(lengths)
        return refusals if long is None else [*refusals, long]

    def too_long(self, lengths: np.ndarray) -> Refusal | None:
        if self.most is None or lengths.max(initial=0) <= self.most:
            return None
        return Refusal(
            error=DecodeError,
            field=self.field,
            rows=np.flatnonzero(lengths > self.most),
            problem=lambda row: f"expected a length of at most max_tokens={self.most}, got {lengths[row]}",
            remedy="Increase max_tokens, or leave such rows out with where().",
        )

    def unlimited(self) -> RowLengths:
        return replace(self, most=None)


@dataclass(frozen=True)
class Bucket(Stage):
    """Makes batches of rows of similar length; later stages work on batches.

    Attributes:
        field: the field whose length counts.
        boundaries: ascending; the largest length in each bucket except the last, which holds all longer rows.
        buckets: instead of ``boundaries``, the number of buckets, with about equally many rows each.
        max_tokens, batch_size, batch_sizes: three ways to set how many rows a batch has; exactly one is given.
        pad_to: the length that fields are padded to.
        padded: the fields to pad; ``None`` = ``field``, if its values are lists of numbers or strings.
    """

    verb: ClassVar[str] = "bucket"
    sendable: ClassVar[bool] = True
    decides: ClassVar[Decision] = Decision.JOINS
    makes_batches: ClassVar[bool] = True
    reads_lengths: ClassVar[bool] = True
    field: StoredName
    boundaries: tuple[int, ...] = ()
    buckets: int | None = None
    max_tokens: int | None = None
    batch_size: int | None = None
    batch_sizes: tuple[int, ...] = ()
    pad_to: PadTo = "longest"
    padded: tuple[str, ...] | None = None
    pad_value: Fill = None

    @classmethod
    def sample(cls) -> Stage:
        return cls("x", (1,), batch_size=1)

    def check(self) -> None:
        check_fill("bucket", "pad_value", self.pad_value)
        for name in ("boundaries", "batch_sizes"):
            if not isinstance(getattr(self, name), tuple):
                raise PipelineError(f"bucket: expected {name} to be a list of integers, got {getattr(self, name)!r}.")
        if bool(self.boundaries) == (self.buckets is not None):
            raise PipelineError("bucket: expected boundaries=[...] or buckets=n, got both or neither.")
        for number in self.boundaries:
            positive_integer("bucket", "each of boundaries", number)
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise PipelineError(f"bucket: expected ascending boundaries, got {list(self.boundaries)}.")
        for name in ("buckets", "max_tokens", "batch_size"):
            if getattr(self, name) is not None:
                positive_integer("bucket", name, getattr(self, name))
        ways = [self.max_tokens, self.batch_size, self.batch_sizes or None]
        if sum(way is not None for way in ways) != 1:
            raise PipelineError("bucket: expected one of batch_size=, batch_sizes= and max_tokens=.")
        if self.batch_sizes:
            for number in self.batch_sizes:
                positive_integer("bucket", "each of batch_sizes", number)
            if len(self.batch_sizes) != (count := self.buckets or len(self.boundaries) + 1):
                more = "" if self.buckets else ", the last for rows longer than all boundaries"
                raise PipelineError(
                    f"bucket: expected {count} batch_sizes, one for each bucket{more}, got {len(self.batch_sizes)}."
                )
        if self.max_tokens is not None and self.boundaries and self.boundaries[-1] > self.max_tokens:
            raise PipelineError(
                f"bucket: expected boundaries of at most max_tokens={self.max_tokens}, got {self.boundaries[-1]}."
            )
        if self.pad_to == "bucket" and not self.boundaries:
            raise PipelineError(
                "bucket: expected pad_to='longest' with buckets=n, whose boundaries are known only once the data is "
                "read. To pad to buckets, pass the boundaries that explain() shows as boundaries=[...]."
            )

    def check_fields(self, resolve: ResolveFields) -> None:
        [found] = resolve([re.escape(self.field)])
        if found.storage.coded:
            raise PipelineError(
                f"bucket: field '{self.field}' is stored encoded ({type(found.storage).__name__}), so its length is "
                "unknown until it is decoded. Name an integer field that holds the length."
            )

    @property
    def measure(self) -> Stage:
        return RowLengths(self.field, self.max_tokens)

    def apply(self, columns: Columns) -> None:
        columns.open()
        counted = columns.counted
        for number in [n for n, output in enumerate(columns.outputs) if output.path == (self.field,) and counted[n]]:
            columns.row_steps.append(LengthStep(numbers=(number,), names=(self.field,)))
        columns.batched = True
        patterns = (re.escape(self.field),) if self.padded is None else self.padded
        if self.padded is None and self.field not in columns.names:
            return
        before = len(columns.outputs)
        Pad(patterns, None, self.pad_value).pad(
            columns, self.boundaries if self.pad_to == "bucket" else (), verb="bucket"
        )
        if columns.form is not None and len(columns.outputs) > before:
            raise PipelineError(
                f"bucket() must come before as_tuple(): the tuples have no place for '{columns.outputs[-1].name}'."
            )


def _nulls(name: str, column: pa.ChunkedArray) -> list[Refusal]:
    """Returns the rows that are null. Raises `PipelineError` for a column whose values have no length."""
    _lengths(name, column.slice(0, 0))
    if is_list(column.type):
        return null_lists(name, column)
    return nulls_of(name, column, "a value with a length")


def _lengths(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Returns the length of each value, int64; 0 for a null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if is_list(kind):
        return list_lengths(column)
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (texts or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_integer(kind)):
        raise PipelineError(
            f"bucket: expected field '{name}' to be a list, a string, bytes, or an integer that holds a length, got "
            f"{kind}. Name another field."
        )
    numbers = column if pa.types.is_integer(kind) else pc.binary_length(column)
    return np.asarray(as_numpy(numbers.fill_null(0) if numbers.null_count else numbers), dtype=np.int64)
