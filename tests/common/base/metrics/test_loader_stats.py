"""`LoaderStats`: the verdict, the rates, and their text."""

from __future__ import annotations

import json

import pytest

from parquetry.common.base.metrics.counters import Count
from parquetry.common.base.metrics.loader_stats import (
    DECODE,
    HAND_OVER,
    PARQUET,
    STORE,
    WORK,
    Chain,
    LoaderStats,
    advice,
)
from parquetry.common.base.metrics.tally import Waits


def stats(chain: Chain | None = None, **numbers: float) -> LoaderStats:
    """Stats of 101 batches of 8 rows in 10 s, after one second."""
    totals = dict.fromkeys(Count, 0.0)
    totals |= {Count.BEGAN: 1.0, Count.FIRST: 2.0, Count.LAST: 12.0, Count.ELEMENTS: 101, Count.ROWS: 808}
    totals |= {Count[name.upper()]: value for name, value in numbers.items()}
    return LoaderStats.of(totals, chain)


@pytest.mark.parametrize(
    ("numbers", "verdict", "says"),
    [
        ({"wait_s": 0.5, "waited_decode_s": 0.5}, "model-bound", "5% of the time"),
        ({"wait_s": 8, "waited_decode_s": 7, "waited_transform_s": 1}, "input-bound", "(88%) is decoding"),
        ({"wait_s": 8, "waited_decode_s": 1, "waited_transform_s": 7}, "input-bound", "is work on values"),
        ({"wait_s": 8, "waited_store_s": 5, "waited_parquet_s": 2}, "store-bound", "disk or network"),
        ({"wait_s": 8, "waited_store_s": 2, "waited_parquet_s": 5}, "input-bound", "reading Parquet"),
        ({"wait_s": 8, "waited_decode_s": 7, "store_s": 90}, "input-bound", "is decoding"),
        ({"wait_s": 8, "waited_device_copy_s": 7}, "input-bound", "copying batches to the device"),
        ({"wait_s": 8, "waited_decode_s": 1}, "input-bound", "in no measured stage"),
        ({"wait_s": 8, "elements": 9}, "too early", "ask again later"),
        ({"wait_s": 0.2, "last": 2.3}, "too early", "ask again later"),
        ({"first": 0.5, "last": 0.9}, "too early", "ask again later"),  # times of an earlier epoch
    ],
)
def test_the_verdict_says_who_is_slow(numbers: dict[str, float], verdict: str, says: str) -> None:
    found = stats(**numbers)
    assert found.verdict == verdict
    assert says in found.why


def test_rates_leave_the_first_element_to_the_startup() -> None:
    found = stats(read_bytes=22e6, delivered_bytes=101e6)
    assert (found.elements_per_s, found.rows_per_s) == (10, 80)
    assert (found.read_mb_per_s, found.delivered_mb_per_s) == (2, 10)
    assert (found.startup_s, found.seconds) == (1, 10)


def test_the_shares_of_waiting_add_up_and_count_from_the_first_request() -> None:
    found = stats(wait_s=5, waited_store_s=1, waited_decode_s=2, waited_hand_over_s=0.5, waited_device_copy_s=0.5)
    assert found.waits == Waits(start=1, store=1, decode=2, hand_over=0.5, device_copy=0.5, other=1)
    assert found.wait_share == sum(found.wait_shares.values()) == pytest.approx(6 / 11)
    assert found.wait_shares["decode"] == found.scalars()["wait_share_decode"] == pytest.approx(2 / 11)
    assert "waited 54.5% of the time since you asked for the first element: decode 18.2%, start 9.1%" in " ".join(
        str(found).split()
    )


def test_causes_that_were_counted_before_their_wait_do_not_exceed_it() -> None:
    found = stats(wait_s=3, waited_store_s=2, waited_decode_s=4)
    assert (found.waits.store, found.waits.decode, found.waits.other) == (1, 2, 0)


def test_an_epoch_that_has_not_begun_has_zeros() -> None:
    found = LoaderStats.of(dict.fromkeys(Count, 0.0))
    assert found.verdict == "too early"
    assert found.rows_per_s == found.read_mb_per_s == found.wait_share == 0


def test_it_is_json_and_reads_as_lines() -> None:
    found = stats(wait_s=8, decode_s=9, cache_hits=3, failed=2)
    assert json.loads(json.dumps(found.to_json()))["failed_elements"] == 2
    assert found.to_json()["rows_per_s"] == 80
    assert str(found).startswith("input-bound: after the first element, you waited for data 80% of the time.")
    assert "cache 3 hits, 0 misses" in " ".join(str(found).split())
    assert "\n" not in found.line()
    assert "verdict" not in found.scalars()


def test_advice_knows_the_chain() -> None:
    remote = Chain(resizes=True, remote=True, costly=True)
    assert "cache(directory)" in advice(STORE, remote)[0]
    assert "cache" not in advice(STORE, Chain(cached=True, remote=True))[0]
    assert 'interpolation="area"' in advice(DECODE, remote)[1]
    assert "copying" in advice(DECODE, Chain())[0]
    assert all(advice(stage, Chain()) for stage in (PARQUET, WORK, HAND_OVER))


def test_prometheus_reads_numbers_and_the_verdict() -> None:
    text = stats(wait_s=8, waited_decode_s=8).to_prometheus({"job": 'a"b\\c\n'})
    assert 'parquetry_rows{job="a\\"b\\\\c\\n"} 808\n' in text
    assert 'verdict="input-bound"} 1\n' in text
    assert 'verdict="model-bound"} 0\n' in text
    assert "parquetry_rows_per_s 80.0\n" in stats().to_prometheus()


def test_slow_functions_are_named_with_what_to_try() -> None:
    slow = {"wait_s": 8.0, "waited_transform_s": 7.0}
    found = stats(Chain(functions=("augment", "crop"), batch_functions=("scale",)), **slow)
    assert "augment() and crop() run for each row: let them take whole batches (batched=True)" in found.why
    assert "scale() runs for each batch: make it faster" in stats(Chain(batch_functions=("scale",)), **slow).why
    assert "Store what the chain computes" in stats(**slow).why


def test_it_prints_in_80_columns_and_as_html() -> None:
    found = stats(Chain(functions=("augment",)), wait_s=8, waited_transform_s=7, skipped_decode=2)
    lines = repr(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("input-bound: after the first element, you waited")
    assert "speed               80 rows/s, 10.0 elements/s" in lines
    assert "left out            2 rows (2 decode, 0 null, 0 transform)" in lines
    assert "<td>80 rows/s, 10.0 elements/s</td>" in found._repr_html_()
