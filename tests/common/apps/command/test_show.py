"""``describe``, ``head``, ``plot``, ``explain``, ``bench`` and ``lint``, called as a user would."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table
from page_shell import run_parquetry as run
from rich.console import Console

from parquetry.common.apps.command import show

REAL = str(Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1")


def test_describe_shows_the_dataset_its_fields_and_what_is_odd() -> None:
    shown = run("describe", REAL).output
    assert "9 of 4 to 8 rows" in shown
    assert "decimal128(10, 3)" in shown
    assert "Of 60 rows, 'label' is null in 9, 'speed' in 12." in " ".join(shown.split())
    told = json.loads(run("describe", REAL, "--json").stdout)
    assert told["dataset"]["rows"] == 60
    assert [field["name"] for field in told["dataset"]["fields"]][:2] == ["drive", "id"]
    assert {finding["code"] for finding in told["findings"]} == {"pickled-schema", "nulls"}


def test_head_shows_the_first_rows_or_a_sample() -> None:
    shown = run("head", REAL, 'select("id", "label", "png")', "-n", "2", "--skip", "1").output
    assert "vehicle" in shown
    assert "2 of 60 elements" in shown
    told = json.loads(run("head", REAL, 'select("id", "png")', "--json", "-n", "2").stdout)
    assert [row["id"] for row in told["rows"]] == [0, 1]
    drawn = [json.loads(run("head", REAL, "--seed", "7", "--json").stdout) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert "5 of 60 elements" in run("head", REAL, "--sample").output
    assert run("head", REAL, "-n", "-1").exit_code == 2


def test_head_shows_a_row_on_each_line_if_there_are_few_columns() -> None:
    lines = [line.split() for line in run("head", REAL, 'select("id", "label")', "-n", "2").output.splitlines()]
    assert lines[:2] == [["id", "label"], ["int64", "text"]]
    assert [line[0] for line in lines[2:4]] == ["0", "1"]


def test_explain_tells_the_plan_of_a_chain() -> None:
    arguments = ["explain", REAL, 'where(field("id") < 8).batch(4)']
    assert "gives: 2 batches of 4 rows" in run(*arguments).output
    told = json.loads(run(*arguments, "--json").stdout)
    assert told["chain"] == ["where((id < 8))", "batch(batch_size=4)"]
    assert "gives: 2 batches of 4 rows" in told["plan"]


def test_lint_fails_for_problems_and_with_strict_for_notes(tmp_path: Path) -> None:
    assert run("lint", REAL).exit_code == 0
    assert run("lint", REAL, "--strict").exit_code == 1
    assert [finding["level"] for finding in json.loads(run("lint", REAL, "--json").stdout)] == ["note"] * 2
    fine = write_table(tmp_path, pa.table({"id": range(10)}))
    assert "No problems found" in run("lint", fine).output


def test_a_command_that_lint_prints_is_a_whole_line_also_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert f"  parquetry migrate {REAL}" in run("lint", REAL).output.splitlines()


def test_describe_counts_and_keeps_values(tmp_path: Path) -> None:
    shown = run("describe", REAL, "--values", 'select("label", "jpeg", "id")').output
    assert "vehicle (34)" in shown
    assert 'normalize("jpeg", mean=(0.3317, 0.3924, 0.1961)' in shown
    assert "a sample of 10 of 60 rows" in run("describe", REAL, "--values", "-n", "10").output
    url = write_table(tmp_path, pa.table({"x": [1.0, 2.0]}))
    assert "written to" in run("describe", url, "--values", "--keep").output
    assert "kept beside" in run("describe", url, "--values", "--keep").output
    assert json.loads(run("describe", url, "--values", "--json").stdout)["fields"][0]["mean"] == 1.5
    for wrong in (["take(1)"], ["--keep"], ["-n", "3"], ["--values", "--html", "page.html"]):
        assert run("describe", url, *wrong).exit_code == 2


def test_describe_writes_a_page(tmp_path: Path) -> None:
    assert "written to" in run("describe", REAL, "--html", str(tmp_path / "page.html")).output
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_times_are_shown_as_times(tmp_path: Path) -> None:
    begin = datetime(2026, 3, 1, 12, tzinfo=UTC)
    times = [begin + timedelta(minutes=10 * number) for number in range(5)]
    columns = {"at": pa.array(times, pa.timestamp("s", "UTC")), "took": pa.array(range(5), pa.duration("ms"))}
    url = write_table(tmp_path, pa.table({"id": range(5), **columns}))
    shown = run("head", url, "-n", "2").output
    assert "int64 (datetime64[ms])" in shown
    assert "2026-03-01 12:10:00" in shown
    assert "0:00:00.001000" in shown
    told = json.loads(run("head", url, "--json", "-n", "2").stdout)
    assert [field["unit"] for field in told["fields"]] == [None, "datetime64[ms]", "timedelta64[ms]"]
    assert told["rows"][1] == {"id": 1, "at": int(times[1].timestamp() * 1000), "took": 1}
    found = run("describe", url, "--values").output
    assert "2026-03-01 12:40:00" in found
    assert "0:14:08.528" in found


def test_columns_that_cannot_become_tensors_are_named_and_the_others_shown(tmp_path: Path) -> None:
    url = write_table(tmp_path / "some", pa.table({"id": [1, 2], "gone": pa.nulls(2), "text": ["a", "\x1b[31mb"]}))
    told = json.loads(run("head", url, "--json").stdout)
    assert told["rows"] == [{"id": 1, "text": "a"}, {"id": 2, "text": "\x1b[31mb"}]
    assert (
        list(told["refused"])
        == list(json.loads(run("describe", url, "--values", "--json").stdout)["refused"])
        == ["gone"]
    )
    shown = run("head", url, "--sample").output
    assert "not shown: field 'gone'" in shown
    assert "\\x1b[31mb" in shown  # and no color
    assert "not shown" not in run("head", url, 'select("id")').output
    refused = run("head", url, 'select("gone")')
    assert (refused.exit_code, "Arrow type null cannot" in refused.output) == (3, True)
    assert run("verify", write_table(tmp_path / "none", pa.table({"gone": pa.nulls(2)}))).exit_code == 3


def test_nothing_to_show_is_no_error(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"id": [1, 2]}))
    for options in ([], ["--sample"]):
        found = run("head", url, 'where(field("id") > 2)', *options)
        assert (found.exit_code, found.output.strip().splitlines()[-1]) == (0, "0 of 0 elements")
    shown = run("plot", url)
    assert (shown.exit_code, shown.output.count("plot:")) == (2, 1)
    assert "expected a field of images, got id." in shown.output


def test_bench_tells_what_bounds_a_chain() -> None:
    assert "bound by: " in run("bench", REAL, "batch(16)", "--seconds", 0.02).output
    told = json.loads(run("bench", REAL, "batch(16)", "--seconds", 0.02, "--workers", 1, "--json").stdout)
    assert told["workers"] == 1
    assert {part["stage"] for part in told["parts"]} == {"decode", "parquet", "store"}
    assert run("bench", REAL, "--seconds", 0).exit_code == 2


def test_plot_writes_a_sheet_or_shows_colors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "4 images of 'png'" in run("plot", REAL, "--png", tmp_path / "a.png").output
    assert (tmp_path / "a.png").stat().st_size > 100
    assert "has no colors" in run("plot", REAL, "-n", 1).output
    monkeypatch.setattr(show, "new_console", lambda: Console(width=40, color_system="truecolor", force_terminal=True))
    assert "▀" in run("plot", REAL, "-n", 2, "--field", "jpeg").output
    assert run("plot", REAL, "--field", "id").exit_code == 2
    strips = run("plot", REAL, 'ngram(["png"], length=3)', "-n", 2, "--png", tmp_path / "b.png", "--json")
    assert json.loads(strips.stdout)["images"] == 6
    assert run("plot", REAL, "--tokenizer", "none.json").exit_code == 2


def test_two_pixels_share_a_letter() -> None:
    pixels = np.zeros((3, 2, 3), np.uint8)
    pixels[0, 0] = (1, 2, 3)
    text = show.half_blocks(pixels)
    assert text.plain == "▀▀\n"
    assert str(text.spans[0].style) == "rgb(1,2,3) on rgb(0,0,0)"
