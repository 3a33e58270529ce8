"""`LRUCache` keeps what was used last, within its limit."""

from __future__ import annotations

import pickle

from parquetry.common.base.memory.lru_cache import LRUCache


def test_the_values_used_last_are_kept_within_the_limit() -> None:
    kept: LRUCache[str, bytes] = LRUCache(6, len)
    for name in "abc":
        kept.keep(name, name.encode() * 2)
    assert kept.get("a") == b"aa"
    kept.keep("d", b"dd")
    assert [name for name in "abcd" if name in kept] == ["a", "c", "d"]
    assert (kept.size, len(kept)) == (6, 3)


def test_one_value_is_kept_even_if_it_is_too_large() -> None:
    kept: LRUCache[int, bytes] = LRUCache(1, len)
    for number in range(3):
        kept.keep(number, b"large")
        assert kept.get(number) == b"large"
        assert (kept.size, len(kept)) == (5, 1)


def test_a_value_is_made_once_while_it_is_kept() -> None:
    kept: LRUCache[str, list[int]] = LRUCache(1)
    made = kept.made("a", lambda: [1])
    assert kept.made("a", lambda: [2]) is made
    kept.keep("a", [3])
    assert kept.get("a") is made
    kept.clear()
    assert (kept.get("a"), kept.size, len(kept)) == (None, 0, 0)
    assert kept.made("a", lambda: [2]) == [2]


def test_a_cache_travels_without_its_values() -> None:
    cache: LRUCache[str, bytes] = LRUCache(3, len)
    cache.keep("a", b"xy")
    other = pickle.loads(pickle.dumps(cache))
    assert (other.get("a"), other.size, other.limit) == (None, 0, 3)
    other.keep("b", b"xy")
    assert other.size == 2
