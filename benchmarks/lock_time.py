"""Measures how long the interpreter's lock is held for each row, and the rows/s that it allows at most.

Run: ``python -m benchmarks.lock_time``, as root and on a quiet machine. Threads of one process share its lock, so rows
for which some thread holds it for 2 us cannot pass 500,000/s, whatever the number of processors. Each reader decodes
with one thread. TensorFlow's reader has two processes, each with a lock of its own: the slower one counts.

Time per row is the share of samples in which the lock was held, times the seconds, divided by the rows. The lock itself
is read a thousand times a second (`benchmarks.lock_word`). As a check, ``py-spy record --gil`` asks 500 times a second
which thread is inside the interpreter. Neither stops the process: py-spy does without ``--nonblocking``, and then reads
44 to 54 % instead of 36 %. It fails to read some stacks because they change; those threads hold the lock and count.

Both run with real-time priority. At a normal one, samples wait for a processor, and one often becomes free just because
a thread gives up the lock and waits: a process that held its lock 18 % of the time, 20 us at a time, then read as 4 %.
What remains: a holder that waits for a processor still holds the lock, so other work on the machine makes times longer;
and the moment between one holder and the next counts as free.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import data
from .catalog import CONTENDERS, ROOT
from .children import Child
from .lock_word import LockError, shares
from .profiles import PROFILES
from .report import aligned
from .workloads import WORKLOADS, Case

READERS = ("threads", "iterable", "tf-eager")
KEYS = ("a", "d", "e")
WARM_S = 0.5
RATE = 500
_STARTING_S = 1.0  # py-spy reads symbols first
_QUIET = 0.005  # processes that hold their lock less than this share are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one process of one reader did: medians over the rounds.

    Attributes:
        process: ``"own"``, or ``"sidecar"``.
        rows_s: rows per second of the reader.
        share: share of the time in which the lock was held.
        row_us: microseconds per row in which it was held.
        spied: the share by py-spy.
    """

    key: str
    reader: str
    process: str
    rows_s: float
    share: float
    row_us: float
    spied: float


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints the table."""
    options = _parser().parse_args(arguments)
    spy = _py_spy()
    held: list[Held] = []
    try:
        with tempfile.TemporaryDirectory(prefix="parquetry-lock-") as scratch:
            for key in options.workloads.split(","):
                for reader in options.readers.split(","):
                    held += measure(options, key, reader, spy, Path(scratch))
    except LockError as error:
        raise SystemExit(f"lock_time: {error}") from error
    print(table(held))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(KEYS))
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--profile", choices=sorted(PROFILES), default="quick")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="seconds per measurement")
    parser.add_argument("--data", type=Path, default=ROOT / "bench-results" / "data")
    return parser


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise SystemExit("lock_time: py-spy is not installed. It is in the extra dev; or run: pip install py-spy")
    return found


def measure(options: argparse.Namespace, key: str, reader: str, spy: str, scratch: Path) -> list[Held]:
    """Returns one entry for each process that holds its lock at all."""
    workload = WORKLOADS[key]
    profile = PROFILES[options.profile]
    folder = options.data.resolve() / profile.name / workload.data
    rows = profile.rows[workload.data]
    data.prepare(folder, workload.data, rows)
    contender = CONTENDERS[reader]
    case = Case(workload=workload, variant=contender.variant, data=folder, scratch=scratch, rows=rows, workers=1)
    found: dict[int, list[tuple[float, float, float, float]]] = {}
    cores = len(os.sched_getaffinity(0))
    with Child(contender, case, cores=cores, log=scratch / "log") as child, _real_time() as sampler:
        for _ in range(options.rounds):
            sampled = sampler.submit(shares, _processes(child), seconds=WARM_S + options.seconds)
            span = child.measure(WARM_S, options.seconds)
            row_s = span["elapsed_s"] / span["rows"]
            for pid, share in sampled.result().items():
                if share >= _QUIET:
                    spied = _spied(spy, child, pid, options.seconds, sampler, scratch)
                    found.setdefault(pid, []).append((1 / row_s, share, share * row_s * 1e6, spied))
        own = child.pid
    return [
        Held(key=key, reader=contender.title, process="own" if pid == own else "sidecar", **_medians(rounds))
        for pid, rounds in found.items()
    ]


def _medians(rounds: Sequence[tuple[float, ...]]) -> dict[str, float]:
    names = ("rows_s", "share", "row_us", "spied")
    return {name: statistics.median(values) for name, values in zip(names, zip(*rounds, strict=True), strict=True)}


def _processes(child: Child) -> list[int]:
    """Returns the ids of the reader's process and of those that it has started."""
    return [child.pid, *(process.pid for process in psutil.Process(child.pid).children(recursive=True))]


@contextmanager
def _real_time() -> Iterator[ThreadPoolExecutor]:
    """Gives a thread that samples as soon as it is time to, and not when a processor becomes free."""

    def hurry() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # of this thread, and of what it starts
        except PermissionError:
            print("lock_time: without real-time priority (root), times come out too short.", file=sys.stderr)

    with ThreadPoolExecutor(1, initializer=hurry) as sampler:
        yield sampler


def _spied(spy: str, child: Child, pid: int, seconds: int, sampler: ThreadPoolExecutor, scratch: Path) -> float:
    """Returns the share of the time in which a thread of a process held the lock, as py-spy sees it."""
    target = scratch / "stacks"
    options = ["--gil", "--idle", "--nonblocking", "--format", "raw", "--rate", str(RATE), "--duration", str(seconds)]
    command = [spy, "record", *options, "--pid", str(pid), "--output", str(target)]
    running = sampler.submit(subprocess.run, command, capture_output=True, text=True, check=False)
    child.measure(0.0, _STARTING_S + seconds)
    ended = running.result()
    if ended.returncode:
        raise LockError(f"py-spy failed for process {pid}: {ended.stderr.strip()[-300:]}")
    counted = re.search(r"Samples: (\d+) Errors: (\d+)", ended.stdout + ended.stderr)  # samples with a holder
    if counted is None:
        raise LockError(f"py-spy's answer is expected to end with its counts, got: {ended.stderr.strip()[-300:]}")
    return sum(map(int, counted.groups())) / (RATE * seconds)


def table(held: Sequence[Held]) -> str:
    """Returns one line for each process."""
    heads = ["", "process", "rows/s", "lock held", "by py-spy", "us/row", "at most, rows/s"]
    lines = [
        [
            f"`{one.key}` {one.reader}",
            one.process,
            f"{one.rows_s:,.0f}",
            f"{one.share:.0%}",
            f"{one.spied:.0%}",
            f"{one.row_us:.3g}",
            f"{1e6 / one.row_us:,.0f}",
        ]
        for one in held
    ]
    return aligned(heads, lines)


if __name__ == "__main__":
    main()
