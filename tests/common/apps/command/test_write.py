"""The commands that write, and ``serve``, called as a user would."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pyarrow as pa
from builders import build, write_table
from page_shell import run_parquetry as run

from parquetry.common import CompressedImageCodec, Pipeline

REAL = str(Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1")


def ids(place: object) -> list[int]:
    """Returns the ids of all rows."""
    return [int(row["id"]) for row in Pipeline(str(place), "id")]


def test_copy_takes_conditions_as_expressions_and_as_json(tmp_path: Path) -> None:
    first = run("copy", REAL, tmp_path / "a", "--where", 'field("id") >= 55', "--field-regex", "id", "--json")
    assert json.loads(first.output) == {
        "target": str(tmp_path / "a"),
        "rows": 5,
        "files": 1,
        "fields": ["id"],
        "resumed_stripes": 0,
    }
    assert run("copy", REAL, tmp_path / "b", "--where", '[["id", ">=", 55]]').exit_code == 0
    assert ids(tmp_path / "a") == ids(tmp_path / "b") == list(range(55, 60))
    assert run("copy", REAL, tmp_path / "a").exit_code == 3
    assert run("copy", REAL, tmp_path / "a", "--overwrite", "--where", 'contains("label", "v")').exit_code in (0, 2)
    assert run("copy", REAL, tmp_path / "c", "--where", "id > 3").exit_code == 2
    assert run("copy", REAL, tmp_path / "c", "--where", "3").exit_code == 2


def test_convert_writes_what_it_is_given(tmp_path: Path) -> None:
    write_table(tmp_path / "plain", pa.table({"id": range(10), "x": range(10)}))
    done = run("convert", tmp_path / "plain", tmp_path / "new", "--fields", "id", "--row-group-rows", 4, "--workers", 1)
    assert "10 rows of 1 fields" in done.output
    assert Pipeline(tmp_path / "new").dataset.row_groups.rows.tolist() == [4, 4, 2]
    assert run("convert", tmp_path / "plain", tmp_path / "more", "--form", "bogus").exit_code == 2
    assert run("convert", tmp_path / "plain", tmp_path / "more", "--rename", "a").exit_code == 2


def test_rewrite_sorts_and_encodes(tmp_path: Path) -> None:
    built = build(tmp_path / "old", [[20]], names=("id", "image"))
    done = run(
        "rewrite", built.url, tmp_path / "new", "--sort-by", "-id", "--codec", "image=jpeg:90", "--row-group-rows", 8
    )
    assert done.exit_code == 0, done.stderr
    assert ids(tmp_path / "new") == list(range(19, -1, -1))
    assert Pipeline(tmp_path / "new").schema["image"].codec == CompressedImageCodec("jpeg", 90)
    for wrong in ("image", "image=jpg2", "image=ndarray:3", "other=png", "image=jpeg:900"):
        assert run("rewrite", built.url, tmp_path / "more", "--codec", wrong).exit_code == 2


def test_index_migrate_and_generate_metadata_do_their_work(tmp_path: Path) -> None:
    old = shutil.copytree(REAL, tmp_path / "old")
    assert "nothing was written" in run("migrate", old, "--dry-run").output
    told = json.loads(run("migrate", old, "--json").stdout)
    assert told["changed"]
    assert told["schema"]["name"] == "Drive"
    assert run("index", old).output.startswith("written to ")
    assert Pipeline(old).dataset.index is not None
    plain = write_table(tmp_path / "plain", pa.table({"id": [1]}))
    assert "schema of 1 fields: id" in run("generate-metadata", plain).output
    assert run("generate-metadata", plain).exit_code == 3


def test_serve_serves_a_chain_until_it_is_told_to_stop(tmp_path: Path) -> None:
    built = build(tmp_path / "set", [[20]], names=("id",))
    address = f"unix:{tmp_path}/socket"
    received: list[int] = []

    def client() -> None:
        while not (tmp_path / "socket").exists():
            pass
        try:
            received.extend(next(iter(Pipeline(address=address)))["id"].tolist())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=client)
    thread.start()
    result = run("serve", built.url, "batch(4)", "--listen", address, "--json")
    thread.join()
    assert json.loads(result.stdout) == {"address": address}
    assert received == [0, 1, 2, 3]
    assert run("serve", tmp_path / "none.json").exit_code == 2
