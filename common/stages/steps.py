"""`Step`: a value that describes work on columns. Stages create steps, and modules of ``engine/steps`` run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ..base.process.dataclass import dataclass
from ..schema.element import OutputField


class Step:
    """Base of all steps. Subclasses are frozen dataclasses, which are sent to worker processes.

    Attributes:
        number: the column that the step changes or describes, if there is one.
        projects: whether it only chooses columns.
        reads_stored: whether it can read stored values directly, on the way into the batch.
        runs_user_code: whether it calls a function passed by the user.
    """

    __slots__ = ()
    number: int
    projects: ClassVar[bool] = False
    reads_stored: ClassVar[bool] = False
    runs_user_code: ClassVar[bool] = False

    @property
    def changes_one_column(self) -> bool:
        """Whether it changes only column ``number`` and adds and removes none, so it may swap places with others."""
        return False

    @property
    def adds_column(self) -> bool:
        """Whether it appends a column that describes column ``number``."""
        return False

    @property
    def taken(self) -> tuple[int, ...] | None:
        """The columns that it works on; ``None`` = all of them."""
        return (self.number,) if self.changes_one_column or self.adds_column else None

    @property
    def kept(self) -> tuple[int, ...] | None:
        """The columns that remain, before those that it makes; ``None`` = all of them, in their places."""
        return None

    @property
    def needs_whole_batch(self) -> bool:
        """Whether its output depends on which rows share a batch."""
        return False

    @property
    def draws_numbers(self) -> bool:
        """Whether it draws random numbers for rows, so that copies of a row may differ."""
        return False

    @property
    def drops_rows(self) -> bool:
        """Whether it may leave rows out."""
        return False

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        """For each output column, the entry of ``columns`` that it still holds; ``None`` if made or changed here."""
        if not self.changes_one_column and not self.adds_column:
            return [None] * len(columns)
        result = list(columns)
        result[self.number] = None
        return [*result, None] if self.adds_column else result

    def counted(self, columns: Sequence[bool]) -> list[bool]:
        """For each output column, whether a function makes it whose lengths are counted; ``columns`` says it before."""
        if self.changes_one_column:
            return list(columns)
        return [*columns, False] if self.adds_column else [bool(entry) for entry in self.untouched([*columns])]

    def on_columns(self, chosen: Sequence[int]) -> Step:
        """The step on only these columns, in this order. They include all that it works on (`taken`)."""
        return replace(self, number=chosen.index(self.number))  # type: ignore[type-var]  # subclasses are dataclasses

    def check_batches(self, *, batched: bool, drops: bool) -> None:
        """Raises `PipelineError` if it needs batches whose rows are all known in advance."""

    def with_lists(self, number: int, levels: int) -> Step | None:
        """A copy of the step that returns column ``number`` as nested lists; ``None`` if it cannot."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueStep(Step):
    """Computes each value of column ``number``, which holds ``field``, from that value alone. Nulls stay nulls.

    Attributes:
        verb: the verb, for errors.
    """

    changes_one_column: ClassVar[bool] = True
    verb: ClassVar[str]
    number: int
    field: OutputField


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStep:
    """Joins rows of token lists into items of equal length; see `plan.block_reads.BlockRead`.

    Attributes:
        length: tokens per item.
        separators: for each field, the token between rows; ``None`` for no separators.
        padding: for each field, the token that fills up short items.
        positions: whether ``segment_ids`` and ``position_ids`` follow the fields.
    """

    length: int
    separators: tuple[int | float, ...] | None
    padding: tuple[int | float, ...]
    positions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLeaf:
    """What a window has of one column.

    Attributes:
        number: the column; ``None`` for a column that flags the steps where an edge row is repeated.
        offsets: the steps that are stacked, in this order, or the one step that has no window axis.
    """

    number: int | None
    offsets: int | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStep:
    """Forms windows from rows.

    Attributes:
        offsets: the offset of each step of the window; the first step is the row that identifies the window.
        leaves: what the window has of which column, for each output.
    """

    offsets: tuple[int, ...]
    leaves: tuple[WindowLeaf, ...]

    def steps_of(self, leaf: WindowLeaf) -> list[int]:
        """The places among ``offsets`` of a leaf's steps."""
        if isinstance(leaf.offsets, int):
            return [self.offsets.index(leaf.offsets)]
        places = {offset: place for place, offset in enumerate(self.offsets)}
        return [places[offset] for offset in leaf.offsets]
