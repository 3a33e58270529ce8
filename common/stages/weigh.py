"""``weigh`` and ``balance``: draw rows by weight, so that some come several times in an epoch and others never."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from ..base.errors import DatasetError, PipelineError
from ..base.memory.arrow_views import as_numpy
from ..base.process.dataclass import dataclass
from ..base.process.forks import pc
from ..schema.field import UnischemaField
from ..schema.plain import Seed, plain
from .base import Decision, SeededStage, Stage, positive_integer
from .columns import ResolveFields
from .measure import Measure
from .names import STORED_PART, StoredExpression, StoredName
from .predicates.expression import expression_from_json, expression_key, expression_text, expression_to_json
from .predicates.python_values import plain_storage, python_values
from .predicates.row_mask import row_values

_MOST_ITEMS = (1 << 31) - 1  # with more, products would overflow 64 bits
_MOST_SHOWN = 5


class Weights(Measure):
    """Base of the sources of row weights: finite numbers >= 0, at least one of them positive.

    Attributes:
        by_class: whether the measured numbers are classes (from 0), and `of_classes` returns the weight of each.
    """

    called: ClassVar[str] = "weigh"
    by_class: ClassVar[bool] = False

    def of_classes(self, classes: np.ndarray) -> np.ndarray:
        """Returns the weight of each class, from the class of each row (int64)."""
        raise NotImplementedError

    def combine(self, parts: Sequence[Any]) -> np.ndarray:
        return _some_positive(super().combine(parts), str(self))


@dataclass(frozen=True)
class FieldWeights(Weights):
    """Takes the numbers in a field as weights."""

    field: StoredName

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> np.ndarray:
        return _weights_in(table.column(0), f"field '{self.field}'", describe)

    def __str__(self) -> str:
        return repr(self.field)


@dataclass(frozen=True)
class ExpressionWeights(Weights):
    """Takes the value of an Arrow expression as the weight of each row; holds the serialized expression."""

    serialised: StoredExpression  # the key in stored JSON

    @property
    def expression(self) -> pc.Expression:
        return expression_from_json(self.serialised)

    def check(self) -> None:
        if not self.reads:
            raise PipelineError(
                f"weigh: expected an expression over fields, got {expression_text(self.expression)}, which names none."
            )

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> np.ndarray:
        return _weights_in(row_values(table, self.expression), str(self), describe)

    @property
    def identity(self) -> str:
        return expression_key(self.expression)

    def __str__(self) -> str:
        return expression_text(self.expression)


@dataclass(frozen=True)
class ValueWeights(Weights):
    """Assigns a weight to each value of a field; ``None`` stands for null."""

    by_class: ClassVar[bool] = True
    field: StoredName
    weights: tuple[tuple[Any, float], ...]

    def check(self) -> None:
        for value, weight in self.weights:
            if value is not None and not isinstance(value, bool | int | float | str):
                raise PipelineError(
                    f"weigh: expected the values of '{self.field}' as numbers, strings or None, got {value!r}. "
                    "Give the weights as an expression."
                )
            if not isinstance(weight, float) or not 0 <= weight < math.inf:
                raise PipelineError(f"weigh: expected a weight >= 0 for {self.field}={value!r}, got {weight!r}.")

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> np.ndarray:
        codes, values = _classes(table.column(0), self.field)
        known = {value: number for number, (value, _) in enumerate(self.weights)}
        classes: np.ndarray = np.array([known.get(value, -1) for value in values], np.int64)[codes]
        wrong = np.flatnonzero(classes < 0)
        if len(wrong):
            row = int(wrong[0])
            raise DatasetError(
                f"weigh: field '{self.field}', {describe(row)}: expected one of the values with a weight "
                f"({_listed(known)}), got {values[codes[row]]!r}. Give it a weight (0 leaves such rows out), or drop "
                "such rows first with where()."
            )
        return classes

    def combine(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        classes = np.concatenate([np.zeros(0, np.int64), *parts])
        _some_positive(self.of_classes(classes)[classes], str(self))
        return classes

    def of_classes(self, classes: np.ndarray) -> np.ndarray:
        return np.array([weight for _, weight in self.weights])

    def __str__(self) -> str:
        return f"{{{self.field!r}: {{{', '.join(f'{value!r}: {weight:g}' for value, weight in self.weights)}}}}}"


@dataclass(frozen=True)
class ClassWeights(Weights):
    """Weighs each row by the inverse of its value's frequency, so that all values come equally often."""

    by_class: ClassVar[bool] = True
    field: StoredName

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> tuple[np.ndarray, list[Any]]:
        codes, values = _classes(table.column(0), self.field)
        if None in values:
            row = int(np.flatnonzero(codes == values.index(None))[0])
            raise DatasetError(
                f"balance: field '{self.field}', {describe(row)}: expected a value, got null. Drop such rows first "
                f"with nulls('drop', '{self.field}')."
            )
        return codes, values

    def combine(self, parts: Sequence[tuple[np.ndarray, list[Any]]]) -> np.ndarray:
        number: dict[Any, int] = {}
        codes = [np.array([number.setdefault(v, len(number)) for v in values], np.int64)[c] for c, values in parts]
        return np.concatenate([np.zeros(0, np.int64), *codes])

    def of_classes(self, classes: np.ndarray) -> np.ndarray:
        counts = np.bincount(classes)
        exact = math.lcm(*np.unique(counts).tolist())  # integer weights are exact
        return exact // counts if exact * max(len(counts), 1) < 1 << 60 else 1.0 / counts

    def __str__(self) -> str:
        return f"balance of {self.field!r}"


