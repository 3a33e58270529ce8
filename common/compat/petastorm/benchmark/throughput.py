"""`reader_throughput`: measures how many samples per second `make_reader` delivers."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ....base.errors import PipelineError
from ..reader import make_reader
from ..utils import run_in_subprocess


class BenchmarkResult(NamedTuple):
    """The result of a measurement.

    Attributes:
        time_mean: mean time for one sample, in seconds.
        samples_per_second: its inverse.
        memory_info: memory use as reported by psutil, or ``None`` if psutil is not installed.
        cpu: CPU use, in percent of one processor.
    """

    time_mean: float
    samples_per_second: float
    memory_info: Any
    cpu: float


class WorkerPoolType(Enum):
    """The ``reader_pool_type`` to measure."""

    THREAD = "thread"
    PROCESS = "process"
    NONE = "dummy"

    def __str__(self) -> str:
        return self.value


class ReadMethod(Enum):
    """Whether to take samples from the reader itself, or from a TensorFlow dataset over it."""

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
    """Reads ``warmup_cycles_count`` samples, then measures the time of ``measure_cycles_count`` more.

    Args:
        field_regex: regexes for the fields to read, matched against the whole name; ``None`` for all fields.
        loaders_count: number of workers of the reader.
        shuffling_queue_size: for `ReadMethod.TF`, rows in the dataset's shuffle buffer; 0 for no buffer.
        reader_extra_args: further arguments for `make_reader`.
        spawn_new_process: whether to measure in a new process, so that its memory use is that of reading alone.
        profile_threads, min_after_dequeue: unused.

    Raises:
        PipelineError: ``measure_cycles_count`` is less than 1.
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
    return run_in_subprocess(_measured, *arguments)


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
    dataset = importlib.import_module("parquetry.petastorm.tf_utils").make_petastorm_dataset(reader)
    rows = iter(dataset.shuffle(queue) if queue else dataset)
    return lambda: next(rows)


def _memory() -> Any:
    try:
        return importlib.import_module("psutil").Process().memory_full_info()
    except ImportError:
        return None
