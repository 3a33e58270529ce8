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


PROFILES = {
    profile.name: profile
    for profile in [
        Profile(
            name="tiny",
            rows={
                "images": 256,
                "rare": 512,
                "large": 64,
                "lidar": 32,
                "table": 8_192,
                "wide": 4_096,
                "texts": 2_048,
                "documents": 512,
                "groups": 2_000,
            },
            rounds=1,
            warm_s=0.05,
            span_s=0.1,
        ),
        Profile(
            name="quick",
            rows={
                "images": 1_024,
                "rare": 8_192,
                "large": 256,
                "lidar": 512,
                "table": 524_288,
                "wide": 131_072,
                "texts": 65_536,
                "documents": 65_536,
                "groups": 1_000_000,
            },
            rounds=3,
            warm_s=0.3,
            span_s=0.7,
        ),
        Profile(
            name="full",
            rows={
                "images": 4_096,
                "rare": 32_768,
                "large": 1_024,
                "lidar": 2_048,
                "table": 2_097_152,
                "wide": 524_288,
                "texts": 262_144,
                "documents": 262_144,
                "groups": 1_000_000,
            },
            rounds=7,
            warm_s=1.0,
            span_s=2.5,
        ),
    ]
}
