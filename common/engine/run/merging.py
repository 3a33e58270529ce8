"""`Merging`: how many small steps to make at once, which grows from one as steps arrive.

The first step comes alone, as soon as possible. Later jobs hold more steps while they stay small and take their rows
from few blocks, because a job waits for all of its blocks. It affects only the speed.
"""

from __future__ import annotations

_MOST_BLOCKS = 8
_GROWTH = 2


class Merging:
    """The number of steps that the next job of an iteration may hold.

    Only one thread plans jobs, but `made` may be called in any thread.

    Args:
        most: the maximum number of steps.
        most_bytes: what the steps of a job may take in memory.
    """

    def __init__(self, most: int = 1, most_bytes: int = 0) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._by_size = 1
        self._by_blocks = most

    @property
    def steps(self) -> int:
        """How many steps the next job may hold."""
        return max(min(self._most, self._by_size, self._by_blocks), 1)

    def planned(self, steps: int, blocks: int) -> None:
        """Notes from how many blocks a job takes its rows."""
        self._by_blocks = self._most if blocks <= 1 else max(_MOST_BLOCKS * steps // blocks, 1)

    def made(self, steps: int, num_bytes: int) -> None:
        """Notes how many bytes the steps of a job take."""
        if steps >= self._by_size or num_bytes > self._most_bytes:
            self._by_size = min(_GROWTH * steps, self._most_bytes * steps // max(num_bytes, 1))
