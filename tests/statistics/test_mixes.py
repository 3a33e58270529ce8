"""Mixes: sources with equal seeds do not move in step, and the first of them comes as it does alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common import Pipeline, mix

ROWS = 400


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Pipeline]:
    """Three datasets of one layout, whose ids differ by thousands."""
    directory: Path = tmp_path_factory.mktemp("mixes")
    tables = [pa.table({"id": np.arange(ROWS) + 1_000 * number}) for number in range(3)]
    urls = [write_table(directory / str(number), table, row_group_size=50) for number, table in enumerate(tables)]
    return [Pipeline(url, ["id"]).shuffle(100, seed=3) for url in urls]


MIXES: dict[str, Callable[[list[Pipeline]], Pipeline]] = {
    "flat": lambda sources: mix(sources, seed=1, stop="all"),
    "nested": lambda sources: mix([sources[0], mix(sources[1:], seed=2, stop="all")], seed=1, stop="all"),
    "nested first": lambda sources: mix([mix(sources[:2], seed=2, stop="all"), sources[2]], seed=1, stop="all"),
}


@pytest.mark.parametrize("made", MIXES.values(), ids=MIXES)
def test_sources_with_one_seed_come_in_orders_of_their_own(sources: list[Pipeline], made: object) -> None:
    assert callable(made)
    mixed: Pipeline = made(sources).batch(100)
    for _ in range(2):
        ids = np.concatenate([batch["id"] for batch in mixed])
        orders = [ids[ids // 1_000 == number] % 1_000 for number in range(3)]
        assert all(sorted(order.tolist()) == list(range(ROWS)) for order in orders)
        for one, other in itertools.combinations(orders, 2):
            correlation = np.corrcoef(np.argsort(one), np.argsort(other))[0, 1]
            assert abs(correlation) < 0.75  # eight row groups in a random order: a deviation of 1 / sqrt(7)
            assert (one == other).mean() < 0.05


def test_the_first_source_with_a_seed_comes_as_alone(sources: list[Pipeline]) -> None:
    ids = [int(row["id"]) for row in mix(sources, seed=1, stop="all")]
    assert [number for number in ids if number < 1_000] == [int(row["id"]) for row in sources[0]]
    other = mix([sources[0], sources[1].where([("id", ">=", 0)])], seed=1, stop="all")
    assert Pipeline.from_json(other.to_json()).plan().fingerprint == other.plan().fingerprint
    iterator = iter(other)
    head = [int(next(iterator)["id"]) for _ in range(300)]
    rest = iter(other).load_state_dict(iterator.state_dict())
    iterator.close()
    assert head + [int(row["id"]) for row in rest] == [int(row["id"]) for row in other.at_epoch(0)[:]]
