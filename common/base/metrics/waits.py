"""`Waits`: how long a training loop waited for data, by cause. The causes add up to the whole wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ..process.dataclass import dataclass
from .counters import Count

_COUNTS = {
    "store": Count.WAITED_STORE_S,
    "parquet": Count.WAITED_PARQUET_S,
    "decode": Count.WAITED_DECODE_S,
    "transform": Count.WAITED_TRANSFORM_S,
    "hand_over": Count.WAITED_HAND_OVER_S,
    "device_copy": Count.WAITED_DEVICE_COPY_S,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds that a consumer waited, by cause.

    >>> Waits(start=1.0, decode=3.0).total_s
    4.0

    Attributes:
        start: the wait for the first element.
        store: the disk or the network.
        parquet: reading and decompressing row groups.
        decode: decoding values and gathering them into batches.
        transform: your functions, and verbs that work on values.
        hand_over: converting batches, and passing them between processes.
        device_copy: enqueuing copies to a device, and waiting until there is room for another one.
        other: no measured cause, such as a server, a busy processor, or Python's GIL.
    """

    start: float = 0.0
    store: float = 0.0
    parquet: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    hand_over: float = 0.0
    device_copy: float = 0.0
    other: float = 0.0

    @classmethod
    def of(cls, totals: Mapping[Count, float], start_s: float, wait_s: float) -> Waits:
        """Builds waits from counters; ``wait_s`` is the whole wait after the first element."""
        parts = {cause: totals[count] for cause, count in _COUNTS.items()}
        split_s = sum(parts.values())
        scale = wait_s / split_s if split_s > wait_s else 1.0  # a pass that runs may be counted while it is read
        parts = {cause: scale * seconds for cause, seconds in parts.items()}
        return cls(start=start_s, **parts, other=max(wait_s - sum(parts.values()), 0.0))

    @property
    def total_s(self) -> float:
        """The whole wait."""
        return sum(self.to_json().values())

    def shares_of(self, seconds: float) -> dict[str, float]:
        """Returns each cause's share of a time."""
        return {cause: wait_s / seconds if seconds else 0.0 for cause, wait_s in self.to_json().items()}

    def to_json(self) -> dict[str, float]:
        """Returns the seconds by cause."""
        return asdict(self)
