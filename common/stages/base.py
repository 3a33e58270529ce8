"""`Stage`: a verb's validated arguments, and everything other modules need to know about them.

A stage is a frozen value that survives a round trip through JSON. It says what it decides, which stored fields it
reads, which fields it changes and how, and whether a client may send it to a server. Other modules ask these questions.
Where another room turns a stage's parameters into work, it has one function for each: for views in
`plan.order.positions`, for items in `plan.joined_items`, for selections in `plan.selection.select`, for steps in
`engine.steps.apply`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, TypeGuard, TypeVar, get_args

import numpy as np
from numpy.typing import DTypeLike

from ..base.errors import PipelineError
from ..schema.dtypes import NO_DTYPE
from ..schema.field import UnischemaField
from ..schema.plain import PlainFields, hints_of, is_iterable, is_utf_8
from .columns import Columns, ResolveFields
from .functions import UserFunction
from .names import stored_names
from .predicates.column_predicates import ColumnPredicate, predicate_from_json
from .recut import Recut

EVERY_FIELD = (".*",)
FieldNames = str | UnischemaField | Iterable[str | UnischemaField]
"""One or more names or regexes; a `UnischemaField` stands for its name."""
Fill = Annotated[Any, "fill"]
"""A value that stands for missing ones: a number, text or bytes, or nested tuples of these. See `check_fill`."""
_KINDS: dict[str, type[Stage]] = {}
Same = TypeVar("Same", bound="Stage")
Seeded = TypeVar("Seeded", bound="SeededStage")


class Decision(Enum):
    """What a stage decides; `plan.stage_order` derives from it where in a pipeline the stage may stand."""

    ITEMS = "which rows to keep"
    WINDOWS = "which consecutive rows form one item"
    ROW_GROUPS = "which row groups belong to this rank"
    CUT = "which range of elements to keep"
    ORDER = "the order of the items"
    PART = "which items belong to this rank"
    PASSES = "how many passes to make over the items"
    WEIGHTS = "how often each row appears in an epoch"
    JOINS = "which rows are joined into one item"
    BATCHES = "how many rows an element has"
    FIELDS = "what a row holds"
    FORM = "how the fields of a row are arranged"
    BYTES = "where bytes come from"


class Stage(PlainFields):
    """Base of all stages. Subclasses are frozen dataclasses; each module of this package defines one or more.

    Attributes:
        verb: the stage's name in JSON and in messages.
        sample_arguments: the arguments of `sample`.
        sendable: whether a client may add it to a pipeline that a server holds. Such a stage must carry no code.
        repeatable: whether its JSON says exactly what it selects, so that another process may use a stored result.
        makes_batches: whether its items are batches of rows, which may differ in size.
        reads_lengths: whether it needs only the lengths of the fields that it `reads`, and rejects nulls.
        makes_values: whether it runs a user function that returns the values of fields.
        resizes: whether it scales images.
        keeps_values: whether it only chooses, names or reads fields, and leaves the work on values to other stages.
        selects: whether it only chooses stored fields or rows, so that a copy of these has the same elements.
        spans_rows: whether its items begin and end inside rows, so that what is left of them cannot be cut anew.
        keeps_first: whether it keeps the first items, whichever those are, up to a number.
    """

    verb: ClassVar[str]
    sample_arguments: ClassVar[tuple[object, ...]] = ()
    sendable: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True
    makes_batches: ClassVar[bool] = False
    reads_lengths: ClassVar[bool] = False
    makes_values: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    spans_rows: ClassVar[bool] = False
    keeps_first: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "verb" in cls.__dict__:
            _KINDS[cls.verb] = cls

    @classmethod
    def sample(cls) -> Stage:
        """A stage with minimal arguments, used to check whether the verb may follow other stages."""
        return cls(*cls.sample_arguments)

    # --- what the stage decides ---

    @property
    def decides(self) -> Decision:
        """What the stage decides."""
        return Decision.FIELDS

    @property
    def decides_order(self) -> bool:
        """Whether replacing the stage could change which rows come, or in which order."""
        return self.decides is not Decision.FIELDS

    def endless_after(self, endless: bool) -> bool:
        """Whether the rows after this stage never end; ``endless`` says whether those before it do not."""
        return endless

    @property
    def hides_length(self) -> bool:
        """Whether the number of rows it leaves is unknown until it has run."""
        return False

    # --- what the stage does to fields ---

    @property
    def reads(self) -> tuple[str, ...]:
        """The stored fields whose values it needs before anything is decoded: those declared as `StoredName` and the
        like.
        """
        return tuple(dict.fromkeys(stored_names(self)))

    @property
    def learns(self) -> bool:
        """Whether it first needs the values of a field (`reads`) in all selected rows."""
        return False

    def counts(self, name: str) -> bool:
        """Whether it makes the values of a field, and their lengths can be counted before the order (`MadeLengths`)."""
        return False

    @property
    def made_from(self) -> tuple[str, ...] | None:
        """The fields from which it makes values that it `counts`; ``None`` = all of them."""
        return ()

    def check_fields(self, resolve: ResolveFields) -> None:
        """Raises `FieldNotFoundError` if a field that it reads does not exist."""

    def changes(self, name: str) -> bool:
        """Whether it may replace the stored values of a field."""
        return False

    @property
    def casts_to(self) -> str | None:
        """The dtype of the fields that it `changes`, if it only casts them."""
        return None

    @property
    def keeps_lengths(self) -> bool:
        """Whether every non-null value keeps its stored length."""
        return False

    def apply(self, columns: Columns) -> None:
        """Updates the columns as far as the schema allows, and adds steps for the work that needs values."""

    @property
    def changes_names(self) -> bool:
        """Whether it may add, remove or rename fields, or passes them to a function by name."""
        return False

    def name_before(self, name: str) -> str:
        """The name before this stage of the field called ``name`` after it."""
        return name

    def as_before(self, later: Same) -> Same:
        """A later stage that reads stored values, as you would write it before this one."""
        return later

    def hides(self, name: str) -> bool:
        """Whether the field called ``name`` after it may be another than the stored field of this name."""
        return self.changes(name)

    @property
    def declared(self) -> tuple[UnischemaField, ...]:
        """Fields that override the dataset's schema when their columns are decoded."""
        return ()

    @property
    def measure(self) -> Stage | None:
        """The `Measure` of each wanted row that must be known before the order can be computed."""
        return None

    # --- defaults that the user did not choose ---

    def after(self: Same, stages: Sequence[Stage]) -> Same:
        """The stage as it follows other stages of a pipeline, if its defaults depend on them."""
        return self

    @property
    def drawn_seed(self) -> int | None:
        """The seed, if it was drawn because the user gave none."""
        return None

    def with_seed(self: Same, seed: int) -> Same:
        """The stage with another seed, if it follows the pipeline's seed."""
        return self

    @property
    def row_seed(self) -> int | None:
        """The seed by which it draws rows; ``None`` if it draws none."""
        return None

    def with_row_seed(self: Same, seed: int) -> Same:
        """The stage with another `row_seed`, even if the user gave one."""
        return self

    def with_streams(self: Same, count: int, recut: Recut | None) -> Same:
        """The stage with the streams of a state, unless the user set ``canonical_shards``."""
        return self

    # --- as a value ---

    @property
    def called(self) -> str:
        """The method that adds it, for messages."""
        return self.verb

    @property
    def unnamed(self) -> frozenset[str]:
        """Parameters that `identity` leaves out because states store them separately."""
        return frozenset()

    @property
    def identity(self) -> str:
        """Identifies the stage in states: every parameter that differs from its default, in full."""
        values = {
            item.name: getattr(self, item.name)
            for item in fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
            if item.compare and item.name not in self.unnamed and getattr(self, item.name) != item.default
        }
        return f"{self.verb} {json.dumps(values, default=_identity_of, sort_keys=True)}"

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"verb": ..., **parameters}``."""
        parameters = {item.name: _as_json(getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]
        return {"verb": self.verb, **parameters}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        """Builds the stage from its JSON form without ``verb``."""
        hints = hints_of(cls)
        return cls(**{name: _from_json(value, hints.get(name)) for name, value in parameters.items()})

    def __str__(self) -> str:
        shown = []
        for item in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, item.name)
            if item.repr and value != item.default:
                shown.append(f"{item.name}={value!r}")
        return f"{self.verb}({', '.join(shown)})"


class SeededStage(Stage):
    """Base of stages that draw random numbers; ``drawn`` marks a seed that the user did not give."""

    seed: int
    drawn: bool

    def stream(self, columns: Columns) -> tuple[int, ...]:
        """Identifies the random numbers of the latest call in ``columns.calls``.

        Calls with the same explicit seed draw the same numbers; calls without a seed draw independently.
        """
        if not self.drawn:
            return (self.seed,)
        return (self.seed if columns.seed is None else columns.seed, columns.calls)

    def without_drawn_seed(self, shown: str) -> str:
        """The text of the stage without a seed that the user did not give."""
        return shown.replace(f", seed={self.seed!r}", "") if self.drawn else shown

    @property
    def drawn_seed(self) -> int | None:
        return self.seed if self.drawn else None

    @property
    def unnamed(self) -> frozenset[str]:
        """The seed, if the user gave none."""
        return frozenset({"seed"} if self.drawn else ())

    def with_seed(self: Seeded, seed: int) -> Seeded:
        return replace(self, seed=seed) if self.drawn else self  # type: ignore[type-var]  # subclasses are dataclasses


def _identity_of(value: object) -> Any:
    if isinstance(value, UserFunction):
        return value.digest
    if isinstance(value, Stage):
        return value.identity
    return value.to_json() if isinstance(value, UnischemaField | ColumnPredicate) else repr(value)


def check_fill(verb: str, name: str, value: object) -> None:
    """Checks a value that stands for missing ones.

    Raises:
        PipelineError: it is of another type.
    """
    if isinstance(value, tuple):
        for each in value:
            check_fill(verb, name, each)
    elif isinstance(value, str) and not is_utf_8(value):
        raise PipelineError(f"{verb}: expected {name} to be text that UTF-8 can hold, got {value!r}.")
    elif value is not None and not isinstance(value, bool | int | float | str | bytes):
        raise PipelineError(
            f"{verb}: expected {name} to be a number, text or bytes, or an array of these, got {value!r}. Times and "
            "decimals are numbers here, in the unit of the field."
        )


def _as_json(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, tuple) and any(isinstance(each, UnischemaField | bytes | tuple) for each in value):
        return [_as_json(each) for each in value]
    own = getattr(value, "to_json", None)
    return value if own is None else own()


def _fill_from_json(value: object) -> object:
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    return tuple(map(_fill_from_json, value)) if isinstance(value, list | tuple) else value


_READERS: dict[object, Callable[[Any], object]] = {
    Fill: _fill_from_json,
    UserFunction: UserFunction.from_json,
    UnischemaField: UnischemaField.from_json,
    ColumnPredicate: predicate_from_json,
}


def _from_json(value: object, hint: object) -> object:
    """Rebuilds the objects of a value; ``hint`` is its annotated type."""
    read = _reader_in(hint)
    if read is None or value is None:
        return value
    return tuple(map(read, value)) if isinstance(value, list | tuple) else read(value)


def _reader_in(hint: object) -> Callable[[Any], object] | None:
    return _READERS.get(hint) or next(filter(None, map(_reader_in, get_args(hint))), None)


@cache
def kinds() -> Mapping[str, type[Stage]]:
    """Imports every module of this package and returns all stage classes by verb."""
    package = __name__.rpartition(".")[0]
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
    return _KINDS


def stage_from_json(value: Mapping[str, Any]) -> Stage:
    """Rebuilds a stage from the output of `Stage.to_json`.

    Raises:
        PipelineError: this release does not know the verb, or a parameter of it.
    """
    parameters = dict(value)
    verb = parameters.pop("verb", None)
    if verb not in _KINDS and verb not in kinds():
        raise PipelineError(f"stored pipeline: expected a stage in {sorted(_KINDS)}, got {verb!r}. Update parquetry.")
    try:
        return _KINDS[verb].from_parameters(parameters)
    except TypeError as error:
        raise PipelineError(
            f"stored pipeline: expected {verb} with the parameters of this release, got {sorted(parameters)}: {error}. "
            "Update parquetry, or make the pipeline again."
        ) from error


def drawn_seed(stages: Sequence[Stage]) -> int | None:
    """The first seed that was drawn rather than given; ``None`` if all were given."""
    return next((stage.drawn_seed for stage in stages if stage.drawn_seed is not None), None)


def with_seed(stages: Sequence[Stage], seed: int) -> list[Stage]:
    """The stages with another seed for the shuffle and for the stages that were given none."""
    return [stage.with_seed(seed) for stage in stages]


def with_streams(stages: Sequence[Stage], count: int, recut: Recut | None) -> list[Stage]:
    """The stages with the streams of a state wherever the user set no ``canonical_shards``."""
    return [stage.with_streams(count, recut) for stage in stages]


def listed(verb: str, fields: FieldNames | Iterable[FieldNames]) -> list[str | UnischemaField]:
    """The names, regexes and fields as one list: ``"a", "b"`` and ``["a", "b"]`` are the same.

    A set is sorted: its own order differs between processes, and states and ranks depend on the order.

    Raises:
        PipelineError: something is neither a name, a field, nor several of them.
    """
    if isinstance(fields, str | bytes | UnischemaField):
        return [fields]  # bytes are refused by the caller, with all names
    if not is_iterable(fields) or isinstance(fields, Mapping):
        raise PipelineError(f"{verb}: expected a field name or regex, or several of them, got {fields!r}.")
    items = sorted(fields, key=str) if isinstance(fields, set | frozenset) else fields
    return [name for item in items for name in listed(verb, item)]


def names_of(verb: str, fields: FieldNames | Iterable[FieldNames]) -> tuple[str, ...]:
    """The names and regexes as a tuple; raises `PipelineError` if ``fields`` is not iterable."""
    return tuple(item.name if isinstance(item, UnischemaField) else item for item in listed(verb, fields))


def required_names(verb: str, fields: FieldNames | Iterable[FieldNames]) -> tuple[str, ...]:
    """The names and regexes as a tuple; raises `PipelineError` unless there is at least one."""
    names = names_of(verb, fields)
    if not names or not all(isinstance(name, str) for name in names):
        raise PipelineError(f"{verb}: expected a field name or regex, or several of them, got {fields!r}.")
    return names


def numeric_dtype(called: str, dtype: DTypeLike) -> str:
    """The name of a numeric or bool dtype; raises `PipelineError` for anything else."""
    try:
        result = None if dtype is None else np.dtype(dtype)
    except NO_DTYPE:
        result = None
    if result is None or result.kind not in "biuf":
        raise PipelineError(f"{called}: expected a numeric dtype, got {dtype!r}.")
    return str(result.name)


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a field's name equals one of the patterns, or fully matches one as a regex."""
    return any(pattern == name or re.fullmatch(pattern, name) for pattern in patterns)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a plain value is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def positive_integer(verb: str, name: str, value: object) -> None:
    """Raises `PipelineError` unless a plain value is an integer of at least 1."""
    if not is_integer(value) or value < 1:
        raise PipelineError(f"{verb}: expected {name} to be an integer >= 1, got {value!r}.")


def count_or_zero(verb: str, value: object) -> None:
    """Raises `PipelineError` unless a plain value is an integer of at least 0."""
    if not is_integer(value) or value < 0:
        raise PipelineError(f"{verb}: expected count to be an integer >= 0, got {value!r}.")
