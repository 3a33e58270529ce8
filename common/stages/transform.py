"""``transform``: applies a user function to rows or batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import ClassVar, Literal

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField, output_of
from ..schema.field import UnischemaField
from ..schema.plain import Seed
from .base import SeededStage, Stage
from .columns import Columns
from .functions import UserFunction
from .steps import Step

_FUNCTIONS = 8  # the purpose of random numbers; images have those below
FunctionForm = Literal["row", "batch", "arrow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformStep(Step):
    """Calls one user function.

    Attributes:
        function: row dict -> row dict; dict of arrays with a leading row axis -> the same; or Arrow batch -> the same.
        inputs: the columns passed to the function.
        outputs: the columns after the step; the last ``declared`` of them are new.
        form: which of the three signatures ``function`` has.
        partial: whether the function may leave out outputs before those, which then stay as they are.
        adds: whether it must leave them out, or return them unchanged.
        lengths: whether the lengths of the declared outputs are counted.
        drops: whether the function may return ``None`` to leave a row out (``"row"`` only).
        key: identifies the numbers of the generators that the function gets with each row; ``None`` = it gets none.
    """

    runs_user_code: ClassVar[bool] = True
    function: UserFunction
    inputs: tuple[OutputField, ...]
    outputs: tuple[OutputField, ...]
    form: FunctionForm
    drops: bool = False
    declared: int = 0
    partial: bool = False
    adds: bool = False
    lengths: bool = False
    key: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return self.function.name

    def source_of(self, number: int) -> int:
        """The number of the input that output ``number`` is, if the function leaves it out."""
        path = self.outputs[number].path
        return next(place for place, field in enumerate(self.inputs) if field.path == path)

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        return [None] * len(self.outputs)

    def counted(self, columns: Sequence[bool]) -> list[bool]:
        stay = range(len(self.outputs) - self.declared)
        return [*(self.partial and columns[self.source_of(number)] for number in stay), *[self.lengths] * self.declared]

    def with_lists(self, number: int, levels: int) -> Step | None:
        if number < len(self.outputs) - self.declared:  # the function received it as arrays
            return None
        changed = replace(self.outputs[number], levels=levels)
        if self.form == "arrow" and changed.window is not None:
            return None
        return replace(self, outputs=(*self.outputs[:number], changed, *self.outputs[number + 1 :]))

    @property
    def needs_whole_batch(self) -> bool:
        return self.form != "row"

    @property
    def draws_numbers(self) -> bool:
        return self.key is not None

    @property
    def drops_rows(self) -> bool:
        return self.drops


@dataclass(frozen=True)
class Transform(SeededStage):
    """Applies a user function to rows or batches.

    Attributes:
        output: the declarations of fields that the function adds or changes; ``None`` = it changes only values.
        adds: the names of the only fields that it adds or changes, which are declared or exist already; ``None`` = it
            may change others, too.
        lengths: whether the lengths of declared fields can be counted before the order.
    """

    verb: ClassVar[str] = "transform"
    changes_names: ClassVar[bool] = True
    makes_values: ClassVar[bool] = True
    function: UserFunction
    output: tuple[UnischemaField, ...] | None = None
    remove: tuple[str, ...] = ()
    batched: bool | Literal["arrow"] = False
    drops: bool = False
    rng: bool = False
    seed: Seed = 0
    drawn: bool = field(default=False, compare=False, repr=False)
    adds: tuple[str, ...] | None = None
    lengths: bool = False

    @classmethod
    def sample(cls) -> Stage:
        return cls(UserFunction(dict))

    def check(self) -> None:
        if self.drops and self.batched:
            raise PipelineError(
                "transform: expected drops=True only with a function of single rows, got a batched one. Use "
                "where(function, batched=True) to leave out rows of a batch."
            )
        if self.lengths:
            self._check_lengths()
        if self.rng and self.batched:
            raise _refuse_generator()
        if self.batched not in (True, False, "arrow"):
            raise PipelineError(f"transform: expected batched=True, False or 'arrow', got {self.batched!r}.")
        for item in self.output or ():
            if not isinstance(item, UnischemaField):
                raise PipelineError(f"transform: expected UnischemaField values in output, got {item!r}.")

    def _check_lengths(self) -> None:
        if not self.output and not self.adds:
            raise PipelineError(
                "transform: expected output=[...] or adds=[...] with lengths=True, got neither. Declare the fields "
                "whose lengths it gives, such as UnischemaField('tokens', np.int32, shape=(None,))."
            )
        if self.rng or self.drops:
            raise PipelineError(
                f"transform: expected lengths=True without {'rng' if self.rng else 'drops'}=True, because every pass "
                "must give the lengths that were counted. Leave rows out with where() before it."
            )

    @property
    def decides_order(self) -> bool:
        return self.drops or self.lengths

    @property
    def hides_length(self) -> bool:
        return self.drops

    def __str__(self) -> str:
        return self.without_drawn_seed(super().__str__())

    def changes(self, name: str) -> bool:
        if self.adds is not None:
            return name in self.adds
        return self.output is None or any(item.name == name for item in self.output)

    def counts(self, name: str) -> bool:
        return self.lengths and self.changes(name)

    @property
    def made_from(self) -> None:
        return None

    def apply(self, columns: Columns) -> None:
        columns.open()
        removed = set(columns.named(self.remove))
        declared = self._declared(columns)
        replaced = {output.path for output in declared}
        kept = [output for output in columns.outputs if output.path[-1] not in removed and output.path not in replaced]
        step = TransformStep(
            function=self.function,
            inputs=tuple(columns.outputs),
            outputs=(*kept, *declared),
            form=self._form(columns),
            drops=self.drops,
            declared=len(declared),
            partial=self.output is not None,
            adds=self.adds is not None,
            lengths=self.lengths,
            key=self._key(columns),
        )
        if step.key is not None and step.form != "row":
            raise _refuse_generator()
        if not step.outputs:
            raise PipelineError(f"transform {step.name}: expected at least one field to remain, got none.")
        columns.steps.append(step)
        columns.outputs = list(step.outputs)

    def _declared(self, columns: Columns) -> list[OutputField]:
        """The fields that the function adds or changes."""
        declared = {item.name: output_of(item) for item in self.output or ()}
        if self.adds is None:
            return list(declared.values())
        for name in self.adds:
            if name not in columns.names and name not in declared:
                raise PipelineError(
                    f"transform {self.function.name}: field '{name}' of adds=[...]: expected its dtype and shape, "
                    f"because there is no such field before. Write UnischemaField('{name}', np.float32, shape=()), for "
                    "example."
                )
        existing = {output.name: output for output in columns.outputs if len(output.path) == 1}
        hidden = next((name for name in self.adds if name not in existing and name not in declared), None)
        if hidden is not None:
            raise PipelineError(
                f"transform {self.function.name}: expected fields of the whole window in adds=[...], got '{hidden}', "
                "which windows have at each offset. Leave adds out, and return {**row, ...}."
            )
        return [declared.get(name) or existing[name] for name in self.adds]

    def _key(self, columns: Columns) -> tuple[int, ...] | None:
        if not self.rng:
            return None
        columns.calls += 1
        return (_FUNCTIONS, *self.stream(columns))

    def _form(self, columns: Columns) -> FunctionForm:
        if self.batched == "arrow":
            if any(len(output.path) > 1 for output in columns.outputs):
                raise PipelineError("transform: expected plain fields for batched='arrow', got windows with offsets.")
            if any(output.levels and output.window is not None for output in columns.outputs):
                raise PipelineError(
                    "transform: expected no nested lists in windows with batched='arrow', got some. Use batched=True."
                )
            return "arrow"
        return "batch" if self.batched or columns.batched else "row"


def _refuse_generator() -> PipelineError:
    return PipelineError(
        "transform: expected rng=True only with a function of single rows, got one of batches, which another batch "
        "size would change. Call it before batch(), without batched=."
    )
