"""Keeps killing and stopping the processes of a sidecar for a long time and watches the effects: `make soak`.

Each round reads a shuffled dataset through decode workers: with `Pipeline`, with `ParquetDataset` if TensorFlow is
installed, and with a torch ``DataLoader`` if torch is. In turn, the rows are good, or some of them fail and
``on_error="skip"`` leaves them out. Meanwhile it kills a worker every 0.01 to 0.35 s and a reader every few seconds
and stops others, which ``stall_timeout`` replaces. The elements must equal those of a quiet pass. Memory, descriptors
and processes include this process and all its children. At the end, every parser is fuzzed for a moment.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.targets import TARGETS
from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField

from .faults import Killer, readers, workers

_ROWS = 2000
_BAD_EVERY = 50
_FUZZ_SHARE = 0.05  # of the seconds
_REPEAT_S = 12  # of the whole time, for an epoch of each of the six rounds
_FEWEST_REPEATS = 3
_IMAGE = UnischemaField("image", np.uint8, (32, 32, 3), CompressedImageCodec("png"))
_OPTIONS: dict[str, Any] = {"executor": "sidecar", "workers": 2, "restarts": 1000, "stall_timeout": 2.0}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, help="epochs per round; more for more seconds if you give no number")
    arguments = parser.parse_args()
    repeats = arguments.repeats or max(_FEWEST_REPEATS, round(arguments.seconds / _REPEAT_S))
    with tempfile.TemporaryDirectory() as folder:
        _soak(folder, arguments.seconds * (1 - _FUZZ_SHARE), arguments.seed, repeats)
    _fuzz(arguments.seconds * _FUZZ_SHARE / (len(TARGETS) + 1), arguments.seed)


def _soak(folder: str, seconds: float, seed: int, repeats: int) -> None:
    loads = []
    for what, bad_every in (("good", 0), ("skip", _BAD_EVERY)):
        rows = Pipeline(_written(f"{folder}/{what}.parquet", seed, bad_every), ["id", _IMAGE], **_OPTIONS)
        chain = rows.with_options(on_error="skip" if bad_every else None).shuffle(500, seed=seed)
        chain = chain.repeat(repeats).batch(16)
        loads.append((what, chain, [batch["id"].tolist() for batch in chain]))
    turns = [(face, *load) for load in loads for face in _faces()]
    until, number, total = time.monotonic() + seconds, 0, np.zeros(4, np.int64)
    print(
        "round face rows elements workers-killed readers-killed workers-stopped readers-stopped s processes "
        "descriptors MB"
    )
    while number < len(turns) or time.monotonic() < until:
        (face, what, chain, expected), begin = turns[number % len(turns)], time.monotonic()
        with ExitStack() as stack:
            hit = [stack.enter_context(killer).hit for killer in _killers(seed + number)]
            found = list(_ids(face, chain))
        if found != expected:
            sys.exit(f"round {number} by {face}, {what} rows: the elements are not those of a quiet pass")
        counts = np.array([len(each) for each in hit])
        total += counts
        own = psutil.Process()
        family = [own, *own.children(recursive=True)]
        held = [_held(process) for process in family]  # after the round, when nothing is being killed
        print(
            number,
            face,
            what,
            len(found),
            *counts,
            f"{time.monotonic() - begin:.1f}",
            len(family),
            sum(descriptors for descriptors, _ in held),
            f"{sum(memory for _, memory in held) / 1e6:.0f}",
            flush=True,
        )
        number += 1
    print(
        f"{number} rounds, {total[0]} workers and {total[1]} readers killed, {total[2]} and {total[3]} stopped, every "
        "element as in a quiet pass."
    )


def _written(path: str, seed: int, bad_every: int) -> str:
    """Writes rows of which every so many fail (0 = none), and returns the path."""
    random = np.random.default_rng(seed)
    images = [
        b"bad"
        if bad_every and number % bad_every == 0
        else bytes(_IMAGE.storage.encode(_IMAGE, random.integers(0, 256, (32, 32, 3), np.uint8)))
        for number in range(_ROWS)
    ]
    table = pa.table({"id": pa.array(range(_ROWS), pa.int64()), "image": pa.array(images, pa.binary())})
    pq.write_table(table, path, row_group_size=100)
    return path


def _killers(seed: int) -> list[Killer]:
    def killer(victims: Any, shortest_s: float, longest_s: float, number: int) -> Killer:
        return Killer(victims, times=sys.maxsize, pause_s=(shortest_s, longest_s), seed=seed, signal_number=number)

    return [
        killer(workers, 0.01, 0.35, signal.SIGKILL),
        killer(readers, 1, 5, signal.SIGKILL),
        killer(workers, 1, 4, signal.SIGSTOP),
        killer(readers, 3, 9, signal.SIGSTOP),
    ]


def _fuzz(seconds: float, seed: int) -> None:
    """Fuzzes every parser for some seconds each."""
    command = [sys.executable, "-m", "fuzz.run", "--seconds", f"{max(1.0, seconds):.0f}", "--seed", str(seed)]
    if subprocess.run(command, check=False).returncode:
        sys.exit("a parser failed, see above")


def _held(process: psutil.Process) -> tuple[int, int]:
    """Returns the descriptors and bytes of a process; zeros if it has ended."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.num_fds(), process.memory_info().rss
    return 0, 0


def _faces() -> list[str]:
    found = {"ParquetDataset": "tensorflow", "DataLoader": "torchdata"}
    return ["Pipeline", *(face for face, package in found.items() if importlib.util.find_spec(package))]


def _ids(face: str, chain: Pipeline) -> Iterator[Any]:
    chain = chain.with_options(workers=2)  # a new pipeline begins with the first epoch
    if face == "Pipeline":
        yield from (batch["id"].tolist() for batch in chain)
    elif face == "ParquetDataset":
        from parquetry.tf_plugin import ParquetDataset

        yield from (batch["id"].tolist() for batch in ParquetDataset.from_pipeline(chain).as_numpy_iterator())
    else:
        from torch.utils.data import DataLoader

        from parquetry.torch_plugin import ParquetIterable

        loader = DataLoader(ParquetIterable.from_pipeline(chain), batch_size=None)
        yield from (batch["id"].tolist() for batch in loader)


if __name__ == "__main__":
    main()
