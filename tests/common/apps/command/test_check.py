"""``verify``, ``doctor`` and ``cache``, called as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from builders import write_table
from page_shell import run_parquetry as run

from parquetry.common.apps.reports import machine

REAL = str(Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1")


def test_verify_fails_for_damages(tmp_path: Path) -> None:
    sound = run("verify", REAL)
    assert (sound.exit_code, "Everything is sound" in sound.output) == (0, True)
    write_table(tmp_path, pa.table({"id": range(10)}))
    (tmp_path / "more.parquet").write_bytes(b"PAR1")
    broken = run("verify", str(tmp_path))
    assert (broken.exit_code, "Problems: 1" in broken.output) == (1, True)
    assert json.loads(run("verify", str(tmp_path), "--json").stdout)["damages"][0]["check"] == "file"


def test_verify_says_what_it_did_not_decode(tmp_path: Path) -> None:
    url = write_table(tmp_path, pa.table({"id": range(2), "photo": [b"\xff\xd8", b""]}))
    shown = run("verify", url)
    assert (shown.exit_code, "Everything is sound" in shown.output) == (0, False)
    assert "not decoded: photo: It holds bytes." in shown.output
    field = 'UnischemaField("photo", "uint8", (None, None, 3), CompressedImageCodec("jpeg"))'
    broken = run("verify", url, f"select({field})", "--json")
    assert broken.exit_code == 1
    told = json.loads(broken.stdout)
    assert [damage["check"] for damage in told["damages"]] == ["decoding", "decoding"]
    assert told["undecoded"] == {"id": "The pipeline has no such field."}


def test_doctor_shows_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_library_name", lambda: "")  # TensorFlow takes seconds to report it
    shown = run("doctor").output
    assert "shared memory" in shown
    assert "numpy" in shown
    assert json.loads(run("doctor", "--json").stdout)["libraries"]["numpy"]


def test_caches_are_listed_made_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path))
    assert "57 elements" in run("cache", "warm", REAL, 'where(field("id") > 2)').output
    listed = json.loads(run("cache", "ls", "--json").stdout)
    assert {report["kind"]: report["files"] for report in listed}["selections"] == 1
    assert run("cache", "clear", "selections").exit_code == 0
    assert run("cache", "clear", "bogus").exit_code == 2
    listed = json.loads(run("cache", "ls", "--json").stdout)
    assert {report["kind"]: report["files"] for report in listed}["selections"] == 0
