"""``encode``: replaces strings and other categories with codes from a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.errors import FieldNotFoundError, PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.field import UnischemaField, no_such_field
from ..schema.plain import is_iterable
from ..schema.training_statistics import TrainingStatistics
from ..schema.vocabulary import Vocabulary
from .base import Fill, Stage, check_fill
from .columns import Columns, ResolveFields
from .names import StoredName
from .nulls import Nulls, NullStep
from .number_base import one_source
from .steps import Step, ValueStep


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeStep(ValueStep):
    """Replaces values by their codes.

    Attributes:
        vocabulary: the values; ``None`` until they are learned.
        learned: the index of the vocabulary among the learned ones.
        unknown: the code of values that are not in the vocabulary; ``None`` = raise an error for them.
        null: the value that took the place of nulls, which a learned vocabulary may lack.
    """

    verb: ClassVar[str] = "encode"
    vocabulary: Vocabulary | None
    learned: int
    unknown: int | None
    null: Any = None


@dataclass(frozen=True)
class Encode(Stage):
    """Replaces the values of a field by codes; if ``vocabulary`` is ``None``, learns it from the selected rows."""

    verb: ClassVar[str] = "encode"
    sample_arguments: ClassVar[tuple[object, ...]] = ("x", ("x",))
    field: StoredName
    vocabulary: tuple[Any, ...] | None = None
    unknown: int | Literal["error"] = "error"
    null: Fill = None

    @classmethod
    def of(
        cls,
        field: str | UnischemaField,
        vocabulary: Iterable[object] | None,
        unknown: object,
        null: object = None,
        stats: TrainingStatistics | None = None,
    ) -> Encode:
        """Creates the stage; a vocabulary is any iterable of values, or comes from what was fitted."""
        name = field.name if isinstance(field, UnischemaField) else field
        if stats is not None:
            one_source("encode", stats, "a vocabulary", vocabulary)
            vocabulary = stats.vocabulary("encode", name)
        who = f"encode '{name}', vocabulary"
        if isinstance(vocabulary, str | bytes) or not (vocabulary is None or is_iterable(vocabulary)):
            raise PipelineError(f"{who}: expected a list of values, got {vocabulary!r}.")
        if isinstance(vocabulary, set | frozenset):  # its order differs between processes, so the codes would
            raise PipelineError(f"{who}: expected a list, whose order gives the codes, got a set. Pass sorted(values).")
        values = None if vocabulary is None else tuple(Vocabulary.of(vocabulary, who).values.to_pylist())
        return cls(name, values, unknown, null)  # type: ignore[arg-type]  # checked there

    def check(self) -> None:
        if not isinstance(self.field, str) or not self.field:
            raise PipelineError(f"encode: expected the name of a field, got {self.field!r}.")
        check_fill("encode", "null", self.null)

    def changes(self, name: str) -> bool:
        return name == self.field

    @property
    def learns(self) -> bool:
        return self.vocabulary is None

    @property
    def reads(self) -> tuple[str, ...]:
        return super().reads if self.learns else ()

    def check_fields(self, resolve: ResolveFields) -> None:
        for field in resolve(self.reads or ()) if self.learns else ():
            if field.storage.coded:
                raise PipelineError(
                    f"encode '{field.name}': expected a vocabulary, because the field is stored encoded by "
                    f"{type(field.storage).__name__}. Pass vocabulary=[...]."
                )

    def apply(self, columns: Columns) -> None:
        columns.open()
        numbers = [number for number, output in enumerate(columns.outputs) if output.path[-1] == self.field]
        if not numbers:
            raise FieldNotFoundError(f"encode: {no_such_field(self.field, columns.names)}")
        for number in numbers:
            self._check_type(columns.outputs[number])
        if self.null is not None and not any(_mask_of(columns, number) for number in numbers):
            Nulls("fill", (re.escape(self.field),), self.null).apply(columns)
        vocabulary = self.given
        for number in numbers:
            output = columns.outputs[number]
            step = EncodeStep(
                number=number,
                field=output,
                vocabulary=vocabulary,
                learned=columns.learned,
                unknown=None if self.unknown == "error" else self.unknown,
                null=self.null,
            )
            if not (self.learns and step.unknown is None and _put_before_mask(step, columns)):
                columns.steps.append(step)
            columns.outputs[number] = _encoded(output)
        columns.learned += self.learns

    @property
    def given(self) -> Vocabulary | None:
        """The vocabulary, if it need not be learned."""
        if self.vocabulary is None:
            return None
        return Vocabulary.of(self.vocabulary, f"encode '{self.field}'").including(self.null)

    def _check_type(self, output: OutputField) -> None:
        number = output.kind == "dense" and output.dtype.kind in "iu"
        if output.kind == "dense" and not number:
            raise PipelineError(
                f"encode: field '{output.name}': expected strings, bytes or integers, got {output.dtype}."
            )
        value_type = int if number else str if output.kind == "text" else bytes
        if self.vocabulary is not None and type(self.vocabulary[0]) is not value_type:
            raise PipelineError(
                f"encode: field '{output.name}': expected a vocabulary of {value_type.__name__} values, got "
                f"{self.vocabulary[0]!r}."
            )
        if self.null is not None and type(self.null) is not value_type:
            raise PipelineError(
                f"encode: field '{output.name}': expected null to be a {value_type.__name__}, got {self.null!r}. Its "
                "code is that of this value."
            )

    def to_json(self) -> dict[str, Any]:
        values = self.vocabulary
        if values is not None and isinstance(values[0], bytes):
            return {**super().to_json(), "vocabulary": [value.decode("latin-1") for value in values], "bytes": True}
        return super().to_json()

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Stage:
        if parameters.pop("bytes", False):
            parameters["vocabulary"] = [value.encode("latin-1") for value in parameters["vocabulary"]]
        return super().from_parameters(parameters)

    def __str__(self) -> str:
        shown = "" if self.vocabulary is None else f", {len(self.vocabulary):,} values"
        shown += "" if self.unknown == "error" else f", unknown={self.unknown}"
        return f"encode('{self.field}'{shown}{'' if self.null is None else f', null={self.null!r}'})"


def _encoded(output: OutputField) -> OutputField:
    return replace(output, kind="dense", dtype=np.dtype(np.int64), time=None, as_time=False)


def _mask_of(columns: Columns, number: int) -> tuple[list[Step], int, NullStep] | None:
    """The ``nulls("mask")`` that made a column, if one did: the list that holds its step, its index there, the step."""
    made = columns.made[number]
    if made is None:
        return None
    steps, place, made_as = made
    mask = steps[place]
    is_mask = isinstance(mask, NullStep) and mask.policy == "mask" and not mask.elements and mask.number == made_as
    return (steps, place, mask) if is_mask else None  # type: ignore[return-value]  # checked just now


def _put_before_mask(step: EncodeStep, columns: Columns) -> bool:
    """Puts a step before the ``nulls("mask")`` that made its column, if one did, and returns whether it did.

    The placeholder for masked nulls is not a stored value, so a learned vocabulary lacks it.
    """
    masked = _mask_of(columns, step.number)
    if masked is None:
        return False
    steps, place, mask = masked
    before = steps[place - 1] if place else None
    if isinstance(before, EncodeStep) and before.learned == step.learned:  # another offset of the same window
        return True
    steps[place : place + 1] = [
        replace(step, number=mask.number, field=mask.field),
        replace(mask, field=_encoded(mask.field)),
    ]
    return True


def encoded_as(stages: Sequence[Stage], name: str) -> tuple[str, Encode | None]:
    """The stored name of the field called ``name`` after all stages, and the last stage that encodes it, if any.

    Raises:
        FieldNotFoundError: the field was renamed and no longer has this name.
        PipelineError: another stage changes the field's values.
    """
    encode = None
    for stage in reversed(stages):
        name = stage.name_before(name)
        if isinstance(stage, Encode) and stage.field == name:
            encode = encode or stage
            if not stage.learns:
                return name, encode
        elif stage.changes(name):
            raise PipelineError(f"vocabulary of '{name}': expected stored values, got the output of {stage.verb}().")
    return name, encode
