"""``inspect``, ``head``, ``sample``, ``explain`` and ``lint``, called as a user would."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from builders import write_table
from page_shell import run_parquetry as run

REAL = str(Path(__file__).parents[2] / "data" / "petastorm" / "0.12.1")


def test_inspect_shows_the_dataset_its_fields_and_what_is_odd() -> None:
    shown = run("inspect", REAL).output
    assert "9 of 4 to 8 rows" in shown
    assert "decimal128(10, 3)" in shown
    assert "'speed' is null in 12 of 60 rows" in shown
    told = json.loads(run("inspect", REAL, "--json").stdout)
    assert told["dataset"]["rows"] == 60
    assert [field["name"] for field in told["dataset"]["fields"]][:2] == ["drive", "id"]
    assert {finding["code"] for finding in told["findings"]} == {"pickled-schema", "nulls"}


def test_head_and_sample_show_rows() -> None:
    shown = run("head", REAL, 'select("id", "label", "png")', "-n", "2", "--skip", "1").output
    assert "vehicle" in shown
    assert "2 of 60 elements" in shown
    told = json.loads(run("head", REAL, 'select("id", "png")', "--json", "-n", "2").stdout)
    assert [row["id"] for row in told["rows"]] == [0, 1]
    drawn = [json.loads(run("sample", REAL, "--seed", "7", "--json").stdout) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert run("head", REAL, "-n", "-1").exit_code == 2


def test_explain_tells_the_plan_of_a_chain() -> None:
    arguments = ["explain", REAL, 'where(field("id") < 8).batch(4)']
    assert "gives: 2 batches of 4 rows" in run(*arguments).output
    told = json.loads(run(*arguments, "--json").stdout)
    assert told["chain"] == ["where((id < 8))", "batch(batch_size=4)"]
    assert "gives: 2 batches of 4 rows" in told["plan"]


def test_lint_fails_for_problems_and_with_strict_for_notes(tmp_path: Path) -> None:
    assert run("lint", REAL).exit_code == 0
    assert run("lint", REAL, "--strict").exit_code == 1
    assert [finding["level"] for finding in json.loads(run("lint", REAL, "--json").stdout)] == ["note"] * 3
    fine = write_table(tmp_path, pa.table({"id": range(10)}))
    assert "No problems found" in run("lint", fine).output


def test_inspect_writes_a_page(tmp_path: Path) -> None:
    assert "written to" in run("inspect", REAL, "--html", str(tmp_path / "page.html")).output
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
    found = run("stats", url).output
    assert "2026-03-01 12:40:00" in found
    assert "8.4853e+05 ms" in found


def test_columns_that_cannot_become_tensors_are_named_and_the_others_shown(tmp_path: Path) -> None:
    url = write_table(tmp_path / "some", pa.table({"id": [1, 2], "gone": pa.nulls(2), "text": ["a", "\x1b[31mb"]}))
    told = json.loads(run("head", url, "--json").stdout)
    assert told["rows"] == [{"id": 1, "text": "a"}, {"id": 2, "text": "\x1b[31mb"}]
    assert list(told["refused"]) == list(json.loads(run("stats", url, "--json").stdout)["refused"]) == ["gone"]
    shown = run("sample", url).output
    assert "not shown: field 'gone'" in shown
    assert "\\x1b[31mb" in shown  # and no color
    assert "not shown" not in run("head", url, 'select("id")').output
    refused = run("head", url, 'select("gone")')
    assert (refused.exit_code, "Arrow type null cannot" in refused.output) == (3, True)
    assert run("verify", write_table(tmp_path / "none", pa.table({"gone": pa.nulls(2)}))).exit_code == 3


def test_nothing_to_show_is_no_error(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"id": [1, 2]}))
    for command in ("head", "sample"):
        found = run(command, url, 'where(field("id") > 2)')
        assert (found.exit_code, found.output.strip().splitlines()[-1]) == (0, "0 of 0 elements")
    shown = run("show", url)
    assert (shown.exit_code, shown.output.count("show:")) == (2, 1)
    assert "expected a field of images, got id." in shown.output
