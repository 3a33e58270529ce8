"""The set of pages that passed: what it contains, in this process and in others that share it."""

from __future__ import annotations

import multiprocessing
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from parquetry.common.engine.read import passed_pages
from parquetry.common.engine.read.passed_pages import PassedPages, page_keys


def test_the_pages_of_a_chunk_have_keys_of_their_own() -> None:
    chunks = [("a", 4), ("a", 5), ("b", 4), ("\udcff", 4)]
    keys = np.concatenate([page_keys(version, chunk, range(0, 50_000, 50)) for version, chunk in chunks])
    assert len({*keys.tolist(), 0}) == 4 * 1000 + 1
    assert not len(page_keys("a", 4, []))
    assert page_keys("a", 4, [50])[0] == page_keys("a", 4, [0, 50])[1]


def test_a_page_is_in_the_set_once_it_was_added() -> None:
    pages, keys = PassedPages(), page_keys("a", 4, range(1000))
    assert not pages.contains(keys).any()
    for key in keys[::2]:
        pages.add(key)
    assert pages.contains(keys).tolist() == [True, False] * 500
    assert not pages.contains(page_keys("b", 4, range(1000))).any()


def test_a_full_set_forgets_pages_and_names_none_that_were_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_pages, "_ROW_BITS", 2)
    monkeypatch.setattr(passed_pages, "_SHAPE", (4, 8))
    pages, keys = PassedPages(), page_keys("a", 4, range(200))
    for key in keys[:100]:
        pages.add(key)
        assert pages.contains(np.array([key])).all()
    assert 16 < pages.contains(keys[:100]).sum() <= 32
    assert not pages.contains(keys[100:]).any()


def _add(pages: PassedPages | None, path: str | None, key: Any) -> None:
    pages = pages or PassedPages()
    pages.join(path)
    pages.add(key)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_add_to_one_set(start: Any) -> None:
    pages, keys = PassedPages(), page_keys("a", 4, range(4))
    pages.add(keys[0])
    path = pages.share()
    assert path is not None
    assert pages.share() == path
    child = multiprocessing.get_context(start).Process(
        target=_add, args=(pages if start == "fork" else None, path, keys[1])
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    assert pages.contains(keys).tolist() == [True, True, False, False]
    other = PassedPages()
    other.add(keys[2])
    other.join(path)
    assert pages.contains(keys).tolist() == [True, True, True, False]


def test_a_set_that_is_gone_or_something_else_is_not_joined(tmp_path: Any) -> None:
    (tmp_path / "x").write_bytes(b"x")
    pages, keys = PassedPages(), page_keys("a", 4, range(2))
    for path in (None, "/proc/1/fd/none", str(tmp_path / "x")):
        pages.join(path)
    pages.add(keys[0])
    assert pages.contains(keys).tolist() == [True, False]


def test_a_system_without_shared_memory_has_a_set_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_pages, "memory_file", Mock(side_effect=OSError("no memory files")))
    pages, keys = PassedPages(), page_keys("a", 4, range(2))
    assert pages.share() is None
    pages.add(keys[0])
    assert pages.contains(keys).tolist() == [True, False]
