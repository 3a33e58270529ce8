"""`RefusedRows`: rows that a selection leaves out because they cannot be measured (`on_error="skip"`).

``concat``, ``pack_rows`` and ``bucket`` need the length of every row before the order. A row without one, such as a
null list, is left out of the selection, so the order never depends on it. It is kept here to be counted and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.errors import DecodeError, NullValueError, ParquetryError, TransformError
from ...base.process.dataclass import dataclass
from ...stages.measure import Refusal

_CAUSES = (DecodeError.__name__, NullValueError.__name__, TransformError.__name__)
_MOST_MESSAGES = 1000
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRows:
    """Rows in storage order, each with the error that it would raise.

    Attributes:
        places: int64 ``[rows, 3]``: the row group, the row in it, and the number of the cause.
        messages: the messages of the first rows; there are at most 1,000.
    """

    places: np.ndarray
    messages: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.places)

    def cause(self, number: int) -> str:
        """Returns the name of the error's class of the ``number``-th row."""
        return _CAUSES[int(self.places[number, 2])]

    def message(self, number: int) -> str:
        """Returns the error of the ``number``-th row."""
        if number < len(self.messages):
            return self.messages[number]
        group, row, _ = self.places[number].tolist()
        return f"row group {group}, row {row}: expected a row that can be measured"

    def each(self) -> list[RefusedRows]:
        return [RefusedRows(places=self.places[n : n + 1], messages=(self.message(n),)) for n in range(len(self))]

    def to_json(self) -> dict[str, Any]:
        """Returns the part that is stored as JSON; ``places`` is stored as an array."""
        return {"causes": list(_CAUSES), "messages": list(self.messages)}

    @classmethod
    def stored(cls, places: np.ndarray, about: dict[str, Any], rows: np.ndarray) -> RefusedRows:
        """Returns stored rows. Raises ``ValueError`` for rows that do not exist.

        Args:
            rows: the number of rows in each row group of the dataset.
        """
        if places.dtype != np.int64 or places.ndim != 2 or places.shape[1] != 3:
            raise ValueError(f"expected three numbers for each row, got {places.dtype} {places.shape}")
        group, row, cause = places.T
        fits = places.min(initial=0) >= 0 and group.max(initial=-1) < len(rows)
        if not fits or (row >= rows[group]).any() or cause.max(initial=0) >= len(_CAUSES):
            raise ValueError("expected rows of this dataset, got rows of another one")
        if about["causes"] != list(_CAUSES) or not all(isinstance(text, str) for text in about["messages"]):
            raise ValueError("expected the causes of this version, and texts")
        return cls(places=places, messages=tuple(about["messages"]))


NOTHING_REFUSED = RefusedRows(places=np.zeros((0, 3), np.int64), messages=())


def refused_in(
    row_group: int, refusals: Sequence[Refusal], rows: np.ndarray, describe: Callable[[int], str]
) -> RefusedRows:
    """Returns the refused rows of a table that holds ``rows`` of a row group. The first refusal of a row counts."""
    first: dict[int, Refusal] = {}
    for refusal in refusals:
        for row in refusal.rows.tolist():
            first.setdefault(row, refusal)
    entries = sorted(first.items())
    places = [(row_group, int(rows[row]), _CAUSES.index(refusal.error.__name__)) for row, refusal in entries]
    texts = [refusal.told(row, describe)[:_MOST_TEXT] for row, refusal in entries[:_MOST_MESSAGES]]
    return RefusedRows(places=np.array(places, np.int64).reshape(-1, 3), messages=tuple(texts))


def refused_by(place: tuple[int, int], error: ParquetryError) -> RefusedRows:
    """Returns the row ``(row group, row)``, which raised an error."""
    places = np.array([(*place, _CAUSES.index(type(error).__name__))], np.int64)
    return RefusedRows(places=places, messages=(str(error).split("\n")[0][:_MOST_TEXT],))


def all_refused(parts: Sequence[RefusedRows]) -> RefusedRows:
    """Returns the rows of several row groups, in order."""
    messages: list[str] = []
    for part in parts:
        if len(part.messages) < len(part):
            messages += part.messages
            break
        messages += part.messages
    places = np.concatenate([NOTHING_REFUSED.places, *(part.places for part in parts)])
    return RefusedRows(places=places, messages=tuple(messages[:_MOST_MESSAGES]))
