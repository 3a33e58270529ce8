"""Loader workers that the fork server starts, which Python 3.14 does by default: the stock loader gives the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_python

from parquetry import Unischema, UnischemaField, write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.versions]

PROGRAM = """
import multiprocessing, sys
from torch.utils.data import DataLoader
from parquetry import ParquetIterable, ParquetMap

def ids(loader):
    return sorted(number for batch in loader for number in batch["id"].tolist())

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    url = sys.argv[1]
    iterable = ParquetIterable(url).shuffle(20, seed=3).batch(7)
    loader = DataLoader(iterable, batch_size=None, num_workers=2, persistent_workers=True)
    print(all(ids(loader) == list(range(100)) for _ in range(2)))
    mapped = ParquetIterable(url).transform(lambda row: {"id": row["id"] + 1}).batch(7)
    print(ids(DataLoader(mapped, batch_size=None, num_workers=1)) == list(range(1, 101)))
    print(ids(DataLoader(ParquetMap(url), batch_size=8, num_workers=2)) == list(range(100)))
"""


def test_loader_workers_of_a_fork_server_give_every_row_once(tmp_path: Path) -> None:
    url = str(tmp_path / "rows")
    write_dataset(url, Unischema("rows", [UnischemaField("id", "int64")]), ({"id": n} for n in range(100)))
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    result = run_python(str(program), url)
    assert result.stdout.splitlines() == ["True"] * 3, result.stderr
