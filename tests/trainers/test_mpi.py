"""The example ``launched_loop.py``, started by MPICH's own ``mpiexec``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launched import BATCH, SCRIPT, TILES, ends, environment, said, written_tiles
from processes import PATIENCE_S, free_ports

MPIEXEC = Path(sys.executable).with_name("mpiexec")  # of the package mpich
RANKS = 2


def mpiexec(*command: object) -> list[str]:
    """Returns the lines that all ranks print. They meet at variables that ``mpiexec`` passes on."""
    meeting = ("-genv", "MASTER_ADDR", "localhost", "-genv", "MASTER_PORT", free_ports(1)[0])
    started = map(str, (MPIEXEC, "-n", RANKS, *meeting, sys.executable, *command))
    done = subprocess.run([*started], capture_output=True, text=True, timeout=PATIENCE_S, env=environment())
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(done.stdout.splitlines())


def test_mpiexec_gives_each_row_once_in_equal_steps(tmp_path: Path) -> None:
    lines = mpiexec(SCRIPT, written_tiles(tmp_path), tmp_path / "checkpoint")
    steps = TILES // (RANKS * BATCH)
    assert said(lines, "epoch 0") == ends(RANKS, 0, steps)
    assert said(lines, "epoch 1") == ends(RANKS, 1, 2 * steps)
