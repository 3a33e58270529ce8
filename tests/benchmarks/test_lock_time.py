"""How long the interpreter's lock is held for each row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import lock_time
from benchmarks.lock_time import Held


@pytest.fixture
def spy() -> str:
    """py-spy, if it is installed and may look into processes."""
    try:
        found = lock_time._py_spy()
    except SystemExit as error:
        pytest.skip(str(error))
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], stdout=-1
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tried = subprocess.run([found, "dump", "--pid", str(process.pid)], capture_output=True, text=True, check=False)
        process.kill()
    if tried.returncode:
        pytest.skip(f"py-spy may not look into processes: {tried.stderr.strip()}")
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("spy")
def test_a_tiny_run_gives_times_by_both_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--profile", "tiny", "--rounds", "1", "--seconds", "1", "--data", str(tmp_path)]
    lock_time.main([*options, "--workloads", "d", "--readers", "threads"])
    _, _, line = capsys.readouterr().out.strip().splitlines()
    name, process, rows_s, share, spied, row_us, most = (cell.strip() for cell in line.strip("|").split("|"))
    assert (name, process) == ("`d` Pipeline, threads", "own")
    assert 0 < int(share.rstrip("%")) <= 100
    assert 0 < int(spied.rstrip("%")) <= 100
    assert float(row_us) > 0
    assert int(most.replace(",", "")) >= int(rows_s.replace(",", ""))


def test_the_lock_limits_the_rate_to_the_inverse_of_its_time() -> None:
    held = Held(key="d", reader="ParquetIterable", process="own", rows_s=250_000.0, share=0.5, row_us=2.0, spied=0.48)
    line = lock_time.table([held]).splitlines()[-1]
    assert [cell.strip() for cell in line.strip("|").split("|")][2:] == ["250,000", "50%", "48%", "2", "500,000"]


def test_without_py_spy_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lock_time.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"py-spy is not installed\. It is in the extra dev"):
        lock_time.main([])
