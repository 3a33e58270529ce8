"""`parquetry new`: the programs that it writes run, resume, and are formatted as ruff formats them."""

from __future__ import annotations

import datetime
import decimal
import io
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from page_shell import run_parquetry
from processes import run_python

ROWS = 240
LABEL = [n % 2 for n in range(ROWS)]


def clicks() -> pa.Table:
    return pa.table(
        {
            "user_id": [f"u{n % 130}" for n in range(ROWS)],
            "city": ["Lima" if n % 3 else None for n in range(ROWS)],
            "price": [None if n % 40 == 0 else n / 7 for n in range(ROWS)],
            "clicked": LABEL,
        }
    )


def houses() -> pa.Table:
    area = [None if n % 3 == 0 else float("nan") if n == 4 else 50.0 + n for n in range(ROWS)]
    return pa.table({"id": range(ROWS), "area": area, "rooms": [n % 6 for n in range(ROWS)], "cost": np.arange(240.0)})


def pictures() -> pa.Table:
    from PIL import Image

    def picture(n: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(np.full((40, 50, 3), n, np.uint8)).save(file, "png" if n % 2 else "jpeg")
        return file.getvalue()

    return pa.table({"image": list(map(picture, range(ROWS))), "label": ["cat" if n % 2 else "dog" for n in LABEL]})


def series() -> pa.Table:
    start = datetime.datetime(2024, 1, 1)
    times = pa.array([start + datetime.timedelta(hours=n) for n in range(ROWS)], pa.timestamp("us", "UTC"))
    return pa.table({"at": times, "load": np.sin(np.arange(ROWS)), "next": np.cos(np.arange(ROWS))})


def tokens() -> pa.Table:
    return pa.table({"tokens": [list(range(n % 9)) for n in range(ROWS)], "id": range(ROWS), "label": LABEL})


def texts() -> pa.Table:
    return pa.table({"text": [f"A sentence of some words, with number {n}" for n in range(ROWS)], "label": LABEL})


def lists() -> pa.Table:
    tags = [None if n % 50 == 0 else ["x", "y", "z"][: n % 4] for n in range(ROWS)]
    box = pa.array([[float(n), 1.0] for n in range(ROWS)], pa.list_(pa.float32(), 2))
    return pa.table({"tags": tags, "sizes": [[0.5] * (n % 3) for n in range(ROWS)], "box": box, "label": LABEL})


def decimals() -> pa.Table:
    amounts = pa.array([decimal.Decimal(n) / 100 for n in range(ROWS)], pa.decimal128(9, 2))
    new = [None if n % 30 == 0 else n % 5 == 0 for n in range(ROWS)]
    return pa.table({"amount": amounts, "is_new": new, "paid": [bool(n) for n in LABEL]})


def odd_names() -> pa.Table:
    values = {'say "hi"': np.arange(240.0), "größe (cm)": np.arange(240), "a.b": ["p", "q"] * 120}
    return pa.table({"# Timestamp": np.arange(240.0), **values, "class": [n % 3 for n in range(ROWS)]})


CASES: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "clicks": (clicks, "clicked"),
    "houses": (houses, "cost"),
    "pictures": (pictures, "label"),
    "series": (series, "next"),
    "tokens": (tokens, "label"),
    "texts": (texts, "label"),
    "lists": (lists, "label"),
    "decimals": (decimals, "paid"),
    "partitions": (clicks, "clicked"),
    "odd names": (odd_names, "class"),
}


OFTEN = [("clicks", "torch"), ("series", "torch"), ("texts", "torch"), ("lists", "tensorflow")]
"""The cases that run on every change."""


def dataset(name: str, directory: Path) -> str:
    table = CASES[name][0]()
    if name == "partitions":
        pq.write_to_dataset(table, directory / "rows", partition_cols=["city"])
        return "rows"
    pq.write_table(table, directory / "rows.parquet", row_group_size=80)
    return "rows.parquet"


def write_program(name: str, framework: str, directory: Path) -> str:
    """Writes a program to ``train.py`` in the working directory, and returns it."""
    option = "--torch" if framework == "torch" else "--keras"
    url = dataset(name, directory)
    result = run_parquetry("new", url, "--target", CASES[name][1], option, "--output", "train.py")
    assert result.exit_code == 0, result.output
    return Path("train.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_programs_are_short_and_formatted(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CASES:
        directory = tmp_path / name
        directory.mkdir()
        monkeypatch.chdir(directory)
        program = write_program(name, framework, directory)
        compile(program, name, "exec")
        assert program.count("\n") < 70, name
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", str(tmp_path)]
    formatted = subprocess.run(command, capture_output=True, text=True)
    assert formatted.returncode == 0, formatted.stdout


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in OFTEN else pytest.mark.nightly)
        for case in [*((name, "torch") for name in CASES), ("clicks", "tensorflow"), ("lists", "tensorflow")]
    ],
)
def test_a_program_runs_and_resumes(name: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    monkeypatch.chdir(tmp_path)
    write_program(name, framework, tmp_path)
    for _ in range(2 if name == "clicks" else 1):
        run = run_python("train.py")
        assert run.returncode == 0, run.stderr[-3000:]
        assert ("validation loss: " if framework == "torch" else "val_loss: ") in run.stdout
        assert "nan" not in run.stdout


def test_it_names_near_fields_and_keeps_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = dataset("clicks", tmp_path)
    wrong = run_parquetry("new", url, "--target", "click")
    assert (wrong.exit_code, "Did you mean 'clicked'?" in wrong.stderr) == (2, True)
    wrong = run_parquetry("new", url, "--target", "clicked", "--split", "user")
    assert (wrong.exit_code, "--split: " in wrong.stderr and "user_id" in wrong.stderr) == (2, True)
    Path("train.py").write_text("mine")
    kept = run_parquetry("new", url, "--target", "clicked", "--output", "train.py")
    assert (kept.exit_code, Path("train.py").read_text()) == (2, "mine")
    assert run_parquetry("new", url, "--target", "clicked", "--torch", "--keras").exit_code == 2


def test_a_program_says_what_it_leaves_out_and_splits_by_the_column_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run_parquetry("new", dataset("clicks", tmp_path), "--target", "clicked", "--split", "user_id").output
    assert "# Left out: user_id (rows are split by it)." in text
    assert 'rows.hash_split("user_id", [0.8, 0.2], n)' in text
    compile(text, "train.py", "exec")
