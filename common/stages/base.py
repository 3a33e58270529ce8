"""`Stage`: what a verb was given, checked, and everything that the rest needs to know about it.

A stage is a frozen value that goes to JSON and back. It says which decision it is, which stored fields it reads, which
fields it changes and how, and whether a client may send it to a server. Nothing else in the project asks what kind of
stage it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..errors import PipelineError
from ..predicates.column_predicates import ColumnPredicate
from ..schema.field import UnischemaField
from ..schema.plain import PlainFields
from .columns import Columns, ResolveFields
from .functions import UserFunction
from .names import NewNames

EVERY_FIELD = (".*",)
FieldNames = str | UnischemaField | Sequence[str | UnischemaField]
"""A name or regex, or several; a field may stand for its name."""
_KINDS: dict[str, type[Stage]] = {}
Same = TypeVar("Same", bound="Stage")


class Decision(Enum):
    """What a stage decides; `plan.stage_order` says what that means for its place in a pipeline."""

    ITEMS = "which rows are wanted"
    WINDOWS = "which consecutive rows form one item"
    ROW_GROUPS = "which row groups belong to this rank"
    CUT = "which stretch of the elements is wanted"
    ORDER = "in which order items come"
    PART = "which items belong to this rank"
    PASSES = "how often the items come"
    WEIGHTS = "how often each row comes in an epoch"
    JOINS = "which rows form one item together"
    BATCHES = "how many rows an element has"
    FIELDS = "what a row holds"
    FORM = "how the fields of a row are put together"
    BYTES = "where bytes come from"


class Stage(PlainFields):
    """Base of all stages; subclasses are frozen dataclasses, one in each module of this package.

    Attributes:
        verb: its name in JSON, and in messages.
        sendable: whether a client may add it to a pipeline that a server has. It must carry no code.
    """

    verb: ClassVar[str]
    sendable: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "verb" in cls.__dict__:
            _KINDS[cls.verb] = cls

    @classmethod
    def sample(cls) -> Stage:
        """A stage with the simplest arguments, to ask whether the verb may follow others."""
        raise NotImplementedError

    # --- what it decides ---

    @property
    def decides(self) -> Decision:
        """Which decision it is."""
        return Decision.FIELDS

    @property
    def decides_order(self) -> bool:
        """Whether another stage in its place could change which rows come in which order."""
        return self.decides is not Decision.FIELDS

    @property
    def makes_batches(self) -> bool:
        """Whether its items are batches of rows, of differing sizes."""
        return False

    def endless_after(self, endless: bool) -> bool:
        """Whether the rows never end behind it; ``endless`` says it of those before."""
        return endless

    @property
    def hides_length(self) -> bool:
        """Whether nobody knows how many rows it leaves before it has run."""
        return False

    # --- what it does to fields ---

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored fields whose values it needs before anything is decoded."""
        return ()

    @property
    def learns(self) -> bool:
        """Whether it must know the values of a field (`reads`) in all rows that are selected before it can work."""
        return False

    def check_fields(self, resolve: ResolveFields) -> None:
        """Raises `FieldNotFoundError` for a field that it reads and that is not there."""

    def changes(self, name: str) -> bool:
        """Whether it may give a field other values than the stored ones."""
        return False

    @property
    def keeps_lengths(self) -> bool:
        """Whether each value that was not null is as long behind it as stored."""
        return False

    @property
    def reads_lengths(self) -> bool:
        """Whether it needs no more than the lengths of the fields that it `reads`, and refuses nulls."""
        return False

    def apply(self, columns: Columns) -> None:
        """Does its work on the columns, as far as the schema tells; adds the steps that do the rest."""

    @property
    def changes_names(self) -> bool:
        """Whether fields may come, go, or be called otherwise behind it, or are given to a function by name."""
        return False

    @property
    def new_names(self) -> NewNames | None:
        """Which fields are called otherwise behind it."""
        return None

    def in_names_before(self: Same, names: NewNames) -> Same:
        """The stage behind ``names``, in the names before them, if it reads stored values."""
        return self

    @property
    def declared(self) -> tuple[UnischemaField, ...]:
        """Fields that say how stored columns are decoded, instead of the dataset's schema."""
        return ()

    @property
    def measure(self) -> Stage | None:
        """What must be known of each wanted row before the order is (a `Measure`)."""
        return None

    # --- what nobody chose ---

    @property
    def drawn_seed(self) -> int | None:
        """Its seed, if nobody chose it."""
        return None

    def with_seed(self: Same, seed: int) -> Same:
        """The stage with another seed, where its own is the pipeline's."""
        return self

    def with_canonical_shards(self: Same, count: int) -> Same:
        """The stage with this many canonical shards, where nobody chose how many."""
        return self

    # --- as a value ---

    @property
    def called(self) -> str:
        return self.verb

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

    @property
    def shortened_identity(self) -> str | None:
        """What states of version 1 know the stage by; ``None`` where another stage may have had the same name."""
        shown = str(self)
        return None if "..." in shown else shown

    def to_json(self) -> dict[str, Any]:
        """``{"verb": ..., **parameters}``."""
        parameters = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return {"verb": self.verb, **parameters}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        """Builds the stage from its JSON form without ``verb``."""
        return cls(**parameters)

    def __str__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, item.name)
            if item.repr and value != item.default:
                shown.append(f"{item.name}={value!r}")
        return f"{self.verb}({', '.join(shown)})"


