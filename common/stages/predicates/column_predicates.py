"""Predicates on one column that Arrow expressions cannot express: membership in lists, and hash splits.

They are values (comparable, convertible to JSON) that you pass to ``where``, and are evaluated on whole columns. ``~``
inverts one. A null is in no list. For a split, a null is a value like any other, so every row is in exactly one part.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, TypeGuard

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.memory.arrow_views import as_numpy
from ...base.process.dataclass import dataclass
from ...base.process.forks import pc
from ...base.tracebacks import shortens
from ...schema.dtypes import decimal_text
from ...schema.plain import PlainFields, Seed, is_iterable
from .python_values import ExactTime, plain_storage, python_values

_LOGGER = logging.getLogger(__name__)
_KINDS: dict[str, type[ColumnPredicate]] = {}
_PLACE_SHIFT = 40  # users' own seeds are smaller
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class ColumnPredicate(PlainFields):
    """Base class: a condition on one field, evaluated on a whole stored column."""

    kind: ClassVar[str]
    field: str

    @property
    def called(self) -> str:
        return f"{self.kind}('{self.field}')"

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        _KINDS[cls.kind] = cls

    def __invert__(self) -> ColumnPredicate:
        return Inverted(self.field, self)

    def _refuse_operator(self, *_: object) -> NoReturn:
        raise PipelineError(
            f"{self.called}: cannot be combined with and, or, not, & or |. Call where() once for each condition that "
            "must hold, and write ~ for the opposite."
        )

    __and__ = __rand__ = __or__ = __ror__ = _refuse_operator
    __bool__ = _refuse_operator  # otherwise `hash_split(...) and expression` would be the expression alone

    def mask(self, column: pa.Array) -> np.ndarray:
        """Returns which rows match, bool ``[rows]``."""
        raise NotImplementedError

    def on(self, field: str) -> ColumnPredicate:
        """Returns the same condition on another field."""
        return replace(self, field=field)  # type: ignore[type-var]  # subclasses are dataclasses

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"kind": ..., **parameters}``."""
        names = self.__dataclass_fields__  # type: ignore[attr-defined]  # subclasses are dataclasses
        return {"kind": self.kind, **{name: getattr(self, name) for name in names}}


def predicate_from_json(value: dict[str, Any]) -> ColumnPredicate:
    """The inverse of `ColumnPredicate.to_json`."""
    parameters = dict(value)
    if "predicate" in parameters:
        parameters["predicate"] = predicate_from_json(parameters["predicate"])
    return _KINDS[parameters.pop("kind")](**parameters)


@dataclass(frozen=True)
class Contains(ColumnPredicate):
    """Matches rows whose list holds any (or all) of some values."""

    kind: ClassVar[str] = "contains"
    field: str
    values: tuple[Any, ...]
    every: bool = False

    def check(self) -> None:
        if not self.values or not all(isinstance(value, str | int | float | bool) for value in self.values):
            raise PipelineError(
                f"contains('{self.field}'): expected one or more strings, numbers or bools, got {self.values!r}."
            )

    def mask(self, column: pa.Array) -> np.ndarray:
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            if not pa.types.is_fixed_size_list(column.type):
                raise PipelineError(f"contains('{self.field}'): expected a field of lists, got {column.type}.")
            column = column.cast(pa.large_list(column.type.value_type))
        flat = column.flatten()
        lengths = pc.list_value_length(column).fill_null(0)  # flatten() skips values under null lists
        owner = np.repeat(np.arange(len(column)), as_numpy(lengths))
        if pa.types.is_dictionary(flat.type):
            flat = flat.dictionary_decode()
        kind = flat.type
        if pa.types.is_float16(kind):  # Arrow cannot compare them
            flat = pa.array(as_numpy(flat).astype(np.float32))
        result = np.full(len(column), self.every)
        for value in self.values:
            try:
                member = _as_member(value, kind)
            except (ValueError, pa.ArrowNotImplementedError) as error:
                raise PipelineError(
                    f"contains('{self.field}'): expected values of type {kind}, got {value!r}."
                ) from error
            hits = as_numpy(pc.fill_null(pc.equal(flat, member), False))
            contains = np.zeros(len(column), dtype=bool)
            contains[owner[hits]] = True
            result = result & contains if self.every else result | contains
        return result


