"""An endless pipeline in every face: no pass of any iterator repeats the order of another one."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from builders import build
from faces import installed_faces, plain_element

from parquetry.common import Pipeline

ROWS, PASSES, ITERATORS = 20, 4, 3


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory: Path = tmp_path_factory.mktemp("endless")
    return build(directory, [[10, 10]], names=["id"]).pipeline("id")


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_no_iterator_replays_a_pass(rows: Pipeline, face: Any) -> None:
    pipeline = rows.shuffle(ROWS, seed=2).repeat().batch(ROWS)
    begin, orders = face.passes(pipeline), []
    for _ in range(ITERATORS):
        iterator = begin()
        for element in islice(iterator, PASSES):
            orders.append(tuple(row["id"] for row in plain_element(pipeline.element, element)))
        with suppress(AttributeError):
            iterator.close()
    assert all(sorted(order) == list(range(ROWS)) for order in orders)
    assert len(set(orders)) == ITERATORS * PASSES
