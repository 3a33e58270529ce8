"""Pipes combined with torch's own: correct, or refused with the right way to write it, in workers and on ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetPipe, as_is, combining, placement
from parquetry.torch_plugin import iterable as iterable_module
from parquetry.torch_plugin import pipe as pipe_module


def number(element: dict[str, Any]) -> Any:
    return element["id"].item()


def double(value: int) -> int:
    return 2 * value


def even(value: int) -> bool:
    return value % 2 == 0


def rows(url: str) -> Any:
    return ParquetPipe(url, ["id"]).map(number)


def stock() -> Any:
    return IterableWrapper(range(60))


def load(pipe: Any, workers: int, loader: Any = DataLoader) -> list[Any]:
    return list(loader(pipe, batch_size=None, num_workers=workers, collate_fn=as_is))


RIGHT: dict[str, Callable[[str], Any]] = {
    "dealt": lambda url: rows(url).zip(stock().sharding_filter()),
    "dealt, then mapped": lambda url: rows(url).zip(stock().sharding_filter().map(double).map(half)),
    "dealt, and first": lambda url: stock().sharding_filter().zip(rows(url)),
    "two of ours": lambda url: rows(url).zip(rows(url)),
    "forked": lambda url: _forked(rows(url)),
}


def half(value: int) -> int:
    return value // 2


def _forked(pipe: Any) -> Any:
    one, other = pipe.fork(2)
    return one.zip(other)


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_pipes_that_are_dealt_alike_are_zipped_in_workers(url: str, make: Callable[[str], Any]) -> None:
    assert load(make(url), 2) == [(row, row) for row in range(60)]


WRONG: dict[str, Callable[[str], Any]] = {
    "whole": lambda url: rows(url).zip(stock()),
    "whole, and first": lambda url: stock().zip(rows(url)),
    "filtered after it was dealt": lambda url: rows(url).filter(even).zip(stock().sharding_filter()),
    "batched after it was dealt": lambda url: rows(url).zip(stock().sharding_filter().batch(2)),
    "further up": lambda url: rows(url).zip(stock()).map(tuple),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_a_zip_that_workers_would_mismatch_is_refused(url: str, make: Callable[[str], Any]) -> None:
    assert load(make(url), 0) == load(make(url), 1)
    for loader in (DataLoader, StatefulDataLoader):
        with pytest.raises(PipelineError, match=r"zip: expected inputs for 2 loader workers .* sharding_filter\(\)"):
            load(make(url), 2, loader)


def test_a_concat_repeats_nothing_in_workers(url: str) -> None:
    assert load(rows(url).concat(stock()), 0) == [*range(60), *range(60)]
    assert sorted(load(rows(url).concat(stock().sharding_filter()), 2)) == sorted([*range(60)] * 2)
    with pytest.raises(PipelineError, match=r"concat: expected .* got ParquetMapper, IterableWrapperIterDataPipe"):
        load(rows(url).concat(stock()), 2)


@pytest.fixture
def of_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process rank 1 of 2."""
    for module in (combining, iterable_module, pipe_module, placement):
        monkeypatch.setattr(module, "rank_here", lambda: (2, 1))


@pytest.mark.usefixtures("of_two_ranks")
def test_ranks_zip_what_is_dealt_alike_only(url: str) -> None:
    short = ParquetPipe(url, ["id"]).take(59).map(number)
    whole = ParquetPipe(url, ["id"]).shard(1, 0).map(number)
    assert list(rows(url).zip(rows(url))) == [(row, row) for row in range(30, 60)]
    assert list(whole.zip(stock())) == [(row, row) for row in range(60)]
    for first, second in ((rows(url), stock()), (rows(url), stock().sharding_filter()), (rows(url), short)):
        with pytest.raises(PipelineError, match=r"on 2 ranks that deal them alike.*Make the other values a column"):
            first.zip(second)
    with pytest.raises(PipelineError, match="on 2 ranks that deal them alike"):
        load(stock().zip(rows(url)), 0)
