"""Reads a folder of Parquet files that other programs wrote through every face, and compares with Arrow, value by value.

Filters take their literals from the data. Without a folder, it writes some hundred small files with the habits of many writers::

    $ python -m tests.foreign                         # 300 small files
    $ python -m tests.foreign --files 20 --first 100  # the small files 100 to 119
    $ python -m tests.foreign ~/parquet-testing       # all files below a folder

A file that a face reads otherwise than Arrow ends the program with status 1. ``--refusals`` lists what parquetry refuses, with its reason.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faces import installed_faces
from foreign.compare import compare
from foreign.habits import write_files

FILES = 300
MOST_SHOWN = 3  # differences of one file


def main(
    folder: Annotated[Path | None, typer.Argument(help="Parquet files, at any depth.")] = None,
    files: Annotated[int, typer.Option(help="How many small files to write, without a folder.")] = FILES,
    first: Annotated[int, typer.Option(help="The number of the first small file.")] = 0,
    refusals: Annotated[bool, typer.Option(help="List what parquetry refuses.")] = False,
) -> None:
    """Compares what every face reads with what Arrow reads."""
    faces = installed_faces()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as room:
        for path in _paths(folder) if folder is not None else write_files(Path(room), range(first, first + files)):
            result = compare(path, faces)
            counts.update(files=1, rows=result.rows, columns=result.columns, filters=result.filters)
            counts.update(refused=bool(result.refusal), unread=bool(result.unread), different=bool(result.differences))
            for difference in result.differences[:MOST_SHOWN]:
                print(f"DIFFERENT {path.name}: {difference}")
            if refusals and result.refusal:
                print(f"refused {path.name}: {result.refusal}")
    print(", ".join(f"{name}: {count:,}" for name, count in counts.items()))
    sys.exit(bool(counts["different"]))


def _paths(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.parquet")) + sorted(folder.rglob("*.parq")):
        if path.is_file():
            yield path


if __name__ == "__main__":
    typer.run(main)
