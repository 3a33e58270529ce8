"""`Step`: work on columns that a stage asks for, as a value; a module of ``engine/steps`` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..schema.element import Path


class Step:
    """Base of all steps; subclasses are frozen dataclasses. They travel to worker processes."""

    __slots__ = ()

    @property
    def changes_one_column(self) -> bool:
        """Whether it changes one column (``number``) and adds and removes none, so that others may go before it."""
        return False

    @property
    def adds_column(self) -> bool:
        """Whether it puts one more column, which tells about column ``number``, at the end."""
        return False

    @property
    def needs_whole_batch(self) -> bool:
        """Whether what it gives depends on which rows share a batch."""
        return False

    @property
    def runs_user_code(self) -> bool:
        """Whether it calls a function that the user gave."""
        return False

    @property
    def drops_rows(self) -> bool:
        """Whether it may leave rows out."""
        return False

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        """For each column behind it which of some columns it still is; ``None`` for those that it made or changed."""
        if not self.changes_one_column and not self.adds_column:
            return [None] * len(columns)
        result = list(columns)
        result[self.number] = None  # type: ignore[attr-defined]  # these have one
        return [*result, None] if self.adds_column else result

    def with_lists(self, number: int, levels: int) -> Step | None:
        """The step that gives column ``number`` as nested lists; ``None`` if it cannot."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStep:
    """Joining rows of token lists into items of one length; see `plan.draws.Draw`.

    Attributes:
        length: tokens of an item.
        separators: for each field what stands between rows; ``None`` if nothing does.
        padding: for each field what fills an item that has fewer tokens.
        positions: whether ``segment_ids`` and ``position_ids`` come after the fields.
    """

    length: int
    separators: tuple[int | float, ...] | None
    padding: tuple[int | float, ...]
    positions: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStep:
    """Forming windows out of rows.

    Attributes:
        offsets: the offset of each step of the window, ascending; negative ones come before the anchor.
        leaves: for each output its path, the position of its input, and the step it is taken from (``None``: all of
            them, stacked).
    """

    offsets: tuple[int, ...]
    leaves: tuple[tuple[Path, int, int | None], ...]
