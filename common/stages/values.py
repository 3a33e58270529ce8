"""The stages of a pipeline as values: what each verb was given, checked, and nothing else.

A stage goes to JSON and back. What stages mean together is decided in `lowering`.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..errors import PipelineError
from ..order.epoch import Even
from ..predicates.column_predicates import ColumnPredicate, predicate_from_json
from ..predicates.expression import expression_from_json, expression_key, expression_to_json
from ..schema.field import UnischemaField
from ..schema.plain import PlainFields, Seed, plain
from .functions import UserFunction

EVERY_FIELD = (".*",)
_KINDS: dict[str, type[Stage]] = {}


class Stage(PlainFields):
    """Base of all stages; subclasses are frozen dataclasses."""

    verb: ClassVar[str]

    @property
    def called(self) -> str:
        return self.verb

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _KINDS[cls.verb] = cls

    def to_json(self) -> dict[str, Any]:
        """``{"verb": ..., **parameters}``."""
        names = self.__dataclass_fields__  # type: ignore[attr-defined]  # subclasses are dataclasses
        return {"verb": self.verb, **{name: getattr(self, name) for name in names}}

    @property
    def unnamed(self) -> frozenset[str]:
        """Parameters that are no part of `identity`: states hold them themselves."""
        return frozenset()

    @property
    def identity(self) -> str:
        """What states know the stage by: every parameter that is not the default, in full."""
        values = {
            item.name: getattr(self, item.name)
            for item in fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
            if item.compare and item.name not in self.unnamed and getattr(self, item.name) != item.default
        }
        return f"{self.verb} {json.dumps(values, default=_identity_of, sort_keys=True)}"

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        """Builds the stage from its JSON form without ``verb``."""
        return cls(**parameters)

    def __str__(self) -> str:
        shown = []
        for name, item in self.__dataclass_fields__.items():  # type: ignore[attr-defined]
            value = getattr(self, name)
            if item.repr and value != item.default:
                shown.append(f"{name}={value!r}")
        return f"{self.verb}({', '.join(shown)})"


def _identity_of(value: Any) -> Any:
    if isinstance(value, UserFunction):
        return value.digest
    return value.to_json() if isinstance(value, UnischemaField | ColumnPredicate) else repr(value)


def stage_from_json(value: Mapping[str, Any]) -> Stage:
    """The stage that `Stage.to_json` described."""
    parameters = dict(value)
    verb = parameters.pop("verb", None)
    if verb not in _KINDS:
        raise PipelineError(f"stored pipeline: expected a stage of {sorted(_KINDS)}, got {verb!r}. Update parquetry.")
    return _KINDS[verb].from_parameters(parameters)


@dataclass(frozen=True)
class Select(Stage):
    """Keep only some fields; ``declared`` says how stored columns are decoded, instead of the dataset's schema."""

    verb: ClassVar[str] = "select"
    patterns: tuple[str, ...]
    declared: tuple[UnischemaField, ...] = ()

    @classmethod
    def of(cls, fields: Iterable[str | UnischemaField]) -> Select:
        """Names, regexes and fields; a field with a codec declares its column."""
        given = list(fields)
        declared = tuple(item for item in given if isinstance(item, UnischemaField) and item.codec is not None)
        return cls(tuple(item.name if isinstance(item, UnischemaField) else item for item in given), declared)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "declared": [item.to_json() for item in self.declared]}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        declared = tuple(UnischemaField.from_json(item) for item in parameters.get("declared", ()))
        return cls(tuple(parameters["patterns"]), declared)

    def check(self) -> None:
        if not self.patterns or not all(isinstance(name, str) for name in self.patterns):
            raise PipelineError(f"select: expected one field name or regex or more, got {self.patterns!r}.")


@dataclass(frozen=True)
class Where(Stage):
    """Keep the rows for which an Arrow expression is true; held in its serialised form."""

    verb: ClassVar[str] = "where"
    serialised: str
    text: str

    @classmethod
    def of(cls, expression: Any) -> Where:
        """The stage of a ``pyarrow.compute.Expression``."""
        return cls(expression_to_json(expression), str(expression))

    @property
    def expression(self) -> Any:
        """The expression."""
        return expression_from_json(self.serialised)

    @property
    def identity(self) -> str:
        return f"where {expression_key(self.expression)}"

    def __str__(self) -> str:
        return f"where({self.text})"


@dataclass(frozen=True)
class WhereFunction(Stage):
    """Keep the rows for which a Python function is true."""

    verb: ClassVar[str] = "where_function"
    function: UserFunction
    fields: tuple[str, ...]
    batched: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "function": self.function.to_json(),
            "fields": list(self.fields),
            "batched": self.batched,
        }

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        return cls(UserFunction.from_json(parameters["function"]), tuple(parameters["fields"]), parameters["batched"])

    def __str__(self) -> str:
        return f"where({self.function!r}, fields={list(self.fields)})"


