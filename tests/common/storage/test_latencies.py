"""A read is slow by comparison with recent reads of its size, and few reads are asked for twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from processes import PATIENCE_S

from parquetry.common.storage import hedged_reads, latencies
from parquetry.common.storage.hedged_reads import hedged_read
from parquetry.common.storage.latencies import FEWEST_READS, Latencies, latencies_of

MIB = 1 << 20


def noted(*seconds: float, size_bytes: int = 0) -> Latencies:
    known = Latencies()
    for each in seconds:
        known.note(size_bytes, each)
    return known


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Reads wait for this event; the test ends only after they do."""
    event = threading.Event()
    yield event
    event.set()


def test_nothing_is_slow_before_enough_reads_were_seen() -> None:
    assert noted(*[1.0] * (FEWEST_READS - 1)).slow_after(0) is None
    assert noted(*[1.0] * FEWEST_READS).slow_after(0) == 1.0


def test_a_straggler_is_slower_than_the_percentile_whatever_the_order() -> None:
    seconds = [1 + number / 100 for number in range(100)]
    random.Random(5).shuffle(seconds)
    assert noted(*seconds).slow_after(0) == pytest.approx(1.94)


def test_fast_reads_are_not_hedged_before_the_floor() -> None:
    assert noted(*[0.001] * 50).slow_after(0) == latencies.FLOOR_S


def test_sizes_are_compared_with_similar_ones() -> None:
    known = noted(*[3.0] * FEWEST_READS, size_bytes=16 * MIB)
    assert known.slow_after(16 * MIB) == known.slow_after(31 * MIB) == 3.0
    assert known.slow_after(0) is None
    assert known.slow_after(64 * MIB) is None


def test_a_store_that_becomes_slow_is_slow_for_a_while_only() -> None:
    known = noted(*[1.0] * 300, *[9.0] * 50)
    assert known.slow_after(0) == 9.0
    assert noted(*[9.0] * 300, *[1.0] * 200).slow_after(0) == 1.0


def test_second_requests_are_a_share_of_all_reads() -> None:
    known, asked = Latencies(), 0
    for _ in range(1000):
        asked += known.may_ask_twice()
        known.note(0, 1.0)
    assert asked <= 1000 * latencies.HEDGED_SHARE + 3
    assert asked >= 1000 * latencies.HEDGED_SHARE


def test_a_request_that_replaces_a_lost_one_does_not_count_unless_it_is_slow_itself() -> None:
    for slower_s, expected in ((0.0, 100), (0.1, 7)):  # than any before: the store is slow for everybody
        known, asked = noted(*[1.0] * FEWEST_READS), 0
        for number in range(100):
            asked += known.may_ask_twice()
            known.note(0, 1.0 + slower_s * (1 + number), overtook=True)
        assert asked == expected


def test_the_reads_of_an_endpoint_decide_when_it_is_asked_again(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(latencies, "FLOOR_S", 0.01)
    endpoint, calls = f"test {tmp_path}", []
    for _ in range(FEWEST_READS):
        hedged_read(int, "a file", endpoint=endpoint)
    assert latencies_of(endpoint).slow_after(0) is not None

    def read() -> int:
        calls.append(1)
        return int(len(calls) == 2 or stuck.wait(PATIENCE_S)) + len(calls)

    assert hedged_read(read, "a file", endpoint=endpoint) == 3  # not after `SLOW_S`, which is 10 s
    assert hedged_reads.SLOW_S > 5


class Clock:
    """Each look at it takes 5 ms, however long the machine takes."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return 0.005 * self._looks


def test_no_more_stragglers_are_asked_again_than_the_share_allows(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(latencies, "FLOOR_S", 0.001)
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.1)
    monkeypatch.setattr(hedged_reads, "time", Clock())
    endpoint, asked = f"test {tmp_path}", []
    for _ in range(FEWEST_READS):
        latencies_of(endpoint).note(0, 0.001)

    def read() -> None:
        asked.append(1)
        stuck.wait(PATIENCE_S)

    for _ in range(6):  # a store that answers nobody any more
        with pytest.raises(TimeoutError):
            hedged_read(read, "a file", endpoint=endpoint)
    assert len(asked) == 6 + 3


def test_a_listing_says_nothing_about_reads(tmp_path: object) -> None:
    for _ in range(FEWEST_READS):
        hedged_read(int, "a directory", is_listing=True, endpoint=f"test {tmp_path}")
    assert latencies_of(f"test {tmp_path}").slow_after(0) is None
