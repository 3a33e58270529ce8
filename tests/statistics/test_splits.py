"""Splits of a part of a split: independent of it, unless the same split is named twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common import Pipeline, hash_split

ROWS = 20_000
DEVIATION = 3.5 / np.sqrt(ROWS)  # of the share of a part, at most 3.5 * sqrt(1/4 / rows) * 2


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory: Path = tmp_path_factory.mktemp("many")
    return Pipeline(write_table(directory, pa.table({"id": range(100 * ROWS)})), ["id"])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory: Path = tmp_path_factory.mktemp("splits")
    return Pipeline(write_table(directory, pa.table({"id": range(ROWS)})), ["id"])


def _ids(pipeline: Pipeline) -> set[int]:
    return {int(number) for batch in pipeline.batch(ROWS) for number in batch["id"]}


@pytest.mark.parametrize("fractions", [[0.5, 0.5], [0.25] * 4, [0.8, 0.2]])
def test_a_part_of_a_part_has_its_fraction(rows: Pipeline, fractions: list[float]) -> None:
    for outer in range(2):
        part = rows.hash_split("id", [0.5, 0.5], outer)
        again = [_ids(part.hash_split("id", fractions, number)) for number in range(len(fractions))]
        assert set().union(*again) == _ids(part)
        assert sum(map(len, again)) == len(part)
        shares = np.array([len(each) for each in again]) / len(part)
        assert np.abs(shares - fractions).max() < 2 * DEVIATION
    thirds = [part.hash_split("id", fractions, 0).hash_split("id", [0.5, 0.5], number) for number in (0, 1)]
    assert abs(len(thirds[0]) / (len(thirds[0]) + len(thirds[1])) - 0.5) < 4 * DEVIATION


@pytest.mark.nightly
def test_parts_of_parts_of_many_rows_have_their_fractions(many_rows: Pipeline) -> None:
    part = many_rows
    for fractions, number in (([0.8, 0.2], 1), ([0.5, 0.5], 0), ([0.1, 0.9], 1), ([0.25] * 4, 2)):
        before, share = len(part), fractions[number]
        part = part.hash_split("id", fractions, number)
        assert abs(len(part) - before * share) < 5 * np.sqrt(before * share * (1 - share))


def test_the_rest_of_a_part_of_a_part_is_its_complement(rows: Pipeline) -> None:
    part = rows.hash_split("id", [0.5, 0.5], 1)
    split = hash_split("id", [0.2] * 5, 3)
    held_out, kept = _ids(part.where(split)), _ids(part.where(~split))
    assert held_out == _ids(part.hash_split("id", [0.2] * 5, 3))
    assert not held_out & kept
    assert held_out | kept == _ids(part)


def test_several_parts_of_one_split_can_be_left_out(rows: Pipeline) -> None:
    folds = [hash_split("id", [0.2] * 5, fold) for fold in range(5)]
    parts = [_ids(rows.where(fold)) for fold in folds]
    assert _ids(rows.where(~folds[0]).where(~folds[1]).where(~folds[3])) == parts[2] | parts[4]
    assert _ids(rows.where(~folds[0]).where(folds[1])) == parts[1]


def test_a_split_that_is_alone_is_what_it_was(rows: Pipeline) -> None:
    first = [number for number in range(12) if number in _ids(rows.hash_split("id", [0.5, 0.5], 0))]
    assert first == [3, 4, 5, 7, 10, 11]  # changes when the hash changes
    assert _ids(rows.hash_split("id", [0.5, 0.5], 0)) == _ids(rows.hash_split("id", [0.5, 0.5], 0, seed=0))


WARNED: list[tuple[bool, Callable[[Pipeline], Any]]] = [
    (True, lambda p: p.hash_split("id", [0.5, 0.5], 0, seed=3).hash_split("id", [0.9, 0.1], 0, seed=3)),
    (True, lambda p: p.hash_split("id", [0.5, 0.5], 0).where(~hash_split("id", [0.9, 0.1], 0, seed=0))),
    (False, lambda p: p.hash_split("id", [0.5, 0.5], 0, seed=3).hash_split("id", [0.9, 0.1], 0, seed=4)),
    (False, lambda p: p.hash_split("id", [0.5, 0.5], 0).hash_split("id", [0.9, 0.1], 0)),
    (False, lambda p: p.where(~hash_split("id", [0.2] * 5, 0, 3)).where(~hash_split("id", [0.2] * 5, 1, 3))),
]


@pytest.mark.parametrize(("warns", "chain"), WARNED, ids=[f"{warns}-{n}" for n, (warns, _) in enumerate(WARNED)])
def test_splits_with_one_seed_are_warned_of(
    rows: Pipeline, caplog: pytest.LogCaptureFixture, warns: bool, chain: Callable[[Pipeline], Any]
) -> None:
    chain(rows)
    assert [("has the same seed" in each) for each in caplog.messages] == [True] * warns


def test_fields_of_equal_values_are_split_independently(tmp_path: Path) -> None:
    table = pa.table({"id": range(ROWS), "copy": range(ROWS)})
    pipeline = Pipeline(write_table(tmp_path, table))
    shares = [
        len(pipeline.hash_split("id", [0.5, 0.5], one).hash_split("copy", [0.5, 0.5], other)) / ROWS
        for one, other in itertools.product(range(2), repeat=2)
    ]
    assert np.abs(np.array(shares) - 0.25).max() < DEVIATION