@dataclass(frozen=True)
class WhereColumn(Stage):
    """Keep the rows for which a column predicate (``contains``, ``hash_split``) is true."""

    verb: ClassVar[str] = "where_column"
    predicate: ColumnPredicate

    def to_json(self) -> dict[str, Any]:
        return {"verb": self.verb, "predicate": self.predicate.to_json()}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        return cls(predicate_from_json(parameters["predicate"]))

    def __str__(self) -> str:
        return f"where({self.predicate})"


@dataclass(frozen=True)
class Nulls(Stage):
    """What becomes of nulls in some fields."""

    verb: ClassVar[str] = "nulls"
    policy: Literal["error", "drop", "fill", "mask"]
    patterns: tuple[str, ...]
    value: Any = None

    def check(self) -> None:
        if self.policy not in ("error", "drop", "fill", "mask"):
            raise PipelineError(f"nulls: expected 'error', 'drop', 'fill' or 'mask', got {self.policy!r}.")
        if (self.policy == "fill") != (self.value is not None):
            raise PipelineError("nulls: expected value= with 'fill', and only with it.")


@dataclass(frozen=True)
class Pad(Stage):
    """Variable shapes made dense: ``lengths`` says whether by padding, with the true shapes beside."""

    verb: ClassVar[str] = "pad"
    patterns: tuple[str, ...]
    shape: tuple[int | None, ...] | None = None
    value: Any = None
    lengths: bool = True


@dataclass(frozen=True)
class Permute(Stage):
    """The axes of some fields in another order, by the names of their ``dims``."""

    verb: ClassVar[str] = "permute"
    patterns: tuple[str, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Decimals(Stage):
    """How decimal fields are delivered."""

    verb: ClassVar[str] = "decimals"
    form: Literal["text", "float64", "scaled"]
    patterns: tuple[str, ...]

    def check(self) -> None:
        if self.form not in ("text", "float64", "scaled"):
            raise PipelineError(f"decimals: expected 'text', 'float64' or 'scaled', got {self.form!r}.")


@dataclass(frozen=True)
class Ngram(Stage):
    """Windows over consecutive rows.

    Attributes:
        length: steps of a stacked window; ``None`` if ``offsets`` says which fields each step has.
        offsets: ``((offset, patterns), ...)``, ascending.
        max_gap: a number in the time stamp's own unit, or ``(count, numpy unit)``.
    """

    verb: ClassVar[str] = "ngram"
    length: int | None = None
    offsets: tuple[tuple[int, tuple[str, ...]], ...] = ()
    timestamp: str | None = None
    max_gap: Any = None
    group_by: tuple[str, ...] = ()
    stride: int = 1
    overlap: bool = True
    span_row_groups: bool = True

    def check(self) -> None:
        if self.length is None and not self.offsets:
            raise PipelineError("ngram: expected fields={offset: [names]} or length=n, got neither.")
        if self.length is not None and self.offsets:
            raise PipelineError("ngram: expected fields={offset: [names]} or length=n, got both.")
        if self.length is not None:
            positive_integer("ngram", "length", self.length)
        positive_integer("ngram", "stride", self.stride)
        if self.max_gap is not None and self.timestamp is None:
            raise PipelineError("ngram: max_gap needs timestamp=, the field whose gaps are measured.")

    @property
    def steps(self) -> tuple[int, ...]:
        """The offsets of the steps, ascending."""
        return tuple(range(self.length)) if self.length is not None else tuple(offset for offset, _ in self.offsets)

    @property
    def span(self) -> int:
        """Rows from the first to the last step, inclusive."""
        return self.steps[-1] - self.steps[0] + 1


@dataclass(frozen=True)
class Shard(Stage):
    """One rank's part."""

    verb: ClassVar[str] = "shard"
    num_shards: int
    index: int
    even: Even = "pad"
    canonical_shards: int | None = None

    @property
    def unnamed(self) -> frozenset[str]:
        return frozenset({"num_shards", "index", "canonical_shards"})

    def check(self) -> None:
        positive_integer("shard", "num_shards", self.num_shards)
        if not is_integer(self.index) or not 0 <= self.index < self.num_shards:
            raise PipelineError(
                f"shard: expected index from 0 to num_shards - 1 = {self.num_shards - 1}, got {self.index!r}."
            )
        if self.even not in ("pad", "drop", "none"):
            raise PipelineError(f"shard: expected even='pad', 'drop' or 'none', got {self.even!r}.")
        if self.canonical_shards is not None:
            positive_integer("shard", "canonical_shards", self.canonical_shards)


@dataclass(frozen=True)
class ShardRowGroups(Shard):
    """The rows of row groups ``index``, ``index + num_shards``, ... of the dataset: how Petastorm deals shards."""

    verb: ClassVar[str] = "shard_row_groups"


@dataclass(frozen=True)
class Shuffle(Stage):
    """A new order in every epoch; ``drawn`` tells that nobody chose the seed, so other processes have another."""

    verb: ClassVar[str] = "shuffle"
    buffer_size: int
    seed: Seed
    reshuffle_each_iteration: bool = True
    drawn: bool = field(default=False, compare=False, repr=False)

    @property
    def unnamed(self) -> frozenset[str]:
        return frozenset({"seed"})

    def check(self) -> None:
        positive_integer("shuffle", "buffer_size", self.buffer_size)
        if not is_integer(self.seed):
            raise PipelineError(f"shuffle: expected an integer seed or None, got {self.seed!r}.")


@dataclass(frozen=True)
class Cache(Stage):
    """Keep fetched columns on local disk."""

    verb: ClassVar[str] = "cache"
    directory: str
    max_bytes: int | None = None

    def check(self) -> None:
        if self.max_bytes is not None:
            positive_integer("cache", "max_bytes", self.max_bytes)


@dataclass(frozen=True)
class Transform(Stage):
    """A user function over rows or batches."""

    verb: ClassVar[str] = "transform"
    function: UserFunction
    output: tuple[UnischemaField, ...] | None = None
    remove: tuple[str, ...] = ()
    batched: bool | Literal["arrow"] = False
    drops: bool = False

    def check(self) -> None:
        if self.drops and self.batched:
            raise PipelineError(
                "transform: expected drops=True with a function of single rows, got batched. Use where(function, "
                "batched=True) to leave out rows of a batch."
            )
        if self.batched not in (True, False, "arrow"):
            raise PipelineError(f"transform: expected batched=True, False or 'arrow', got {self.batched!r}.")
        for item in self.output or ():
            if not isinstance(item, UnischemaField):
                raise PipelineError(f"transform: expected UnischemaField values in output, got {item!r}.")

    def to_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "function": self.function.to_json(),
            "output": None if self.output is None else [field.to_json() for field in self.output],
            "remove": list(self.remove),
            "batched": self.batched,
            "drops": self.drops,
        }

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        output = parameters["output"]
        return cls(
            UserFunction.from_json(parameters["function"]),
            None if output is None else tuple(UnischemaField.from_json(field) for field in output),
            tuple(parameters["remove"]),
            parameters["batched"],
            parameters["drops"],
        )


