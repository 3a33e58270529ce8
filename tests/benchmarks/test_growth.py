"""Costs, as counts, do not grow faster than the work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from benchmarks.growth import GROUP_ROWS, KINDS, Cost, counting, counting_calls, exponent, measure, written
from parquetry.common import Pipeline


def test_the_exponent_is_the_power_of_the_size() -> None:
    assert exponent([Cost(size=size, cost=size**2, other=1) for size in (1, 10, 100)]) == pytest.approx(2)


@pytest.mark.slow
def test_a_row_of_a_mix_asks_only_the_sources_that_it_draws_from(tmp_path: Path) -> None:
    few, many = (KINDS["sources of a mix"].measure(tmp_path, sources).cost for sources in (100, 1_000))
    assert many < 2 * few


@pytest.mark.parametrize("buffer_size", [None, 1_000])
def test_a_small_row_group_of_a_local_file_takes_few_calls(tmp_path: Path, buffer_size: int | None) -> None:
    rows = Pipeline(written(tmp_path, 1_000, 8), executor="threads")
    batches = (rows if buffer_size is None else rows.shuffle(buffer_size, seed=1)).batch(64)
    assert sum(1 for _ in batches) == 125
    with counting_calls() as calls:
        assert sum(1 for _ in batches) == 125
    assert sum(calls.values()) / 1_000 < 120  # a block for each took 250 to 290


@pytest.mark.parametrize("kind", ["row groups in order", "row groups shuffled"])
def test_epochs_of_more_and_more_row_groups_are_measured(tmp_path: Path, kind: str) -> None:
    cost = KINDS[kind].measure(tmp_path, 64)
    assert cost.size == 64
    assert cost.cost > 0 < cost.other


def test_iterators_that_wait_share_their_threads(tmp_path: Path) -> None:
    assert KINDS["open iterators"].measure(tmp_path, 30).cost < 10


def test_an_index_replaces_the_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    costs = KINDS["index"].measure(tmp_path, 20)
    assert costs.cost <= 1
    assert costs.other == 20


@pytest.mark.slow
def test_an_epoch_in_order_takes_a_request_for_each_8_mib(tmp_path: Path) -> None:
    small, large = (KINDS["store requests"].measure(tmp_path, row_groups) for row_groups in (64, 256))
    assert large.cost - small.cost <= 2 * (large.other - small.other) + 2


@pytest.mark.nightly
def test_reads_do_not_grow_with_the_number_of_filters(tmp_path: Path) -> None:
    assert {each.cost for each in measure(KINDS["filters"], tmp_path)} == {16}


@pytest.mark.nightly
def test_a_rank_reads_its_share_when_one_of_several_is_lost(tmp_path: Path) -> None:
    assert all(each.cost <= 2 * each.other + 4 for each in measure(KINDS["ranks"], tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("values", [10, 20_000, 200_000])
def test_sets_are_built_for_at_least_as_many_rows_as_they_have_values(
    tmp_path: Path, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    row_groups = 32
    url = written(tmp_path, row_groups)
    with counting() as counts:
        members = np.linspace(0, 4 * row_groups * GROUP_ROWS, values, dtype=np.int64)
        assert len(Pipeline(url, executor="threads").where(pc.field("id").isin(members))) > 0
    assert counts.reads == row_groups
    assert counts.evaluations <= min(row_groups, 1 + row_groups * GROUP_ROWS // values)
