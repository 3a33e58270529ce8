"""One tiny run from the command line to the table, with a peer that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.catalog import CONTENDERS, Contender


@pytest.fixture
def peer_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> str:
    absent = Contender(name="absent", title="Absent", module="absent", environment=".venv-of-nobody", workloads=("d",))
    monkeypatch.setitem(CONTENDERS, "absent", absent)
    return "absent"


@pytest.mark.slow
def test_a_tiny_run_measures_us_beside_the_limit_and_leaves_a_missing_peer_blank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], peer_that_is_not_there: str
) -> None:
    places = ["--data", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    run.main(
        [
            *("--profile", "tiny", "--workloads", "d", "--contenders", f"threads,{peer_that_is_not_there}"),
            *("--rounds", "1", "--seconds", "0.01", "--no-plot", *places),
        ]
    )
    found = json.loads((tmp_path / "results" / "bench.json").read_text())
    table = found["runs"][0]["workloads"]["d"]
    assert table["absent"]["status"] == "missing"
    assert table["threads"]["status"] == "ok", (tmp_path / "results" / "peers.log").read_text()
    (pair,) = table["threads"]["pairs"]
    assert pair["rows"] % 1_024 == 0
    assert pair["rows"] > 0
    assert min(pair["rate"], pair["limit"], pair["memory_bytes"]) > 0
    written = (tmp_path / "results" / "bench.md").read_text()
    assert written.rstrip() in capsys.readouterr().out
    assert "**Pipeline, threads**" in written


def test_a_letter_stands_for_all_its_workloads_and_unknown_names_are_refused() -> None:
    known = ["a", "c-ndarray", "c-tensor", "d", "d-pack"]
    assert run._chosen("c, d", known) == ["c-ndarray", "c-tensor", "d"]
    assert run._chosen("all", known) == known
    with pytest.raises(SystemExit, match=r"expected names out of a, c-ndarray, .* got 'x'"):
        run._chosen("x", known)
