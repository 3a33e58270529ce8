"""Functions with a generator: the same numbers in every face, after a resume, and with any batch size."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build
from faces import THREADS, installed_faces, plain_element

from parquetry.common import Pipeline, UnischemaField

ROWS = 20
NOISE = [UnischemaField("noise", np.int64)]


def _add_noise(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**row, "noise": rng.integers(1 << 62)}


def _chain(rows: Pipeline) -> Pipeline:
    return rows.shuffle(10, seed=4).transform(_add_noise, NOISE, rng=True)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    directory: Path = tmp_path_factory.mktemp("functions")
    return build(directory, [[5, 5], [10]], names=["id"]).pipeline("id")


@pytest.fixture(scope="module")
def expected(rows: Pipeline) -> list[dict[int, int]]:
    """The noise of each row, in two passes."""
    elements = THREADS.elements(_chain(rows).repeat(2))
    passes = [elements[:ROWS], elements[ROWS:]]
    return [{row["id"]: row["noise"] for row in each} for each in passes]


def test_every_row_of_every_pass_has_numbers_of_its_own(expected: list[dict[int, int]]) -> None:
    assert all(sorted(each) == list(range(ROWS)) for each in expected)
    assert len({noise for each in expected for noise in each.values()}) == 2 * ROWS


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_every_face_draws_the_same(rows: Pipeline, face: Any, expected: list[dict[int, int]]) -> None:
    pipeline = _chain(rows).batch(4)
    begin = face.passes(pipeline)
    for numbers in expected:
        batches = [plain_element(pipeline.element, element) for element in begin()]
        assert {row["id"]: row["noise"] for batch in batches for row in batch} == numbers
    taken = [plain_element(pipeline.element, element) for element in islice(face.resumed(pipeline, 2), 3)]
    assert all(expected[0][row["id"]] == row["noise"] for batch in taken for row in batch)
    assert sum(map(len, taken)) == 12
