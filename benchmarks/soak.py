"""Keeps killing the processes of a sidecar for a long time and watches the effects: `make soak`.

Each round reads a shuffled dataset through decode workers, with `Pipeline` and, if TensorFlow is installed, with
`ParquetDataset`. Meanwhile it kills a worker every 0.01 to 0.35 s, and a reader every few seconds. The elements must
equal those of an undisturbed pass. Memory, descriptors and processes include this process and all its children.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import psutil

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset

from .faults import Killer, readers, workers

_ROWS = 2000
_SCHEMA = Unischema(
    "soak",
    [UnischemaField("id", np.int64), UnischemaField("image", np.uint8, (32, 32, 3), CompressedImageCodec("png"))],
)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _soak(folder + "/data", arguments.seconds, arguments.seed)


def _soak(url: str, seconds: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = ({"id": number, "image": random.integers(0, 256, (32, 32, 3), np.uint8)} for number in range(_ROWS))
    write_dataset(url, _SCHEMA, rows, row_group_rows=100)
    chain = Pipeline(url, executor="sidecar", workers=2, restarts=10).shuffle(500, seed=seed).repeat(300).batch(16)
    expected = [batch["id"].tolist() for batch in chain]
    faces = ["Pipeline", *(["ParquetDataset"] if importlib.util.find_spec("tensorflow") else [])]
    until, number, killed = time.monotonic() + seconds, 0, [0, 0]
    print("round face elements workers-killed readers-killed s processes descriptors MB")
    while time.monotonic() < until:
        face, begin = faces[number % len(faces)], time.monotonic()
        with (
            Killer(workers, times=sys.maxsize, pause_s=(0.01, 0.35), seed=seed + number) as of_workers,
            Killer(readers, times=sys.maxsize, pause_s=(1, 5), seed=seed + number) as of_readers,
        ):
            found = list(_ids(face, chain))
        if found != expected:
            sys.exit(f"round {number} by {face}: the elements are not those of a quiet pass")
        killed[0] += len(of_workers.hit)
        killed[1] += len(of_readers.hit)
        own = psutil.Process()
        family = [own, *own.children(recursive=True)]
        held = [_held(process) for process in family]  # after the round, when nothing is being killed
        print(
            number,
            face,
            len(found),
            len(of_workers.hit),
            len(of_readers.hit),
            f"{time.monotonic() - begin:.1f}",
            len(family),
            sum(descriptors for descriptors, _ in held),
            f"{sum(memory for _, memory in held) / 1e6:.0f}",
            flush=True,
        )
        number += 1
    print(f"{number} rounds, {killed[0]} workers and {killed[1]} readers killed, every element as in a quiet pass.")


def _held(process: psutil.Process) -> tuple[int, int]:
    """Returns the descriptors and bytes of a process; zeros if it has ended."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.num_fds(), process.memory_info().rss
    return 0, 0


def _ids(face: str, chain: Pipeline) -> Iterator[Any]:
    if face == "Pipeline":
        yield from (batch["id"].tolist() for batch in chain.with_options(workers=2))
        return
    from parquetry.tf_plugin import ParquetDataset

    yield from (batch["id"].tolist() for batch in ParquetDataset.from_pipeline(chain).as_numpy_iterator())


if __name__ == "__main__":
    main()
