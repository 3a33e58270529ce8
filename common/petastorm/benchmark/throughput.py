"""`reader_throughput`: how many samples a second `make_reader` gives."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import Enum
from typing import Any, NamedTuple

from ...errors import PipelineError
from ..reader import make_reader


class BenchmarkResult(NamedTuple):
    """What was measured.

    Attributes:
        time_mean: seconds for each sample.
        samples_per_second: the inverse.
        memory_info: of psutil, or ``None`` where it is not installed.
        cpu: percent of one processor.
    """

    time_mean: float
    samples_per_second: float
    memory_info: Any
    cpu: float


class WorkerPoolType(Enum):
    """The ``reader_pool_type`` that is measured."""

    THREAD = "thread"
    PROCESS = "process"
    NONE = "dummy"

    def __str__(self) -> str:
        return self.value


class ReadMethod(Enum):
    """Whether samples are taken from the reader, or from a TensorFlow dataset over it."""

    TF = "tf"
    PYTHON = "python"

    def __str__(self) -> str:
        return self.value


def reader_throughput(
    dataset_url: str,
    field_regex: Sequence[str] | None = None,
    warmup_cycles_count: int = 300,
    measure_cycles_count: int = 1000,
    pool_type: WorkerPoolType = WorkerPoolType.THREAD,
    loaders_count: int = 3,
    profile_threads: bool = False,
    read_method: ReadMethod = ReadMethod.PYTHON,
    shuffling_queue_size: int = 500,
    min_after_dequeue: int = 400,
    reader_extra_args: dict[str, Any] | None = None,
    spawn_new_process: bool = True,
) -> BenchmarkResult:
    """Reads ``warmup_cycles_count`` samples, then measures ``measure_cycles_count``.

    Args:
        field_regex: fields to read, by regexes that match in full; ``None`` = all.
        loaders_count: workers of the reader.
        shuffling_queue_size: of `ReadMethod.TF`: rows in the dataset's shuffle buffer; 0 = none.
        reader_extra_args: further arguments for `make_reader`.
        spawn_new_process: measures in a fresh process, whose memory is that of reading alone.
        profile_threads, min_after_dequeue: not used.

    Raises:
        PipelineError: nothing to measure.
    """
    if measure_cycles_count < 1:
        raise PipelineError(f"reader_throughput: expected measure_cycles_count >= 1, got {measure_cycles_count}.")
    options = {"schema_fields": list(field_regex) if field_regex else None, **(reader_extra_args or {})}
    arguments = (
        dataset_url,
        {"reader_pool_type": str(pool_type), "workers_count": loaders_count, "num_epochs": None, **options},
        shuffling_queue_size if read_method is ReadMethod.TF else None,
        warmup_cycles_count,
        measure_cycles_count,
    )
    if not spawn_new_process:
        return _measured(*arguments)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(_measured, *arguments).result()


def _measured(url: str, options: dict[str, Any], queue: int | None, warmup: int, cycles: int) -> BenchmarkResult:
    with make_reader(url, **options) as reader:
        take = reader.next if queue is None else _from_tensorflow(reader, queue)
        for _ in range(warmup):
            take()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(cycles):
            take()
        wall = time.perf_counter() - began
        cpu = 100 * (time.process_time() - used) / wall
    return BenchmarkResult(wall / cycles, cycles / wall, _memory(), cpu)


def _from_tensorflow(reader: object, queue: int) -> Callable[[], Any]:
    dataset = importlib.import_module("parquetry.tf_plugin.petastorm").make_petastorm_dataset(reader)
    rows = iter(dataset.shuffle(queue) if queue else dataset)
    return lambda: next(rows)


def _memory() -> Any:
    try:
        return importlib.import_module("psutil").Process().memory_full_info()
    except ImportError:
        return None
