"""`ElementProgram`: how the rows of a loaded block become elements. It is a value that is also sent to workers."""

from __future__ import annotations

from itertools import accumulate

from ..base.process.dataclass import dataclass
from ..base.process.forks import cached_property
from ..dataset.row_groups import MAX_VALUE_BYTES
from ..schema.element import Form, OutputField
from ..schema.field import UnischemaField
from ..stages.pack import PackStep
from ..stages.steps import JoinStep, Step, WindowStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input column, read from storage.

    Attributes:
        leaves: the numbers of the fields (for windows: of `WindowStep.leaves`): one, or those of a ``PackStep``.
        step: a step that reads the stored fields directly, without a separate column before it.
    """

    leaves: tuple[int, ...]
    step: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProgram:
    """Reads ``fields``, applies ``row_steps`` to rows, forms windows, and applies ``item_steps`` to yield ``outputs``.
    Alternatively, joins rows, after ``row_steps`` if functions make them, into items with ``join``, and then applies
    ``item_steps``.

    ``inputs`` are the columns passed to the first steps (``row_steps`` if there are any). ``form`` is the structure of
    the ``outputs``; see `Element`. ``strict_nulls`` says whether a null in an output is an error, because whoever gets
    the batch cannot represent it.
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
    strict_nulls: bool = False

    @property
    def drops(self) -> bool:
        """Whether a user function may leave rows out."""
        return any(step.drops_rows for step in self.item_steps)

    @property
    def packs(self) -> tuple[tuple[PackStep, tuple[int, ...]], ...]:
        """The steps that pack stored columns, with the fields that each packs."""
        window = None if self.row_steps else self.window
        steps = [(each.step, each.leaves) for each in self.inputs if isinstance(each.step, PackStep)]
        if window is None:
            return tuple(steps)
        taken = [(step, [window.leaves[leaf].number for leaf in leaves]) for step, leaves in steps]
        return tuple((step, tuple(number for number in numbers if number is not None)) for step, numbers in taken)

    @property
    def fields_by_item(self) -> tuple[int, ...]:
        """Fields that items take unchanged from one row, so that a shuffled block can hold them in item order."""
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
    def draws_numbers(self) -> bool:
        """Whether random numbers are drawn for rows, so that copies of a row may differ."""
        at_once = [each.step for each in self.inputs if each.step is not None]
        return any(step.draws_numbers for step in (*at_once, *self.row_steps, *self.item_steps))

    @property
    def costly(self) -> bool:
        """Whether decoding costs far more than copying."""
        return any(field.storage.costly for field in self.fields)

    @property
    def frees_interpreter(self) -> bool:
        """Whether nothing costly holds the interpreter lock for long."""
        return not any(field.storage.costly and not field.storage.frees_interpreter for field in self.fields)


@dataclass(frozen=True, kw_only=True)
class MixedProgram:
    """The programs of several sources, followed by ``item_steps`` for the rows of all of them. See `ElementProgram`.

    What each job asks is computed once, so that its cost does not grow with the number of sources.
    """

    sources: tuple[ElementProgram | MixedProgram, ...]
    item_steps: tuple[Step, ...]
    outputs: tuple[OutputField, ...]
    form: Form = None
    strict_nulls: bool = False

    @cached_property
    def first_leaves(self) -> list[int]:
        """The number of the first block source of each program."""
        return [0, *accumulate(len(leaves_of(source)) for source in self.sources[:-1])]

    @cached_property
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
    def draws_numbers(self) -> bool:
        """Whether random numbers are drawn for rows, so that copies of a row may differ."""
        own = any(step.draws_numbers for step in self.item_steps)
        return own or any(source.draws_numbers for source in self.sources)

    @property
    def costly(self) -> bool:
        """Whether decoding costs far more than copying."""
        return any(source.costly for source in self.sources)

    @property
    def frees_interpreter(self) -> bool:
        """Whether nothing costly holds the interpreter lock for long."""
        return all(source.frees_interpreter for source in self.sources)


def leaves_of(program: ElementProgram | MixedProgram) -> list[ElementProgram]:
    """Returns the single-dataset programs of a program, in the order of the source numbers of blocks."""
    if isinstance(program, ElementProgram):
        return [program]
    return [leaf for source in program.sources for leaf in leaves_of(source)]
