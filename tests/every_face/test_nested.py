"""Nested lists: every face gives the same values, in rows, batches and windows, with masks, and from a state."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest
from faces import THREADS, Face, NodeFace, TorchFace, installed_faces, plain_element
from nested_rows import BOXES, PAIRS, WORDS, write_nested

from parquetry.common import Pipeline, UnischemaField

ROWS = [dict(zip(("boxes", "words", "pairs"), row, strict=True)) for row in zip(BOXES, WORDS, PAIRS, strict=True)]
TORCH_FACES = [TorchFace(kind="ParquetPipe"), TorchFace(1), NodeFace()]
FACES = [*installed_faces(), *(TORCH_FACES if importlib.util.find_spec("torchdata") is not None else [])]
every_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    path = write_nested(tmp_path_factory.mktemp("nested"), id=range(len(ROWS)))
    return Pipeline(path, list(ROWS[0]), workers=1).nested(".*")


@every_face
def test_every_face_gives_rows_batches_and_windows_and_continues_them(rows: Pipeline, face: Face) -> None:
    assert face.elements(rows) == ROWS
    assert face.elements(rows.batch(2, drop_remainder=True)) == [ROWS[:2], ROWS[2:]]
    windows = [{name: [one[name], two[name]] for name in one} for one, two in itertools.pairwise(ROWS)]
    assert face.elements(rows.ngram(length=2).batch(3)) == [windows]
    shuffled = rows.shuffle(4, seed=1)
    if hasattr(face, "resumed") and getattr(face, "workers", None) is None:
        rest = [plain_element(shuffled.element, row) for row in face.resumed(shuffled, 2)]
        assert rest == THREADS.elements(shuffled)[2:]


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {"cells": [[1] * int(row["id"]), [2]]}


@every_face
def test_masks_and_lists_that_functions_make_are_nested_too(rows: Pipeline, face: Face) -> None:
    masked = rows.select("boxes").nulls("mask", "boxes", elements=True).ngram(length=2).batch(3)
    assert face.elements(masked) == THREADS.elements(masked)
    field = UnischemaField("cells", np.int32, (None, None))
    made = Pipeline(rows.urls, ["id"]).transform(_cells, [field], remove=["id"]).nested("cells").batch(4)
    assert face.elements(made) == [[{"cells": [[1] * number, [2]]} for number in range(len(ROWS))]]
