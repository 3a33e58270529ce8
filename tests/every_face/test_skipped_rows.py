"""Rows that are known to fail lie inside jobs of many batches; every face counts them for each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table
from faces import installed_faces, plain_element

from parquetry.common import NdarrayCodec, Pipeline, UnischemaField

ROWS, BATCH = 600, 3
BAD = {*range(40, 60), *range(0, ROWS, 17), 233, 234, ROWS - 1}
POINTS = UnischemaField("points", np.float32, (4,), NdarrayCodec())


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))
    good = bytes(POINTS.storage.encode(POINTS, np.zeros(4, np.float32)))
    values = [b"damaged" if row in BAD else good for row in range(ROWS)]
    return write_table(tmp_path / "rows", pa.table({"id": range(ROWS), "points": pa.array(values, pa.binary())}))


@pytest.mark.slow
@pytest.mark.parametrize("max_errors", [None, len(BAD) - 1])
@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_states_between_merged_batches(url: str, face: Any, max_errors: int | None) -> None:
    def made(**options: Any) -> Pipeline:
        return Pipeline(url, ["id", POINTS], on_error="skip", **options).batch(BATCH)

    def ids(pipeline: Pipeline, elements: Any) -> list[list[int]]:
        return [[row["id"] for row in plain_element(pipeline.element, element)] for element in elements]

    first = made(executor="threads")
    good = [row for row in range(ROWS) if row not in BAD]
    expected = [good[begin : begin + BATCH] for begin in range(0, len(good), BATCH)]
    assert ids(first, first) == expected
    pipeline = made(max_errors=max_errors)
    if max_errors is not None:
        found: list[Any] = []
        with pytest.raises(Exception, match=f"expected at most {max_errors} rows"):
            found.extend(face.passes(pipeline)())
        assert ids(pipeline, found) == expected[:-1]
        return
    assert ids(pipeline, face.passes(pipeline)()) == expected
    for steps in (0, 1, 2, 9, 10, 30, 31, 63, 64, 100, len(expected) - 1, len(expected)):
        assert ids(pipeline, face.resumed(pipeline, steps)) == expected[steps:], steps


@pytest.mark.slow
@pytest.mark.parametrize("even", [None, "pad", "drop"])
@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_take_after_batch_lets_full_batches_through(url: str, face: Any, even: Any) -> None:
    rows = Pipeline(url, ["id", POINTS], on_error="skip").shuffle(50, seed=3, reshuffle_each_iteration=False)
    whole = (rows if even is None else rows.shard(2, 1, even=even)).batch(BATCH)
    taken = whole.take(40)

    def ids(elements: Any) -> list[list[int]]:
        return [[row["id"] for row in plain_element(taken.element, element)] for element in elements]

    expected = ids(whole)[:40]
    assert all(len(batch) == BATCH for batch in expected)
    assert ids(face.passes(taken)()) == expected
    for steps in (0, 1, 17, 39, 40):
        assert ids(face.resumed(taken, steps)) == expected[steps:], steps
    assert ids(face.passes(whole.take(1_000).take(2))()) == expected[:2]
    assert ids(face.passes(whole.take(0))()) == []
    assert ids(face.passes(whole.take(1_000))()) == ids(whole)


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_a_lack_of_memory_is_not_the_fault_of_a_row(url: str, face: Any, tmp_path: Path) -> None:
    short = tmp_path / "memory is short"
    short.touch()

    def large(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] >= 30 and short.exists():
            raise MemoryError("no room")
        return row

    def ids(elements: Any) -> list[int]:
        return [row["id"] for element in elements for row in plain_element(pipeline.element, element)]

    pipeline = Pipeline(url, ["id"], on_error="skip").transform(large).batch(BATCH)
    with pytest.raises(Exception, match=r"no room.*\n?.*RLIMIT_AS"):
        ids(face.passes(pipeline)())
    short.unlink()
    assert ids(face.passes(pipeline)()) == list(range(ROWS))
