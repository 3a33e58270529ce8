"""`ElementProgram`: how the rows of a loaded block become elements; a value that also travels to worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from ..layout.dataset import MAX_VALUE_BYTES
from ..schema.element import Form, OutputField
from ..schema.field import UnischemaField
from ..stages.image_base import ImageStep
from ..stages.pack import PackStep
from ..stages.steps import JoinStep, Step, WindowStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One column as it comes out of storage.

    Attributes:
        leaves: which fields (of windows: which of `WindowStep.leaves`): one, or those of a ``PackStep``.
        step: what they go straight through, without a column of their own before it.
    """

    leaves: tuple[int, ...]
    step: ImageStep | PackStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProgram:
    """Read ``fields``, apply ``row_steps`` to rows, form windows, apply ``item_steps``; give ``outputs``. Or ``join``
    the rows into items, then apply ``item_steps``.

    ``inputs`` are the columns that the first steps are given (``row_steps`` if there are any); ``form`` says how
    ``outputs`` are put together, see `Element`.
    """

    fields: tuple[UnischemaField, ...]
    row_steps: tuple[Step, ...]
    window: WindowStep | None
    item_steps: tuple[Step, ...]
    outputs: tuple[OutputField, ...]
    inputs: tuple[Input, ...]
    form: Form = None
    join: JoinStep | None = None
    max_value_bytes: int = MAX_VALUE_BYTES

    @property
    def drops(self) -> bool:
        """Whether a user function may leave rows out."""
        return any(step.drops_rows for step in self.item_steps)

    @property
    def packs(self) -> tuple[tuple[PackStep, tuple[int, ...]], ...]:
        """The steps that pack stored columns, and the fields that they take."""
        window = None if self.row_steps else self.window
        found = [(each.step, each.leaves) for each in self.inputs if isinstance(each.step, PackStep)]
        if window is None:
            return tuple(found)
        return tuple((step, tuple(window.leaves[leaf][1] for leaf in leaves)) for step, leaves in found)

    @property
    def fields_by_item(self) -> tuple[int, ...]:
        """Fields that go straight into items, one row each, so that a shuffled block may keep them in item order."""
        if self.window is not None or self.row_steps or self.join is not None:
            return ()
        return tuple(sorted({each.leaves[0] for each in self.inputs if each.step is None}))

    @property
    def shares_rows(self) -> bool:
        """Whether several items need the same row."""
        return self.window is not None and len(self.window.offsets) > 1

    @property
    def has_user_code(self) -> bool:
        """Whether user Python runs for every row or batch."""
        return any(step.runs_user_code for step in (*self.row_steps, *self.item_steps))

    @property
    def costly(self) -> bool:
        """Whether decoding costs far more than copying."""
        return any(field.storage.costly for field in self.fields)

    @property
    def frees_interpreter(self) -> bool:
        """Whether nothing costly holds the interpreter lock for long."""
        return not any(field.storage.costly and not field.storage.frees_interpreter for field in self.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedProgram:
    """Rows of several sources, each made by its own program; then ``item_steps`` over all of them."""

    sources: tuple[ElementProgram | MixedProgram, ...]
    item_steps: tuple[Step, ...]
    outputs: tuple[OutputField, ...]
    form: Form = None

    @property
    def drops(self) -> bool:
        """Whether a user function may leave rows out."""
        own = any(step.drops_rows for step in self.item_steps)
        return own or any(source.drops for source in self.sources)

    @property
    def has_user_code(self) -> bool:
        """Whether user Python runs for every row or batch."""
        own = any(step.runs_user_code for step in self.item_steps)
        return own or any(source.has_user_code for source in self.sources)

    @property
    def costly(self) -> bool:
        """Whether decoding costs far more than copying."""
        return any(source.costly for source in self.sources)

    @property
    def frees_interpreter(self) -> bool:
        """Whether nothing costly holds the interpreter lock for long."""
        return all(source.frees_interpreter for source in self.sources)


def leaves_of(program: ElementProgram | MixedProgram) -> list[ElementProgram]:
    """The programs of single datasets that it is made of, by the numbers that blocks have of their source."""
    if isinstance(program, ElementProgram):
        return [program]
    return [leaf for source in program.sources for leaf in leaves_of(source)]