@dataclass(frozen=True)
class HashSplit(ColumnPredicate):
    """Matches rows whose value of a field hashes into part ``index`` of ``fractions``.

    The hash depends only on the value and the seed, so a row stays in its part even if the dataset's files change. A
    ``seed`` of ``None`` is that of the split's place in its pipeline; see `placed`.
    """

    kind: ClassVar[str] = "hash_split"
    field: str
    fractions: tuple[float, ...]
    index: int
    seed: Seed | None = None

    def check(self) -> None:
        numbers = all(isinstance(part, int | float) and 0 <= part <= 1 for part in self.fractions)
        if not self.fractions or not numbers or sum(self.fractions) > 1 + 1e-9:
            raise PipelineError(
                f"hash_split('{self.field}'): expected fractions from 0 to 1 that sum to at most 1, "
                f"got {self.fractions}."
            )
        if type(self.index) is not int or not 0 <= self.index < len(self.fractions):
            raise PipelineError(
                f"hash_split('{self.field}'): expected index from 0 to {len(self.fractions) - 1}, got {self.index!r}."
            )

    def mask(self, column: pa.Array) -> np.ndarray:
        bounds = [min(1.0, math.fsum(self.fractions[:count])) for count in range(len(self.fractions) + 1)]
        try:
            hashes = hash_column(column, self.seed or 0)
        except pa.ArrowNotImplementedError as error:
            raise PipelineError(
                f"hash_split('{self.field}'): expected a field of plain values that can be compared, got "
                f"{column.type}. Name another field."
            ) from error
        position = (hashes >> np.uint64(11)).astype(np.float64) / float(1 << 53)
        last = 1.0 + 1e-9 if bounds[self.index + 1] > 1 - 1e-9 else bounds[self.index + 1]
        return (position >= bounds[self.index]) & (position < last)


@dataclass(frozen=True)
class Inverted(ColumnPredicate):
    """Matches rows for which another predicate on the same field is false."""

    kind: ClassVar[str] = "not"
    field: str
    predicate: ColumnPredicate

    def __invert__(self) -> ColumnPredicate:
        return self.predicate

    def mask(self, column: pa.Array) -> np.ndarray:
        return ~self.predicate.mask(column)

    def on(self, field: str) -> ColumnPredicate:
        return Inverted(field, self.predicate.on(field))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "field": self.field, "predicate": self.predicate.to_json()}


def _as_member(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Returns a value in the type that its list's members are compared in."""
    if not pa.types.is_float16(kind):
        return pa.scalar(value).cast(kind)
    with np.errstate(over="ignore"):
        half = np.float16(value)
    if isinstance(value, int) and float(half) != value:
        raise ValueError("not a half float")
    return pa.scalar(np.float32(half))


def hash_column(column: pa.Array, seed: int) -> np.ndarray:
    """Returns a stable hash of every value (uint64): splitmix64 for integers, BLAKE2b of a canonical text otherwise.

    Values of extension types count as what they store, and text that is not UTF-8 as its bytes.

    Raises:
        pa.ArrowNotImplementedError: the values are lists or otherwise cannot be compared.
    """
    column = plain_storage(column)
    if pa.types.is_integer(column.type) and column.null_count == 0:
        values = as_numpy(column)
        return _splitmix(values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64), seed)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    begun = hashlib.blake2b(f"{seed}\0".encode(), digest_size=8, person=b"parquetry")
    different = [*python_values(encoded.dictionary), None]
    table = np.array([_hash_value(value, seed, begun) for value in different], dtype=np.uint64)
    codes = encoded.indices.cast(pa.int64()).fill_null(len(table) - 1)  # int8 may not hold the number of null
    result: np.ndarray = table[as_numpy(codes)]
    return result


