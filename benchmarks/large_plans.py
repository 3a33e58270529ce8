"""Plans and first batches of very large datasets: ``python -m benchmarks.large_plans --folder /data``.

Writes a dataset of each kind once, and reads it in fresh processes, in threads and by a sidecar. Prints how long the
plan and the first batch take, and the largest memory of the trainer and of the sidecar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from parquetry.common import Pipeline
from parquetry.common.dataset.index import write_index

BATCH_ROWS = 64
ROW_GROUPS_PER_FILE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of dataset.

    Attributes:
        size: of what makes it large: row groups, files, columns, or rows of a row group.
        write: writes it.
        columns: how many columns are read; 0 = all.
        shuffle_rows: the block of the shuffle; 0 = in order.
        memory_limit: of the pipeline.
    """

    size: int
    write: Callable[[Path, int], None]
    columns: int = 0
    shuffle_rows: int = 0
    memory_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the first batch took; memory in MiB."""

    plan_s: float
    first_batch_s: float
    trainer_mib: int
    sidecar_mib: int

    def __str__(self) -> str:
        return (
            f"plan {self.plan_s:5.2f} s, first batch {self.first_batch_s:5.2f} s later, "
            f"trainer {self.trainer_mib} MiB, sidecar {self.sidecar_mib} MiB"
        )


def _row_groups(folder: Path, size: int) -> None:
    for file in range(-(-size // ROW_GROUPS_PER_FILE)):
        rows = min(ROW_GROUPS_PER_FILE, size - file * ROW_GROUPS_PER_FILE)
        numbers = pa.table({"id": np.arange(rows) + file * ROW_GROUPS_PER_FILE})
        pq.write_table(numbers, folder / f"{file:05}.parquet", row_group_size=1)
    write_index(str(folder))


def _files(folder: Path, size: int) -> None:
    for file in range(size):
        pq.write_table(pa.table({"id": np.arange(10) + 10 * file}), folder / f"{file:06}.parquet")
    write_index(str(folder))


def _columns(folder: Path, size: int) -> None:
    numbers = {f"c{number:05}": np.arange(1000, dtype=np.float32) for number in range(size)}
    pq.write_table(pa.table(numbers), folder / "0.parquet", row_group_size=250)


def _rows(folder: Path, size: int) -> None:
    pq.write_table(pa.table({"id": np.arange(size)}), folder / "0.parquet", row_group_size=size)


KINDS = {
    "a million row groups, in order": Kind(size=1_000_000, write=_row_groups),
    "a million row groups, shuffled": Kind(size=1_000_000, write=_row_groups, shuffle_rows=1000),
    "20,000 files": Kind(size=20_000, write=_files),
    "20 of 10,000 columns": Kind(size=10_000, write=_columns, columns=20),
    "10 million rows in a row group": Kind(size=10_000_000, write=_rows, shuffle_rows=1000, memory_limit=64 << 20),
}


def written(kind: Kind, folder: Path, share: float) -> Path:
    """Returns the folder of a dataset, and writes it if it is missing. ``share`` scales its size."""
    size = max(1, int(kind.size * share))
    target = folder / f"{kind.write.__name__.strip('_')}-{size}"
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        kind.write(unfinished, size)
        unfinished.rename(target)
    return target


def measure(kind: Kind, url: str, executor: str) -> Found:
    """Reads the first batch in this process, which should have just started."""
    began = time.perf_counter()
    names = [f"c{number:05}" for number in range(kind.columns)] or None
    rows = Pipeline(url, names, executor=executor, memory_limit=kind.memory_limit)
    rows = rows.shuffle(kind.shuffle_rows, seed=1) if kind.shuffle_rows else rows
    batches = rows.batch(BATCH_ROWS)
    len(batches)
    planned = time.perf_counter()
    next(iter(batches))
    first = time.perf_counter()
    process = psutil.Process()
    sidecars = [_most_mib(child.pid) for child in process.children(recursive=True)]
    return Found(
        plan_s=planned - began,
        first_batch_s=first - planned,
        trainer_mib=_most_mib(process.pid),
        sidecar_mib=max(sidecars, default=0),
    )


def _most_mib(process: int) -> int:
    """Returns the largest resident memory of a process so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Prints a line for each dataset and executor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the datasets are, or will be, written")
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # of a fresh process: kind, URL, executor
    arguments = parser.parse_args()
    if arguments.one is not None:
        kind, url, executor = arguments.one
        print(json.dumps(asdict(measure(KINDS[kind], url, executor))))
        return
    for name in arguments.kinds:
        target = written(KINDS[name], arguments.folder, arguments.share)
        for executor in ("threads", "sidecar"):
            print(f"{name}, {executor}: {_in_fresh_process(name, target, executor)}", flush=True)


def _in_fresh_process(name: str, target: Path, executor: str) -> Found:
    options = ["--folder", str(target), "--one", name, str(target), executor]
    command = [sys.executable, "-m", "benchmarks.large_plans", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Found(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
