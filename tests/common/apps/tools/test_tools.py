"""The names of the tools, and the form of their filters."""

from __future__ import annotations

from pathlib import Path

import pytest

from parquetry.common import Pipeline
from parquetry.common.apps import tools

REAL = Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ('["id", "<", 2]', [0, 1]),
        ('[["id", "<", 2], ["id", ">", 0]]', [1]),
        ('[[["id", "<", 1]], [["id", ">", 58]]]', [0, 59]),
        ('[["drive", "in", ["d2"]], ["id", "<", 42]]', [40, 41]),
    ],
)
def test_conditions_are_json(where: str, expected: list[int]) -> None:
    assert [row["id"] for row in Pipeline(REAL, ["id"]).where(tools.conditions(where))] == expected


def test_the_public_names_are_there() -> None:
    assert tools.__all__ == sorted(tools.__all__)
    assert all(callable(getattr(tools, name)) for name in tools.__all__)
    with pytest.raises(AttributeError, match="bogus"):
        _ = tools.bogus  # type: ignore[attr-defined]