def _splitmix(values: np.ndarray, seed: int) -> np.ndarray:
    """Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    mixed = values + np.uint64(_GOLDEN * (seed + 1) & _WORD)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def _hash_value(value: object, seed: int, begun: hashlib.blake2b) -> int:
    """Returns the hash of a value. ``begun`` has seen the seed: a copy of it costs less than a new one."""
    value = value if type(value) is str else _before_widening(value)
    if type(value) is str:
        text = value
    elif isinstance(value, bool) or value is None:
        text = repr(value)
    elif isinstance(value, int):
        return int(_splitmix(np.array([value & _WORD], dtype=np.uint64), seed)[0])
    elif isinstance(value, bytes):
        text = "b" + value.hex()
    elif isinstance(value, decimal.Decimal):
        text = decimal_text(value)
    elif isinstance(value, datetime.date | datetime.time):
        text = value.isoformat()
    else:
        text = str(value)
    hasher = begun.copy()
    hasher.update(text.encode())
    return int.from_bytes(hasher.digest(), "little")


def _before_widening(value: object) -> Any:
    """Converts a value that equals an integer or a day to that integer or day. If a column is widened to floats,
    decimals or times, no row may change its part.
    """
    if isinstance(value, ExactTime) and (isinstance(value.whole, datetime.time) or _is_midnight(value.whole)):
        value = value.whole  # pandas' own test for midnight ignores nanoseconds, and rows must keep their parts
    if isinstance(value, float | decimal.Decimal) and math.isfinite(value) and value.as_integer_ratio()[1] == 1:
        number = int(value)
        return number if abs(number) <= _WORD else value
    return value.date() if _is_midnight(value) else value


def _is_midnight(value: object) -> TypeGuard[datetime.datetime]:
    return isinstance(value, datetime.datetime) and value.tzinfo is None and value.time() == datetime.time()


@shortens
def contains(field: str, *values: object, every: bool = False) -> Contains:
    """Returns a predicate for ``where``: the list in ``field`` holds any of ``values`` (``every``: all of them)."""
    return Contains(field, tuple(values), every)


@shortens
def hash_split(field: str, fractions: Sequence[float], index: int, seed: int | None = None) -> HashSplit:
    """Returns a predicate for ``where``: part ``index`` of a split by a field's hash.

    Without a seed, a split of what an earlier split left is independent of it.
    """
    if not is_iterable(fractions):
        raise PipelineError(f"hash_split('{field}'): expected fractions such as [0.8, 0.2], got {fractions!r}.")
    return HashSplit(field, tuple(fractions), index, seed)


def placed(predicate: ColumnPredicate, before: Sequence[ColumnPredicate]) -> ColumnPredicate:
    """Returns a predicate as it follows those ``before`` it in a pipeline: a split without a seed gets one.

    The first split has seed 0, and each further one another. One that follows the inverse of a part of the same split
    (``~hash_split(...)``) names another part of it, and has its seed.
    """
    split = _split_in(predicate)
    if split is None:
        return predicate
    earlier = [(each, found) for each in before if (found := _split_in(each)) is not None]
    again = [
        found.seed
        for each, found in earlier
        if isinstance(each, Inverted) and (found.field, found.fractions) == (split.field, split.fractions)
    ]
    if split.seed is None:
        seed = again[0] if again else len({found.seed for _, found in earlier}) << _PLACE_SHIFT
        split = replace(split, seed=seed)
    elif split.seed not in again and any((each.field, each.seed) == (split.field, split.seed) for _, each in earlier):
        _LOGGER.warning(
            "hash_split('%s'): an earlier split of the pipeline has the same seed, %d, so the parts of this one do not "
            "have their fractions, and may be empty. Leave out seed=, or give another.",
            split.field,
            split.seed,
        )
    return Inverted(split.field, split) if isinstance(predicate, Inverted) else split


def _split_in(predicate: ColumnPredicate) -> HashSplit | None:
    inner = predicate.predicate if isinstance(predicate, Inverted) else predicate
    return inner if isinstance(inner, HashSplit) else None
