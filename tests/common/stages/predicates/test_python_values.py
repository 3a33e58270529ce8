"""`python_values`: every stored value has a Python value, the same with and without pandas."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from parquetry.common.stages.predicates.column_predicates import hash_column
from parquetry.common.stages.predicates.python_values import python_values

_FAR_S = 2**48
_KINDS = [
    *(pa.timestamp("ns", zone) for zone in (None, "UTC", "+05:30", "Europe/Berlin")),
    pa.duration("ns"),
    pa.time64("ns"),
]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
def test_nanoseconds_have_the_values_of_microseconds_where_those_hold_them(kind: pa.DataType) -> None:
    zone = (kind.tz,) if pa.types.is_timestamp(kind) else ()
    coarse = {"timestamp": pa.timestamp, "duration": pa.duration, "time64": pa.time64}[str(kind).partition("[")[0]]
    counts = [0, 1, 1_500, 86_399_999_999] + ([] if pa.types.is_time(kind) else [-1, -86_400_000_000, 10**15 + 1])
    fine = pa.array([*(1000 * count for count in counts), None]).cast(kind)
    same = pa.array([*counts, None]).cast(coarse("us", *zone))
    assert python_values(fine) == same.to_pylist()
    assert (hash_column(fine, 3) == hash_column(same, 3)).all()


@pytest.mark.parametrize(
    ("kind", "count", "text"),
    [
        (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
        (pa.timestamp("ns"), -123_456_789, "1969-12-31T23:59:59.876543211"),
        (pa.timestamp("ns", "+05:30"), 1_500, "1970-01-01T05:30:00.000001500+05:30"),
        (pa.duration("ns"), 86_400_000_000_001, "1 days 00:00:00.000000001"),
        (pa.duration("ns"), -1, "-1 days +23:59:59.999999999"),
        (pa.time64("ns"), 1_500, "00:00:00.000001500"),
    ],
    ids=str,
)
def test_times_with_nanoseconds_have_the_text_of_pandas(kind: pa.DataType, count: int, text: str) -> None:
    values = python_values(pa.array([count, None, count + 1]).cast(kind))
    assert str(values[0]) == text
    assert values[1] is None
    assert len(set(values)) == 3


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([2**30], pa.date32()), "2941775-04-07"),
        (pa.array([2**30 * 86_400_000]).cast(pa.date64()), "2941775-04-07"),
        *(
            (pa.array([_FAR_S * n]).cast(pa.timestamp(u)), "8921556-12-07T10:44:16")
            for u, n in (("s", 1), ("ms", 1000))
        ),
        (pa.array([_FAR_S * 1000 + 500]).cast(pa.timestamp("ms")), "8921556-12-07T10:44:16.500000"),
        (pa.array([-_FAR_S]).cast(pa.timestamp("s", "Europe/Berlin")), "-8917617-01-25T13:15:44+00:00"),
        (pa.array([86_400 * 10**9 + 1]).cast(pa.duration("s")), "1000000000 days, 0:00:01"),
    ],
)
def test_times_outside_pythons_range_are_texts(column: pa.Array, text: str) -> None:
    assert python_values(column) == [text]


def test_a_far_midnight_is_its_day_like_a_near_one() -> None:
    day = pa.array([2**30, 0], pa.date32())
    midnight = pa.array([2**30 * 86_400, 0]).cast(pa.timestamp("s"))
    assert (hash_column(day, 0) == hash_column(midnight, 0)).all()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_not_utf8_is_its_bytes(kind: pa.DataType) -> None:
    raw = pa.array([b"ok", b"\xff", None], pa.large_binary() if kind == pa.large_string() else pa.binary())
    text = pa.Array.from_buffers(kind, len(raw), raw.buffers())
    assert python_values(text) == ["ok", b"\xff", None]
    assert hash_column(text, 0)[1] == hash_column(raw, 0)[1]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([1, None], pa.int8()), [1, None]),
        (pa.array([datetime.time(1, 2)]), [datetime.time(1, 2)]),
        (pa.array(["a"]), ["a"]),
    ],
)
def test_other_values_equal_arrows(column: pa.Array, values: list[Any]) -> None:
    assert python_values(column) == values
