"""Defines the profiles of a run, from the tests' tiny one to the full one.

`PROFILES` maps names to profiles.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much data to use, and how long to measure.

    Attributes:
        rows: rows in each data folder.
        rounds: measurements of each contender against the limit.
        span_s: length of one measurement, which starts after ``warm_s`` of unmeasured reading.
    """

    name: str
    rows: dict[str, int]
    rounds: int
    warm_s: float
    span_s: float


_ROWS = {  # of the profiles tiny, quick and full
    "images": (256, 1_024, 4_096),
    "rare": (512, 8_192, 32_768),
    "large": (64, 256, 1_024),
    "lidar": (32, 512, 2_048),
    "table": (8_192, 524_288, 2_097_152),
    "wide": (4_096, 131_072, 524_288),
    "texts": (2_048, 65_536, 262_144),
    "documents": (512, 65_536, 262_144),
    "robot": (200, 2_000, 8_000),
    "groups": (2_000, 1_000_000, 1_000_000),
}
PROFILES = {
    name: Profile(
        name=name,
        rows={folder: rows[number] for folder, rows in _ROWS.items()},
        rounds=rounds,
        warm_s=warm_s,
        span_s=span_s,
    )
    for number, (name, rounds, warm_s, span_s) in enumerate(
        [("tiny", 1, 0.05, 0.1), ("quick", 3, 0.3, 0.7), ("full", 7, 1.0, 2.5)]
    )
}
