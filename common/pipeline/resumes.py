"""`ResumeWatch`: warns when another iterator begins before the end of a resumed epoch, whose rest is then lost.

A loaded state belongs to one iterator. If you look at one batch of it, and then loop over another iterator, that one is
in the next epoch. Each dataset has one watch. TensorFlow's is in its op, because tf.data begins iterators unseen.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ..base.process.dataclass import dataclass
from ..plan.order.cursor import Cursor
from ..plan.plan import BasePlan

_LOGGER = logging.getLogger(__name__)


class IteratorProgress(Protocol):
    """How much of an iterator was taken. It outlives the iterator, and holds no data.

    Attributes:
        resumed: whether the iterator took a loaded state.
    """

    consumed: int
    finished: bool
    resumed: bool


@dataclass(slots=True, kw_only=True)
class PlainProgress:
    """A `IteratorProgress` that is no more than that."""

    consumed: int = 0
    finished: bool = False
    resumed: bool = False


class ResumeWatch:
    """Knows the latest iterator that took a loaded state."""

    def __init__(self) -> None:
        self._resumed: tuple[IteratorProgress, int | None, int] | None = None

    def took_state(self, taken: IteratorProgress, total: int | None, *, at_once: int = 1) -> None:
        """Call this when an iterator took a loaded state.

        Args:
            taken: what is taken of it, in elements from the same beginning as ``total``.
            total: the number of elements at its end; ``None`` = unknown, or endless.
            at_once: fewer elements than this may be left at its end.
        """
        taken.resumed = True
        self._resumed = taken, total, at_once

    def begins(self, taken: IteratorProgress) -> None:
        """Call this when an iterator gives its first element; warns if the one that took a state is not at its end.

        Several iterators may take states, and be read side by side.
        """
        if self._resumed is None or taken.resumed:
            return
        (before, total, at_once), self._resumed = self._resumed, None
        left = None if total is None else total - before.consumed
        if not before.finished and (left is None or left >= at_once):
            warn_of_lost_rest(left)


def warn_of_lost_rest(left: int | None) -> None:
    """Warns that elements of a resumed epoch may stay unread; ``None`` = an unknown number of them."""
    _LOGGER.warning(
        "The iterator that took a loaded state is not at its end%s, and another one begins, which is of another epoch. "
        "Unless you go on with the first one, the rest of the resumed epoch is not read: load the state again before "
        "this loop, load_state_dict(state). To look at a batch, write pipeline.head(1), which takes no state. If your "
        "loop leaves every epoch early, nothing is wrong.",
        "" if left is None else f", with {left} elements to come",
    )


def elements_at_end(plan: BasePlan, cursor: Cursor) -> int | None:
    """Returns how many elements an iterator counts at its end, from the origin of its cursor; ``None`` = unknown."""
    if plan.hashes is not None or plan.program.drops or plan.loses_elements:  # a server, or functions, may know
        return None
    return plan.elements_from(cursor.origin)


def is_at_end(plan: BasePlan, cursor: Cursor, consumed: int) -> bool:
    """Returns whether it is certain that an iterator which has counted this many elements has no more."""
    total = elements_at_end(plan, cursor)
    return total is not None and consumed >= total
