"""The example ``launched_loop.py``, started by torchrun, and with the variables that other launchers set."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import BATCH, SCRIPT, TILES, ends, environment, said, written_tiles
from processes import free_ports, run_python

pytestmark = pytest.mark.slow
KILLED = Path(__file__).with_name("dying_rank.py")
STOPS_AFTER, SAVE_EVERY = 6, 4
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}  # else restarted ranks may look for killed ones
OTHERS: dict[str, Callable[[int], dict[str, object]]] = {  # tests/common/base/process/test_ranks.py has all
    "Slurm": lambda rank: {"SLURM_PROCID": rank, "SLURM_NTASKS": 2},
    "an indexed Kubernetes job": lambda rank: {"JOB_COMPLETION_INDEX": rank, "WORLD_SIZE": 2},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_tiles(tmp_path_factory.mktemp("tiles"))


@pytest.fixture(scope="module")
def whole(url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Trains two ranks to the end. Returns what they print, and their checkpoint."""
    checkpoint = tmp_path_factory.mktemp("whole") / "checkpoint"
    return torchrun(2, SCRIPT, url, checkpoint), checkpoint


def torchrun(ranks: int, *command: object, max_restarts: int = 0) -> list[str]:
    """Returns the lines that all ranks print."""
    options = ("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={max_restarts}")
    done = run_python("-m", "torch.distributed.run", *options, *command, env=environment(**OWN_STORE), check=True)
    return sorted(done.stdout.splitlines())


def test_torchrun_gives_each_row_once_in_equal_steps(whole: tuple[list[str], Path]) -> None:
    lines, _ = whole
    steps = TILES // (2 * BATCH)
    assert said(lines, "epoch 0") == ends(2, 0, steps)
    assert said(lines, "epoch 1") == ends(2, 1, 2 * steps)


@pytest.mark.nightly
def test_one_rank_continues_an_epoch_of_two(url: str, tmp_path: Path) -> None:
    """In the example, three continue."""
    torchrun(2, SCRIPT, url, tmp_path / "checkpoint", STOPS_AFTER)
    seen = torch.load(tmp_path / "checkpoint")["seen"]
    assert seen.unique().tolist() == [0, 1]
    assert seen.sum() == 2 * BATCH * STOPS_AFTER
    lines = torchrun(1, SCRIPT, url, tmp_path / "checkpoint")
    assert len(said(lines, f"starts after step {STOPS_AFTER}")) == 1
    assert said(lines, "epoch 0") == ends(1, 0, STOPS_AFTER + (TILES - int(seen.sum())) // BATCH)


@pytest.mark.nightly
def test_a_killed_rank_costs_the_steps_since_the_checkpoint_and_no_row(
    url: str, whole: tuple[list[str], Path], tmp_path: Path
) -> None:
    killed_in = STOPS_AFTER + SAVE_EVERY
    lines = torchrun(2, KILLED, 1, killed_in, SCRIPT, url, tmp_path / "restarted", max_restarts=1)
    begun = {int(step) for step in re.findall(r"starts after step (\d+)", "\n".join(lines))}
    assert begun == {0, killed_in // SAVE_EVERY * SAVE_EVERY}
    assert said(lines, "epoch 0") == ends(2, 0, TILES // (2 * BATCH))
    expected, restarted = torch.load(whole[1]), torch.load(tmp_path / "restarted")
    torch.testing.assert_close(restarted["model"], expected["model"])
    assert restarted["rows"] == expected["rows"]


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", OTHERS)
def test_other_launchers_give_each_row_once_in_equal_steps(url: str, tmp_path: Path, launcher: str) -> None:
    """Their programs need a cluster, so two processes get the variables that they set."""
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_ports(1)[0]}

    def run(rank: int) -> Any:
        variables = environment(**meeting, **OTHERS[launcher](rank))
        return run_python(SCRIPT, url, tmp_path / "checkpoint", env=variables, check=True).stdout.splitlines()

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(run, range(2))
    assert said([*first, *second], "epoch 0") == ends(2, 0, TILES // (2 * BATCH))


def test_without_a_launcher_the_script_names_one(url: str, tmp_path: Path) -> None:
    done = run_python(SCRIPT, url, tmp_path / "checkpoint", env=environment())
    assert (done.returncode, done.stderr) == (1, "Start this script with a launcher, such as torchrun.\n")
