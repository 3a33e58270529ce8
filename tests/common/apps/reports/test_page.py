"""The page: well-formed, self-contained, complete for the dataset, and unbreakable by any value."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import ALL_FIELDS, build, write_table

from parquetry.common.apps.reports import html_report
from parquetry.common.apps.reports.page import gaps, save_report
from parquetry.common.base.errors import DatasetError, PipelineError

REAL = str(Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1")
VOID = {"meta", "img", "rect", "br"}


class Checker(HTMLParser):
    """Checks that a page closes every tag it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID or (tag == "rect" and not self.get_starttag_text().endswith("/>")):  # type: ignore[union-attr]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def checked(page: str) -> Checker:
    """Returns the page after checking that it is well-formed and loads nothing."""
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert not checker.tags & {"script", "link", "iframe"}
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    return checker


def test_a_page_has_every_part() -> None:
    page = html_report(REAL)
    assert checked(page).headings == [
        "Findings",
        "Row groups",
        "Fields",
        "Images",
        "Values",
        "Timestamps",
        "First rows",
    ]
    assert page.count("row group ") >= 9
    assert "pedestrian" in page
    assert "data:image/png;base64," in page


def test_every_kind_of_field_has_its_place(tmp_path: Path) -> None:
    built = build(tmp_path, [[20, 20]], names=ALL_FIELDS)
    page = html_report(built.url, rows=10)
    checked(page)
    assert "10 rows sampled at random from 40" in page
    assert all(f"<td>{name}</td>" in page for name in ALL_FIELDS)


def test_values_and_names_are_only_text(tmp_path: Path) -> None:
    table = pa.table({"<b>": ["<script>alert(1)</script>", "&"] * 5})
    page = html_report(write_table(tmp_path, table))
    checked(page)
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


def test_an_empty_dataset_and_refused_columns_have_a_page(tmp_path: Path) -> None:
    checked(html_report(write_table(tmp_path / "a", pa.table({"id": pa.array([], pa.int64())}))))
    checked(html_report(write_table(tmp_path / "b", pa.table({"id": [1], "odd": pa.array([None], pa.null())}))))


def test_gaps_are_measured_between_consecutive_rows(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"ts": [0, 10, 20, 5, 15, None, 90, 100], "x": [[1]] * 8}), row_group_size=3)
    found = gaps(url, "ts")
    assert (found.rows, found.median, found.most, found.back) == (8, 10.0, 10.0, 1)
    assert found.largest[0][1] == 10.0
    times = np.array([0, 60_000, 3_600_000], "datetime64[ms]")
    timed = write_table(tmp_path / "times", pa.table({"at": times}))
    assert gaps(timed, "at").largest == ((2, 3_540_000.0), (1, 60_000.0))
    assert "<td>0:59:00 before row 2, 0:01:00 before row 1</td>" in html_report(timed)
    with pytest.raises(PipelineError, match="expected single numbers or times"):
        gaps(url, "x")


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    save_report(REAL, tmp_path / "page.html", rows=5, images=2)
    checked((tmp_path / "page.html").read_text(encoding="utf-8"))
    with pytest.raises(DatasetError, match="cannot be written"):
        save_report(REAL, tmp_path / "none" / "page.html", rows=5)
    with pytest.raises(PipelineError, match="numbers >= 1"):
        html_report(REAL, rows=0)


def test_a_page_names_no_password(tmp_path: Path) -> None:
    pipeline = build(tmp_path, [[3]], names=("id",)).pipeline()
    assert len(pipeline.dataset.files) == 1  # opened
    page = html_report(pipeline._replace(source=replace(pipeline.source, urls=("s3://KEY:SECRET@bucket/train",))))
    assert "SECRET" not in page
    assert "s3://bucket/train" in page
