"""JAX in processes of ``jax.distributed``: each row once, equal steps, and a state that one process continues."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import free_ports, run_python

pytest.importorskip("jax")

RANK = Path(__file__).with_name("jax_rank.py")
ROWS, BATCH, STOP = 60, 4, 3  # those of conftest.py and jax_rank.py
Steps = list[tuple[list[int], int]]  # the rows of this process, and the sum of the rows of all processes


def in_processes(ranks: int, *arguments: object) -> list[Steps]:
    """Returns the steps of each process. One that takes fewer than another would leave it waiting."""
    address = f"localhost:{free_ports(1)[0]}"

    def run(rank: int) -> Steps:
        printed = run_python(RANK, address, ranks, rank, *arguments, check=True).stdout
        return [(rows, total) for rows, total in json.loads(printed.splitlines()[-1])]

    with ThreadPoolExecutor(ranks) as threads:
        return [*threads.map(run, range(ranks))]


def rows_of(*processes: Steps) -> list[int]:
    return sorted(row for steps in processes for rows, _ in steps for row in rows)


def test_two_processes_take_each_row_once_in_equal_steps(url: str, tmp_path: Path) -> None:
    first, second = in_processes(2, url, tmp_path / "state")
    assert len(first) == len(second) == -(-ROWS // (2 * BATCH))
    assert rows_of(first, second) == list(range(ROWS))
    totals = [sum(mine) + sum(others) for (mine, _), (others, _) in zip(first, second, strict=True)]
    assert [total for _, total in first] == [total for _, total in second] == totals


def test_one_process_continues_an_epoch_of_two(url: str, tmp_path: Path) -> None:
    stopped = in_processes(2, url, tmp_path / "state", STOP)
    assert [len(steps) for steps in stopped] == [STOP, STOP]
    (rest,) = in_processes(1, url, tmp_path / "state")
    assert len(rest) == (ROWS - 2 * BATCH * STOP) // BATCH
    assert rows_of(*stopped, rest) == list(range(ROWS))
