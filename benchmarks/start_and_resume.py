"""Measures how long the first batch takes: cold, warm, and after resuming at several points of an epoch.

Run: ``python benchmarks/start_and_resume.py``. Prints milliseconds until the first batch (medians of interleaved
rounds) for both executors, and the ratio of a resumed start to a fresh one. A cold start counts from after the imports:
planning, starting the sidecar, and the first batch of a new process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset

ROWS = 8_000
ROUNDS = 5
POSITIONS = (0.0, 0.1, 0.5, 0.9)
SCHEMA = Unischema(
    "frames",
    [
        UnischemaField("id", np.int64),
        UnischemaField("image", np.uint8, (96, 128, 3), CompressedImageCodec("jpeg", 85)),
    ],
)
_COLD = """
import json, sys, time
from parquetry.common.pipeline.pipeline import Pipeline
import parquetry.common.engine.run.threads, parquetry.common.transport.sidecar.sidecar_source
begin = time.perf_counter()
next(iter(Pipeline(sys.argv[1], executor=sys.argv[2]).shuffle(1_000, seed=1).batch(64)))
print(json.dumps(time.perf_counter() - begin), flush=True)
import os
os._exit(0)
"""


def write(url: str) -> None:
    """Writes the frames: smooth images, like those of a camera."""
    ramp = np.add.outer(np.arange(96), np.arange(128))[:, :, None] + np.array([0, 40, 80])
    rows = ({"id": number, "image": ((ramp + number) % 256).astype(np.uint8)} for number in range(ROWS))
    write_dataset(url, SCHEMA, rows, row_group_rows=250)


def cold_s(url: str, executor: str) -> float:
    """Returns the seconds to the first batch in a new process."""
    command = [sys.executable, "-c", _COLD, url, executor]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def first_batch_s(pipeline: Pipeline, state: dict[str, Any] | None) -> float:
    """Returns the seconds to the first batch of a new iterator, resumed from a state if given."""
    begin = time.perf_counter()
    iterator = iter(pipeline)
    if state is not None:
        iterator.load_state_dict(state)
    next(iterator)
    took = time.perf_counter() - begin
    iterator.close()
    return took


def states(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Returns states at the chosen points of an epoch without iterating there."""
    begin = iter(pipeline).state_dict()
    steps = len(pipeline)
    return [{**begin, "consumed": int(position * steps)} for position in POSITIONS]


def main() -> None:
    """Measures and prints the results."""
    with tempfile.TemporaryDirectory() as directory:
        url = str(Path(directory) / "frames")
        write(url)
        for executor in ("threads", "sidecar"):
            pipeline = Pipeline(url, executor=executor).shuffle(1_000, seed=1).batch(64)
            cold = [cold_s(url, executor) for _ in range(ROUNDS)]
            first_batch_s(pipeline, None)
            warm: list[float] = []
            resumed: list[list[float]] = [[] for _ in POSITIONS]
            for _ in range(ROUNDS):
                warm.append(first_batch_s(pipeline, None))
                for times, state in zip(resumed, states(pipeline), strict=True):
                    times.append(first_batch_s(pipeline, state))
            print(f"{executor}: cold {_ms(cold)}, warm {_ms(warm)}")
            for position, times in zip(POSITIONS, resumed, strict=True):
                ratio = statistics.median(times) / statistics.median(warm)
                print(f"  resumed at {position:.0%} of the epoch: {_ms(times)}, {ratio:.2f} of a fresh start")


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.0f} ms ({min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f})"


if __name__ == "__main__":
    main()