def _identity_of(value: object) -> Any:
    if isinstance(value, UserFunction):
        return value.digest
    if isinstance(value, Stage):
        return value.identity
    return value.to_json() if isinstance(value, UnischemaField | ColumnPredicate) else repr(value)


@cache
def kinds() -> Mapping[str, type[Stage]]:
    """Every kind of stage by its verb: each module of this package has one or more."""
    package = __name__.rpartition(".")[0]
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
    return _KINDS


def stage_from_json(value: Mapping[str, Any]) -> Stage:
    """The stage that `Stage.to_json` described.

    Raises:
        PipelineError: a verb that this release does not know.
    """
    parameters = dict(value)
    verb = parameters.pop("verb", None)
    if verb not in _KINDS and verb not in kinds():
        raise PipelineError(f"stored pipeline: expected a stage of {sorted(_KINDS)}, got {verb!r}. Update parquetry.")
    return _KINDS[verb].from_parameters(parameters)


def drawn_seed(stages: Sequence[Stage]) -> int | None:
    """The first seed that nobody chose; ``None`` if all were given."""
    return next((stage.drawn_seed for stage in stages if stage.drawn_seed is not None), None)


def with_seed(stages: Sequence[Stage], seed: int) -> list[Stage]:
    """The stages with another seed of the shuffle, and of the stages that were given none."""
    return [stage.with_seed(seed) for stage in stages]


def with_canonical_shards(stages: Sequence[Stage], count: int) -> list[Stage]:
    """The stages with this many canonical shards, where nobody chose how many."""
    return [stage.with_canonical_shards(count) for stage in stages]


def names_of(fields: FieldNames) -> tuple[str, ...]:
    """The names and regexes; raises `PipelineError` for what holds none."""
    listed = (fields,) if isinstance(fields, str | UnischemaField) else fields
    if not isinstance(listed, Iterable):
        raise PipelineError(f"fields: expected a field name or regex, or several of them, got {fields!r}.")
    return tuple(item.name if isinstance(item, UnischemaField) else item for item in listed)


def required_names(verb: str, fields: FieldNames) -> tuple[str, ...]:
    """The names and regexes; raises `PipelineError` if there is none."""
    names = names_of(fields)
    if not names or not all(isinstance(name, str) for name in names):
        raise PipelineError(f"{verb}: expected a field name or regex, or several of them, got {fields!r}.")
    return names


def numeric_dtype(called: str, dtype: DTypeLike) -> str:
    """The name of a numeric or bool dtype; raises `PipelineError` for what is none."""
    try:
        found = None if dtype is None else np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.kind not in "biuf":
        raise PipelineError(f"{called}: expected a numeric dtype, got {dtype!r}.")
    return str(found.name)


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a field's name is one of the patterns, or a regex among them matches it in full."""
    return any(pattern == name or re.fullmatch(pattern, name) for pattern in patterns)


def is_integer(value: object) -> bool:
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