@dataclass(frozen=True)
class RowWeights(Weights):
    """One weight per row of the dataset, in storage order, held as little-endian float64."""

    values: bytes = field(repr=False)

    def at(self, positions: np.ndarray, total: int) -> np.ndarray:
        weights = np.frombuffer(self.values, "<f8")
        if len(weights) != total:
            raise PipelineError(
                f"weigh: expected one weight for each of the dataset's {total} rows, before any filter, got "
                f"{len(weights)}. Filters keep each remaining row's weight."
            )
        return _some_positive(weights[positions], str(self))

    @property
    def identity(self) -> str:
        return f"rows {hashlib.blake2b(self.values, digest_size=16).hexdigest()}"

    def to_json(self) -> dict[str, object]:
        return {"measure": "RowWeights", "values": base64.b64encode(self.values).decode("ascii")}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> RowWeights:
        return cls(base64.b64decode(parameters["values"]))

    def __str__(self) -> str:
        return f"<{len(self.values) // 8} numbers>"


@dataclass(frozen=True)
class Weigh(SeededStage):
    """Draws rows by weight; ``drawn`` marks a seed that the user did not give and that follows the shuffle's seed."""

    verb: ClassVar[str] = "weigh"
    decides: ClassVar[Decision] = Decision.WEIGHTS
    sample_arguments: ClassVar[tuple[object, ...]] = (FieldWeights("x"),)
    weights: Annotated[Weights, STORED_PART]
    num_items: int | None = None
    seed: Seed = 0
    drawn: bool = field(default=False, compare=False, repr=False)

    @property
    def row_seed(self) -> int:
        return self.seed

    def with_row_seed(self, seed: int) -> Weigh:
        return replace(self, seed=seed)

    def check(self) -> None:
        if self.num_items is not None:
            positive_integer("weigh", "num_items", self.num_items)
            if self.num_items > _MOST_ITEMS:
                raise PipelineError(f"weigh: expected num_items to be at most {_MOST_ITEMS}, got {self.num_items}.")

    def check_fields(self, resolve: ResolveFields) -> None:
        for name in self.reads:
            [found] = resolve([re.escape(name)])
            if found.storage.coded:
                raise PipelineError(
                    f"weigh: field '{name}' is stored encoded ({type(found.storage).__name__}), so its values cannot "
                    "be weights. Name another field, or pass an array with a weight for each row."
                )

    @property
    def measure(self) -> Stage:
        return self.weights

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        weights = dict(parameters["weights"])
        kind = next(kind for kind in Weights.__subclasses__() if kind.__name__ == weights["measure"])
        del weights["measure"]
        return cls(**{**parameters, "weights": kind.from_parameters(weights)})

    def __str__(self) -> str:
        more = "" if self.num_items is None else f", num_items={self.num_items}"
        return f"weigh({self.weights}{more}{'' if self.drawn else f', seed={self.seed}'})"


