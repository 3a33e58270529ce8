"""A footer is loaded once, however many threads need it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common.base.errors import DatasetError
from parquetry.common.base.memory.lru_cache import LRUCache
from parquetry.common.base.native.library import is_compiled
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.parquet import footers, group_footers

THREADS = 8
GROUPS = 40


class Meeting(LRUCache[Any, Any]):
    """A cache whose threads have all looked for a value before the first one makes it."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self._looks = threading.Semaphore(0)
        self.makes = 0

    def get(self, key: Any) -> Any:
        value = super().get(key)
        self._looks.release()
        return value

    def made(self, key: Any, make: Callable[[], Any]) -> Any:
        def counted() -> Any:
            if self.makes == 0:
                self.makes = 1
                for _ in range(THREADS):
                    assert self._looks.acquire(timeout=30)
            else:
                self.makes += 1
            return make()

        return super().made(key, counted)


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[StoredDataset]:
    pq.write_table(pa.table({"x": range(GROUPS)}), tmp_path / "0.parquet", row_group_size=1)
    write_index(str(tmp_path))
    footers._kept.clear()
    group_footers._stored.clear()
    group_footers._parsed.clear()
    return StoredDataset([str(tmp_path)])


def in_threads(function: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [future.result() for future in [pool.submit(function, number) for number in range(THREADS)]]


def test_threads_load_a_footer_once(dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting()
    monkeypatch.setattr(footers, "_kept", meeting)
    loaded = in_threads(lambda _: dataset.footer(0))
    assert meeting.makes == 1
    assert {id(footer) for footer in loaded} == {id(loaded[0])}


def test_threads_load_the_footer_of_many_row_groups_once(
    dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled():
        pytest.skip("no compiled core")
    meeting = Meeting()
    monkeypatch.setattr(group_footers, "_stored", meeting)
    loaded = in_threads(dataset.group_footer)
    assert meeting.makes == 1
    whole = pq.read_metadata(dataset.files[0].path)
    for number, (footer, group) in enumerate(loaded):
        assert footer.row_group(group).to_dict() == whole.row_group(number).to_dict()


def test_a_footer_that_could_not_be_loaded_is_loaded_again(
    dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = footers.load_footer

    def fails_once(*arguments: Any) -> pq.FileMetaData:
        loads.append("load")
        if len(loads) == 1:
            raise DatasetError("not now")
        return load(*arguments)

    monkeypatch.setattr(footers, "load_footer", fails_once)
    with pytest.raises(DatasetError, match="not now"):
        dataset.footer(0)
    assert dataset.footer(0).num_row_groups == GROUPS
    assert dataset.footer(0).num_row_groups == GROUPS
    assert len(loads) == 2
