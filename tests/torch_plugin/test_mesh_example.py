"""The example ``mesh_loop.py``: four ranks on a mesh of 2 x 2 stop in the middle of an epoch, and two continue."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from launched import environment
from processes import run_python

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "examples/trainers/mesh_loop.py"
TILES, BATCH, STOPS_AFTER, DATA_RANKS = 96, 12, 2, 2
STEPS = STOPS_AFTER + (TILES - STOPS_AFTER * BATCH * DATA_RANKS) // BATCH
LINE = re.compile(r"dp (\d), tp (\d): steps (\d+ to \d+), tiles (\[.*\])\n")


@pytest.mark.nightly
def test_ranks_of_one_model_train_on_the_same_rows_and_models_on_each_row_once(tmp_path: Path) -> None:
    said = run_python(SCRIPT, env=environment(TMPDIR=tmp_path), check=True).stdout
    runs: dict[str, dict[tuple[int, int], list[int]]] = defaultdict(dict)
    for data, model, steps, tiles in LINE.findall(said):
        runs[steps][int(data), int(model)] = json.loads(tiles)
    four, two = runs.pop(f"1 to {STOPS_AFTER}"), runs.pop(f"{STOPS_AFTER + 1} to {STEPS}")
    assert runs == {}
    assert sorted(four) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sorted(two) == [(0, 0), (0, 1)]
    models = four[0, 0], four[1, 0], two[0, 0]
    assert models == (four[0, 1], four[1, 1], two[0, 1])
    assert sorted(tile for tiles in models for tile in tiles) == list(range(TILES))