def weights_of(weights: object) -> Weights:
    """Converts the argument of `weigh`: a field name, an expression, ``{field: {value: weight}}``, or one number per
    row.

    Raises:
        PipelineError: the argument is none of these, or a weight is not a finite number >= 0.
    """
    if isinstance(weights, str | UnischemaField):
        return FieldWeights(weights.name if isinstance(weights, UnischemaField) else weights)
    if isinstance(weights, pc.Expression):
        return ExpressionWeights(expression_to_json(weights))
    if isinstance(weights, Mapping):
        if len(weights) != 1 or not all(isinstance(given, Mapping) for given in weights.values()):
            raise PipelineError(
                f"weigh: expected the weights of one field's values, such as {{'label': {{0: 1.0, 1: 3.0}}}}, "
                f"got {weights!r}."
            )
        [(name, given)] = weights.items()
        return ValueWeights(
            name.name if isinstance(name, UnischemaField) else name,
            tuple((plain(value), _as_float(weight)) for value, weight in sorted(given.items(), key=repr)),
        )
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PipelineError(
            "weigh: expected a field's name, an expression, {field: {value: weight}}, or an array with a weight for "
            f"each row, got {type(weights).__name__}."
        ) from error
    if numbers.ndim != 1:
        raise PipelineError(f"weigh: expected an array with one weight for each row, got shape {numbers.shape}.")
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        raise PipelineError(
            f"weigh: expected finite weights >= 0, got {numbers[wrong[0]]} for row {wrong[0]} of the array."
        )
    return RowWeights(np.ascontiguousarray(numbers, "<f8").tobytes())


def _as_float(weight: object) -> Any:
    """Converts a plain number to a float; leaves anything else for the check to reject."""
    number = plain(weight)
    return float(number) if isinstance(number, bool | int) else number


def _weights_in(column: pa.ChunkedArray, called: str, describe: Callable[[int], str]) -> np.ndarray:
    """Converts a column's numbers to weights (float64)."""
    column = _without_dictionary(column)
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or pa.types.is_primitive(kind)) or (
        pa.types.is_temporal(kind)
    ):
        raise PipelineError(f"weigh: expected numbers in {called}, got {kind}. Name a numeric field or an expression.")
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    missing = as_numpy(column.is_null())
    parts = [as_numpy(chunk).astype(np.float64) for chunk in column.chunks]
    numbers = np.concatenate([np.zeros(0), *parts])
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(missing | ~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        row = int(wrong[0])
        shown = "null" if missing[row] else numbers[row]
        raise DatasetError(
            f"weigh: {describe(row)}: expected a finite weight >= 0 in {called}, got {shown}. "
            "Drop such rows first with where(), or pass an expression that gives them a weight."
        )
    return numbers


def _classes(column: pa.ChunkedArray, name: str) -> tuple[np.ndarray, list[Any]]:
    """Returns each row's index (int64) into the list of distinct values, and that list."""
    try:
        encoded = _without_dictionary(plain_storage(column)).dictionary_encode("encode").combine_chunks()
    except pa.ArrowNotImplementedError as error:
        raise PipelineError(
            f"weigh: expected field '{name}' to hold plain values that can be compared, got {column.type}. "
            "Name another field."
        ) from error
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    return as_numpy(encoded.indices).astype(np.int64), python_values(encoded.dictionary)


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _some_positive(weights: np.ndarray, called: str) -> np.ndarray:
    if len(weights) and not weights.any():
        raise PipelineError(
            f"weigh({called}): expected a weight above 0 for at least one row, got 0 for all {len(weights)} of them."
        )
    return weights


def _listed(values: Mapping[Any, float]) -> str:
    shown = [repr(value) for value in values]
    return ", ".join(shown[:_MOST_SHOWN]) + (", ..." if len(shown) > _MOST_SHOWN else "")
