"""``bench`` and ``show``, called as a user would."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from page_shell import run_parquetry as run
from rich.console import Console

from parquetry.common.command import looking

REAL = str(Path(__file__).parents[2] / "data" / "petastorm" / "0.12.1")


def test_bench_tells_what_bounds_a_chain() -> None:
    assert "bound by: " in run("bench", REAL, "batch(16)", "--seconds", 0.02).output
    told = json.loads(run("bench", REAL, "batch(16)", "--seconds", 0.02, "--workers", 1, "--json").stdout)
    assert told["workers"] == 1
    assert {part["stage"] for part in told["parts"]} == {"decode", "parquet", "store"}
    assert run("bench", REAL, "--seconds", 0).exit_code == 2


def test_show_writes_a_sheet_or_shows_colors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "4 images of 'png'" in run("show", REAL, "--png", tmp_path / "a.png").output
    assert (tmp_path / "a.png").stat().st_size > 100
    assert "has no colors" in run("show", REAL, "-n", 1).output
    monkeypatch.setattr(
        looking, "new_console", lambda: Console(width=40, color_system="truecolor", force_terminal=True)
    )
    assert "▀" in run("show", REAL, "-n", 2, "--field", "jpeg").output
    assert run("show", REAL, "--field", "id").exit_code == 2
    strips = run("show", REAL, "--chain", 'ngram(["png"], length=3)', "-n", 2, "--png", tmp_path / "b.png", "--json")
    assert json.loads(strips.stdout)["images"] == 6
    assert run("show", REAL, "take(1)", "--chain", "take(2)").exit_code == 2
    assert run("show", REAL, "--tokenizer", "none.json").exit_code == 2


def test_two_pixels_share_a_letter() -> None:
    pixels = np.zeros((3, 2, 3), np.uint8)
    pixels[0, 0] = (1, 2, 3)
    text = looking.half_blocks(pixels)
    assert text.plain == "▀▀\n"
    assert str(text.spans[0].style) == "rgb(1,2,3) on rgb(0,0,0)"
