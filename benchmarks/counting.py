"""Measures what counting for `stats()` costs: calls per epoch times the cost of a call, as a share of the epoch.

``python benchmarks/counting.py`` prints it for tables of 8 and 41 columns in large and tiny batches, and for JPEG
files. Timing whole epochs with and without counting would be off by several percent on a busy machine. The shortest of
many timings of a single call, and of an epoch, is stable.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquetry import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.metrics.counters import Count, Counters, Reading, add, add_time, counter_value
from parquetry.common.base.metrics.tally import Gauge, Tally
from parquetry.common.engine.columns.batch import Dense, column_bytes
from parquetry.common.engine.run import threads


def _used(function: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Returns every module of the engine that calls a function by its name."""
    name = function.__name__
    modules = [module for each, module in sys.modules.items() if each.startswith("parquetry.common.engine.")]
    return [(module, name) for module in modules if getattr(module, name, None) is function]


PLACES: dict[str, list[tuple[Any, str]]] = {
    "Tally.add": [(Tally, "add")],
    "Tally.add_ready": [(Tally, "add_ready")],
    "Tally.add_like": [(Tally, "add_like")],
    "Tally.hand_over": [(Tally, "hand_over")],
    "Tally.tell": [(Tally, "tell")],
    "Counters.bind": [(Counters, "bind")],
    "Gauge.set": [(Gauge, "set")],
    "Reading": [(Reading, "__enter__")],
    "add": _used(add),
    "counter_value": _used(counter_value),
    "add_time": _used(add_time),
    "column_bytes": [(threads, "column_bytes")],
}
"""The counting functions, and the names they are called by."""


@contextmanager
def noted(calls: Counter[str]) -> Iterator[None]:
    """Records how often each counting function is called in this process."""

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return called

    with ExitStack() as patches:
        for name, places in PLACES.items():
            for owner, attribute in places:
                patches.enter_context(mock.patch.object(owner, attribute, noting(name, getattr(owner, attribute))))
        yield


def shortest(function: Callable[[], object], times: int, each: int = 1) -> float:
    """Returns the CPU seconds of one call, summed over all threads."""
    found = []
    for _ in range(times):
        began = time.process_time()
        for _ in range(each):
            function()
        found.append((time.process_time() - began) / each)
    return min(found)


def costs() -> dict[str, float]:
    """Returns the CPU seconds of each call, including the clock that its caller reads."""
    counters, now = Counters(), time.perf_counter
    counters.bind()
    tally, gauge, held, column = Tally(counters, waits=True), Gauge(counters), iter(range(1 << 40)), Dense(np.zeros(8))

    def read() -> None:
        with Reading():
            pass

    calls: dict[str, Callable[[], object]] = {
        "Tally.add": lambda: tally.add(1, 1, now()),
        "Tally.add_ready": lambda: tally.add_ready(1, 1, now(), 7),
        "Tally.add_like": lambda: tally.add_like(1, 1),
        "Tally.hand_over": lambda: tally.hand_over(now()),
        "Tally.tell": lambda: (tally.add(1, 1, 0.0), tally.tell()),
        "Counters.bind": counters.bind,
        "Gauge.set": lambda: gauge.set(next(held)),
        "Reading": read,
        "add": lambda: add(Count.ROWS, 1),
        "counter_value": lambda: counter_value(Count.TRANSFORM_S),
        "add_time": lambda: add_time(Count.DECODE_S, now()),
        "column_bytes": lambda: column_bytes(column),
    }
    return {name: shortest(call, 40, each=2000) for name, call in calls.items()}


def share(pipeline: Pipeline, cost: dict[str, float]) -> float:
    """Returns the share of an epoch spent on counting."""

    def epoch() -> None:
        for _ in pipeline:
            pass

    calls: Counter[str] = Counter()
    with noted(calls):
        epoch()
    return sum(cost[name] * times for name, times in calls.items()) / shortest(epoch, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows, cost = parser.parse_args().rows, costs()
    with tempfile.TemporaryDirectory() as folder:
        for columns in (8, 41):
            url = f"{folder}/{columns}.parquet"
            table = {f"x{number}": np.random.default_rng(number).random(rows, np.float32) for number in range(columns)}
            pq.write_table(pa.table(table), url, row_group_size=rows // 10)
            for batch in (4096, 256, 32):
                pipeline = Pipeline(url, executor="threads").shuffle(rows // 10, seed=1).batch(batch)
                print(f"{columns:2} columns, batches of {batch:4}: {share(pipeline, cost):.2%}", flush=True)
        field = UnischemaField("image", np.uint8, (224, 224, 3), CompressedImageCodec("jpeg"))
        pixels = np.random.default_rng(0).integers(0, 255, (28, 28, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        write_dataset(f"{folder}/images", Unischema("images", [field]), [{"image": pixels}] * (rows // 250))
        pipeline = Pipeline(f"{folder}/images", executor="threads").shuffle(100, seed=1).batch(16)
        print(f"JPEG, batches of   16: {share(pipeline, cost):.2%}")


if __name__ == "__main__":
    main()
