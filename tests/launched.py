"""The example ``launched_loop.py`` for tests that start it with a launcher: its data, its variables, and what it says."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "examples/trainers/launched_loop.py"
TILES, BATCH = 960, 30
LAUNCHED = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")


def written_tiles(directory: Path) -> str:
    """Writes the example's dataset and returns its URL."""
    tiles = runpy.run_path(str(SCRIPT.with_name("tiles.py")))
    return str(tiles["write_numbered_tiles"](str(directory)))


def environment(**variables: object) -> dict[str, str]:
    """Returns this process's variables without those of a launcher, and with others."""
    own = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    return {**own, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}


def ends(ranks: int, epoch: int, step: int) -> list[str]:
    """Returns what all ranks print at the end of an epoch in which they took each tile once, in equal steps."""
    times = [epoch + 1]
    return [
        f"rank {rank} of {ranks} epoch {epoch} ends after step {step}, each tile was seen {times} times"
        for rank in range(ranks)
    ]


def said(lines: list[str], words: str) -> list[str]:
    return [line for line in lines if words in line]