@dataclass(frozen=True)
class Batch(Stage):
    """Rows grouped under a leading axis."""

    verb: ClassVar[str] = "batch"
    batch_size: int
    drop_remainder: bool = False

    @property
    def unnamed(self) -> frozenset[str]:
        return frozenset({"batch_size"})

    def check(self) -> None:
        positive_integer("batch", "batch_size", self.batch_size)


@dataclass(frozen=True)
class Repeat(Stage):
    """Several passes; ``None`` = for ever."""

    verb: ClassVar[str] = "repeat"
    count: int | None = None

    def check(self) -> None:
        if self.count is not None:
            count_or_zero("repeat", "count", self.count)


@dataclass(frozen=True)
class Take(Stage):
    """Only the first elements."""

    verb: ClassVar[str] = "take"
    count: int

    def check(self) -> None:
        count_or_zero("take", "count", self.count)


@dataclass(frozen=True)
class Skip(Stage):
    """All but the first elements."""

    verb: ClassVar[str] = "skip"
    count: int

    def check(self) -> None:
        count_or_zero("skip", "count", self.count)


def with_canonical_shards(stages: Sequence[Stage], count: int) -> list[Stage]:
    """The stages with this many canonical shards, where nobody chose how many."""
    return [
        replace(stage, canonical_shards=count) if isinstance(stage, Shard) and stage.canonical_shards is None else stage
        for stage in stages
    ]


def is_integer(value: Any) -> bool:
    """Whether a plain value is a whole number and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def positive_integer(verb: str, name: str, value: Any) -> None:
    """Raises `PipelineError` unless a plain value is an integer of at least 1."""
    if not is_integer(value) or value < 1:
        raise PipelineError(f"{verb}: expected {name} to be an integer >= 1, got {value!r}.")


def count_or_zero(verb: str, name: str, value: Any) -> None:
    """Raises `PipelineError` unless a plain value is an integer of at least 0."""
    if not is_integer(value) or value < 0:
        raise PipelineError(f"{verb}: expected {name} to be an integer >= 0, got {value!r}.")


def normalise_gap(max_gap: Any) -> Any:
    """``max_gap`` in a form that goes to JSON: a number, or ``(count, unit)`` for time differences.

    Raises:
        PipelineError: a negative gap, NaN, or another type.
    """
    max_gap = plain(max_gap)
    if max_gap is None:
        return None
    if isinstance(max_gap, datetime.timedelta):
        max_gap = np.timedelta64(max_gap)
    if isinstance(max_gap, np.timedelta64):
        count, unit = int(max_gap.astype(np.int64)), np.datetime_data(max_gap.dtype)[0]
        result: Any = (count, unit)
        negative = count < 0
    elif isinstance(max_gap, int | float) and not isinstance(max_gap, bool):
        result = max_gap
        negative = not result >= 0
    else:
        raise PipelineError(f"ngram: expected max_gap to be a number or a time difference, got {max_gap!r}.")
    if negative:
        raise PipelineError(f"ngram: expected max_gap >= 0, got {max_gap!r}.")
    return None if isinstance(result, float) and math.isinf(result) else result
