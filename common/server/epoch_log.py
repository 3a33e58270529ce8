"""`EpochLog`: how far each shared epoch has been read, so that its work can stop when its last client leaves.

Clients choose the epoch numbers, so each epoch is tracked on its own, and the log has a size limit. The epochs that
took the most reading are forgotten last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

_MOST_KEYS = 64
_MOST_RANGES = _MOST_POSITIONS = 256


class EpochLog:
    """The progress of epochs, by the key of their pipeline. Not thread-safe.

    An epoch that was forgotten counts as unread. The log forgets when it holds more than `_MOST_KEYS` keys, or for one
    key more than `_MOST_RANGES` ranges of ended epochs or `_MOST_POSITIONS` epochs that were left in the middle.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def position(self, key: str, epoch: int) -> int | None:
        """Returns the position after the last element that was given out, or ``None`` if the epoch has ended."""
        record = self._records.get(key)
        return 0 if record is None else record.position(epoch)

    def leave(self, key: str, epoch: int, position: int, *, in_use: Collection[str] = ()) -> None:
        """Notes that the last client left an epoch at ``position``. Keys ``in_use`` are not forgotten."""
        if position:
            self._record(key, in_use).leave(epoch, position)

    def end(self, key: str, epoch: int, *, in_use: Collection[str] = ()) -> None:
        """Notes that an epoch has ended. Keys ``in_use`` are not forgotten."""
        self._record(key, in_use).end(epoch)

    def _record(self, key: str, in_use: Collection[str]) -> _Record:
        record = self._records.setdefault(key, _Record())
        self._records.move_to_end(key)
        idle = [other for other in self._records if other != key and other not in in_use]
        for other in idle[: max(0, len(self._records) - _MOST_KEYS)]:
            del self._records[other]
        return record

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))


class _Record:
    """The progress of one pipeline's epochs."""

    def __init__(self) -> None:
        self._ended: list[tuple[int, int]] = []  # first and last number of each range, the latest range at the end
        self._positions: OrderedDict[int, int] = OrderedDict()

    def position(self, epoch: int) -> int | None:
        if any(first <= epoch <= last for first, last in self._ended):
            return None
        return self._positions.get(epoch, 0)

    def leave(self, epoch: int, position: int) -> None:
        self._positions[epoch] = position
        self._positions.move_to_end(epoch)
        if len(self._positions) > _MOST_POSITIONS:
            self._positions.popitem(last=False)

    def end(self, epoch: int) -> None:
        self._positions.pop(epoch, None)
        adjoining = [found for found in self._ended if found[0] - 1 <= epoch <= found[1] + 1]
        self._ended = [found for found in self._ended if found not in adjoining]
        firsts, lasts = zip(*adjoining, (epoch, epoch), strict=True)
        self._ended.append((min(firsts), max(lasts)))
        if len(self._ended) > _MOST_RANGES:
            self._ended.remove(min(self._ended, key=lambda found: found[1] - found[0]))  # of equals, the oldest

    def __len__(self) -> int:
        return len(self._ended) + len(self._positions)
