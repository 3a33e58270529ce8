"""How notebooks show a pipeline, and what tab completion offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from builders import write_table
from drive_rows import drive_url_once

from parquetry.common import Pipeline

url = drive_url_once()


def test_a_pipeline_shows_its_chain_fields_first_rows_and_plan(url: str) -> None:
    shown = Pipeline(url).where([("id", "<", 9)])._repr_html_()
    assert ".where(" in shown
    assert "id &lt; 9" in shown or "&#x27;&lt;&#x27;" in shown
    assert "<td>image</td><td>uint8</td><td>(4, 5, 3)</td><td>H x W x C</td>" in shown
    assert "<th>row 2</th></tr>" in shown
    assert shown.count("data:image/png;base64,") == 3
    assert "<summary>plan</summary>" in shown
    assert "<script" not in shown


def test_times_are_shown_as_times(tmp_path: Path) -> None:
    rows = Pipeline(write_table(tmp_path, pa.table({"at": pa.array([90, 120], pa.timestamp("s"))})))
    assert "<td>1970-01-01 00:01:30</td>" in rows._repr_html_()
    assert "datetime64[ms] (2,) 1970-01-01 00:01:30" in rows.batch(2)._repr_html_()


@pytest.mark.parametrize(
    ("made", "pictures", "told"),
    [
        (lambda drive: drive.batch(6), 1, "first batch"),
        (lambda drive: drive.ngram(length=4), 3, "row 1"),
        (lambda drive: drive.ngram({0: ["image"], 2: ["image", "id"]}), 6, "2.image"),
        (lambda drive: drive.take(0), 0, "It is empty"),
        (lambda drive: drive.where([("id", "<", 0)]), 0, "EmptySelectionError"),
        (lambda drive: drive.transform(lambda row: row, drops=True), 0, "Iterate it to see some"),
        (lambda drive: drive.transform(lambda row: row["idd"]), 0, "TransformError"),
        (lambda drive: drive.select("idd"), 0, "Did you mean"),
        (lambda drive: drive.as_tuple("image", "id"), 3, "row 1"),
    ],
)
def test_every_pipeline_shows_something_and_raises_nothing(url: str, made: Any, pictures: int, told: str) -> None:
    shown = made(Pipeline(url, ["id", "image"]))._repr_html_()
    assert shown.count("data:image/png") == pictures
    assert told in shown


def test_showing_a_pipeline_does_not_count_as_an_epoch(url: str) -> None:
    drive, same = (Pipeline(url, ["id"]).shuffle(40, seed=3) for _ in range(2))
    drive._repr_html_()
    assert [row["id"] for row in drive] == [row["id"] for row in same]


def test_tab_completion_offers_verbs_and_nothing_internal(url: str) -> None:
    offered = dir(Pipeline(url))
    assert {"shuffle", "batch", "where", "head", "explain", "from_delta", "schema"} <= set(offered)
    assert not [name for name in offered if name.startswith("_") and not name.endswith("__")]
    assert len(mock.MagicMock(spec=Pipeline(url))) == 0
    assert not {"check_movable", "require_versions", "with_seed", "source"} & set(offered)
    assert offered == sorted(set(offered))
