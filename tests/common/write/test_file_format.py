"""A large value stands alone in its page, so that readers check no other values for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from parquetry.common import Pipeline, TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.read import unchecked_pages
from parquetry.common.engine.read.passed_pages import PASSED_PAGES

ROWS, NUMBERS = 40, 8_000


def test_a_filter_reads_the_pages_of_the_rows_that_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Unischema(
        "values",
        [UnischemaField("id", np.int64), UnischemaField("value", np.float32, (NUMBERS,), TensorCodec())],
    )
    values = np.random.default_rng(0).random((ROWS, NUMBERS), np.float32)
    rows = [{"id": number, "value": values[number]} for number in range(ROWS)]
    write_dataset(tmp_path / "x", schema, rows)
    monkeypatch.setattr(PASSED_PAGES, "_words", np.zeros_like(PASSED_PAGES._words))
    read, page_bytes = unchecked_pages.read_pages, []

    def reading(descriptor: int, pages: Any, spare: Any) -> Any:
        page_bytes.extend([page.end - page.begin for page in pages])
        return read(descriptor, pages, spare)

    monkeypatch.setattr(unchecked_pages, "read_pages", reading)
    found = {
        row["id"]: row["value"]
        for row in Pipeline(tmp_path / "x", executor="threads").where(pc.field("id").isin([3, 13, 23, 33]))
    }
    assert sorted(found) == [3, 13, 23, 33]
    assert all(np.array_equal(found[number], values[number]) for number in found)
    assert sum(page_bytes) <= 1.01 * len(found) * NUMBERS * 4
