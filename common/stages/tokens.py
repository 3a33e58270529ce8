"""Shared code of ``concat`` and ``pack_rows``, which join rows of token lists into items of equal length."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..base.errors import DecodeError, NullValueError, PipelineError
from ..base.memory.arrow_views import as_numpy
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import plain
from .base import Decision, Stage, positive_integer
from .columns import Columns, ResolveFields
from .measure import LengthStep, Measure, Refusal
from .names import StoredName
from .nulls import NullStep, fill_value
from .select import Projection
from .steps import JoinStep

Number = int | float
POSITION_FIELDS = ("segment_ids", "position_ids")


@dataclass(frozen=True)
class TokenLengths(Measure):
    """The number of tokens in each row, which must be the same in all ``fields``.

    ``most`` is the largest number allowed (``None`` = no limit).
    """

    fields: tuple[StoredName, ...]
    most: int | None = None
    leaves_out: tuple[str, ...] | None = None

    @property
    def lists(self) -> tuple[str, ...]:
        return self.fields

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> np.ndarray:
        refusals = self.refusals(table)
        if refusals and self.leaves_out is None:
            raise refusals[0].error_of_first(describe)
        return list_lengths(table.column(0))

    def refusals(self, table: pa.Table) -> list[Refusal]:
        columns = dict(zip(self.fields, table.columns, strict=True))
        refusals = [refusal for name, column in columns.items() for refusal in null_lists(name, column)]
        if refusals and self.leaves_out is None:
            return refusals
        refusals += [null for name in self.leaves_out or () for null in _nulls_inside(name, columns[name])]
        first, *others = (list_lengths(column) for column in columns.values())
        for name, lengths in zip(self.fields[1:], others, strict=True):
            wrong = np.flatnonzero(lengths != first)
            if len(wrong):
                refusals.append(self._unequal(name, wrong, first, lengths))
        long = self.too_long(first)
        return refusals if long is None else [*refusals, long]

    def too_long(self, lengths: np.ndarray) -> Refusal | None:
        long = np.flatnonzero(lengths > self.most) if self.most is not None else ()
        if not len(long):
            return None
        return Refusal(
            error=DecodeError,
            field=self.fields[0],
            rows=np.asarray(long),
            problem=lambda row: f"expected at most {self.most} tokens, got {lengths[row]}",
            remedy="Choose overlong='cut' or 'drop', or a larger length.",
        )

    def unlimited(self) -> TokenLengths:
        return replace(self, most=None)

    def _unequal(self, name: str, rows: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> Refusal:
        return Refusal(
            error=DecodeError,
            field=name,
            rows=rows,
            problem=lambda row: f"expected as many values as in '{self.fields[0]}', {first[row]}, got {lengths[row]}",
            remedy="Joined fields need lists of equal length; leave this field out, or drop such rows with where().",
        )


def list_lengths(column: pa.ChunkedArray) -> np.ndarray:
    """The length of each list of a stored column, as int64; undefined for a null."""
    return np.concatenate([np.zeros(0, np.int64), *map(_lengths, _lists(column))])


def null_lists(name: str, column: pa.ChunkedArray) -> list[Refusal]:
    """Returns the rows of a stored column whose list is null."""
    return nulls_of(name, column, "a list of tokens") if column.null_count else []


def nulls_of(name: str, nulls: pa.ChunkedArray, expected: str) -> list[Refusal]:
    """Returns the rows that are null in a column, which should hold ``expected``."""
    rows = np.flatnonzero(as_numpy(nulls.is_null()))
    remedy = f"Leave such rows out with nulls('drop', '{name}')."
    text = f"expected {expected}, found null"
    return [Refusal(error=NullValueError, field=name, rows=rows, problem=lambda row: text, remedy=remedy)]


def _nulls_inside(name: str, column: pa.ChunkedArray) -> list[Refusal]:
    before, found = 0, [np.zeros(0, np.int64)]
    for lists in _lists(column):
        inside = lists.flatten()
        if inside.null_count:
            present = np.where(as_numpy(lists.is_valid()), _lengths(lists), 0)
            null = np.flatnonzero(as_numpy(inside.is_null()))
            found.append(before + np.unique(np.searchsorted(np.cumsum(present), null, side="right")))
        before += len(lists)
    rows = np.concatenate(found)
    if not len(rows):
        return []
    text = "expected a list without nulls inside, found one"
    remedy = f"Leave such rows out with nulls('drop', '{name}')."
    return [Refusal(error=DecodeError, field=name, rows=rows, problem=lambda row: text, remedy=remedy)]


def _lists(column: pa.ChunkedArray) -> list[pa.Array]:
    return [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]


def _lengths(lists: pa.Array) -> np.ndarray:
    if pa.types.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size, np.int64)
    if not len(lists):
        return np.zeros(0, np.int64)
    offsets = lists.offsets
    dtype = np.dtype(np.int64 if pa.types.is_int64(offsets.type) else np.int32)
    ends = np.frombuffer(offsets.buffers()[1], dtype, len(lists) + 1, offsets.offset * dtype.itemsize)
    return np.diff(ends).astype(np.int64)


class TokenStage(Stage):
    """Base of stages that join rows; subclasses are dataclasses with ``length`` and ``fields``."""

    decides: ClassVar[Decision] = Decision.JOINS
    changes_names: ClassVar[bool] = True
    reads_lengths: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (1, ("x",))
    length: int
    fields: tuple[StoredName, ...]

    def check(self) -> None:
        positive_integer(self.verb, "length", self.length)
        if not self.fields or not all(isinstance(name, str) and name for name in self.fields):
            raise PipelineError(f"{self.verb}: expected at least one name of a token list field, got {self.fields}.")
        twice = next((name for name in self.fields if self.fields.count(name) > 1), None)
        if twice is not None:
            raise PipelineError(f"{self.verb}: expected each field once, got '{twice}' several times.")

    def check_fields(self, resolve: ResolveFields) -> None:
        for name in self.fields:
            resolve([re.escape(name)])

    def join(self, columns: Columns, separator: object, padding: object, *, positions: bool) -> None:
        """Joins the rows of the columns.

        Raises:
            FieldNotFoundError: a field does not exist.
            PipelineError: a field is not a list of numbers, or cannot hold the separator or padding.
        """
        stored = columns.open()
        chosen = [columns.matching([re.escape(name)])[0] for name in self.fields]
        numbers = self._stored_numbers(columns, chosen)
        for number in chosen:
            output = columns.outputs[number]
            codec = None if numbers is None else stored[numbers[number]].storage
            coded = codec is not None and codec.coded
            lists = len(output.shape) == 1 and not output.levels and not coded
            if output.kind != "dense" or not lists or output.dtype.kind not in "biuf":
                raise PipelineError(
                    f"{self.verb}: expected a field of lists of numbers (such as list<int32>), got '{output.name}', "
                    f"{output.kind} {output.dtype} {output.shape}{f', stored by {codec}' if coded else ''}. "
                    "Name the field of token ids."
                )
        outputs = [
            OutputField(path=columns.outputs[number].path, kind="dense", dtype=columns.outputs[number].dtype, shape=())
            for number in chosen
        ]
        columns.join = JoinStep(
            length=self.length,
            separators=None if separator is None else _one_for_each(separator, outputs),
            padding=_one_for_each(padding, outputs),
            positions=positions,
        )
        if numbers is None:
            check = LengthStep(numbers=tuple(chosen), names=self.fields)
            columns.joined_steps = [*columns.row_steps, check, Projection(keep=tuple(chosen))]
        else:
            columns.fields = [stored[numbers[number]] for number in chosen]
        columns.row_steps = []
        columns.outputs = [replace(output, shape=(self.length,)) for output in outputs]
        if positions:
            made = (
                OutputField(path=(name,), kind="dense", dtype=np.dtype(np.int32), shape=(self.length,))
                for name in POSITION_FIELDS
            )
            columns.add(*made, verb=self.verb)

    def _stored_numbers(self, columns: Columns, chosen: Sequence[int]) -> dict[int, int] | None:
        """Returns the number of the stored field that each of the chosen columns is, or ``None`` if a function makes
        one of them.

        Raises:
            PipelineError: an earlier stage changes one of them.
        """
        numbers: list[int | None] = list(range(len(columns.open())))
        for step in columns.row_steps:
            filled = isinstance(step, NullStep) and step.policy == "fill"
            # A null list is an error here, and nulls inside lists are filled when lists are read.
            numbers = numbers if filled else step.untouched(numbers)
        found = {number: place for number in chosen if (place := numbers[number]) is not None}
        if len(found) == len(chosen):
            return found
        if any(columns.counted[number] for number in chosen):
            return None
        raise PipelineError(
            f"{self.verb}: expected stored fields, got fields changed by an earlier stage. "
            f"Call {self.verb}() before stages that work on values."
        )


def by_field(value: object, fields: Sequence[str], verb: str, what: str) -> Any:
    """Converts one number for all fields, or a mapping with one per field, to a form that JSON can hold.

    Raises:
        PipelineError: the mapping does not name exactly these fields.
    """
    if not isinstance(value, Mapping):
        return plain(value)
    if set(value) != set(fields):
        raise PipelineError(
            f"{verb}: expected {what} to be one number, or one for each of {list(fields)}, got {dict(value)}."
        )
    return tuple(plain(value[name]) for name in fields)


def check_numbers(verb: str, what: str, value: object) -> None:
    """Raises `PipelineError` unless a plain value is a number, or a tuple of numbers."""
    for each in value if isinstance(value, tuple) else (value,):
        if not isinstance(each, int | float):
            raise PipelineError(f"{verb}: expected {what} to be a number, got {each!r}.")


def _one_for_each(value: object, outputs: Sequence[OutputField]) -> tuple[Number, ...]:
    values = value if isinstance(value, tuple) else (value,) * len(outputs)
    return tuple(fill_value(output, each).item() for output, each in zip(outputs, values, strict=True))
