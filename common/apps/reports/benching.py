"""`bench` measures how fast a chain is on this machine, which stage limits it, and what to change.

It runs the full chain, then with stages switched off: without work on values, without decoding (Arrow reads the
columns), and reading only bytes. The time that a stage adds to a row is the difference between two runs. Stages overlap
in threads, so the parts show where time goes, but they are not a split by clock.
"""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...base.errors import ParquetryError, PipelineError
from ...base.metrics.loader_stats import DECODE, PARQUET, STORE, WORK, advice, bound_of
from ...base.platform.processes import usable_processors
from ...base.process.dataclass import dataclass
from ...base.threads import ThreadPool
from ...base.urls import url_without_secrets
from ...dataset.dataset import StoredDataset
from ...engine.read.fetch import Fetcher, fetch_threads
from ...parquet.chunk_statistics import belongs
from ...parquet.page_header import chunk_begin
from ...pipeline.display.text import leaves
from ...pipeline.pipeline import Pipeline
from ...pipeline.step_iterator import chain_of
from ...plan.plan import Plan
from ...plan.selection.statistics import column_bytes
from ...schema.ragged import NestedArray, RaggedArray
from ...stages.base import Decision
from .inspecting import Source, pipeline_of

_SAMPLED_GROUPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The result of one run.

    Attributes:
        name: what was run.
        rows: rows (or windows) after the first element.
        seconds: the time for these rows.
        rows_per_s: ``rows / seconds``.
        mib_per_s: MiB per second of output, or of data read.
        processors: the mean number of busy processors.
    """

    name: str
    rows: int
    seconds: float
    rows_per_s: float
    mib_per_s: float
    processors: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """The time that one stage adds to a row. ``share`` is its fraction of the total, 0 to 1."""

    stage: str
    microseconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The result of `bench`.

    Attributes:
        planning_s: the time to make the plan (the selection, for instance).
        first_s: the time from the plan to the first element.
        whole: the run of the full chain.
        runs: the runs with stages switched off.
        parts: the time per row, by stage.
        bound: the stage with the largest part: ``"store"``, ``"parquet"``, ``"decode"`` or ``"work on values"``.
        advice: what to change.
    """

    planning_s: float
    first_s: float
    element_bytes: int
    stored_row_bytes: float
    workers: int
    whole: MeasuredRun
    runs: tuple[MeasuredRun, ...]
    parts: tuple[StageShare, ...]
    bound: str
    advice: tuple[str, ...]


def bench(
    source: Source,
    *,
    seconds: float = 3.0,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Bench:
    """Measures a pipeline, complete and with stages switched off.

    >>> bench(Pipeline("data/train").shuffle(1000, seed=7).batch(64)).bound  # doctest: +SKIP
    'decode'

    Args:
        seconds: the duration of each run.
        workers: threads or processes; ``None`` = the setting of the pipeline.

    Raises:
        PipelineError: the pipeline is mixed or served, or yields no elements; or ``seconds`` is not positive.
        ParquetryError: reading failed.
    """
    if not seconds > 0:
        raise PipelineError(f"bench: expected seconds above 0, got {seconds}.")
    pipeline = pipeline_of(source, storage_options)
    pipeline = pipeline if workers is None else pipeline.with_options(workers=workers)
    begin = time.perf_counter()
    plan = pipeline.plan()
    assert isinstance(plan, Plan)  # `pipeline_of` refuses mixes
    plan.check_not_empty()
    planning_s = time.perf_counter() - begin
    whole, first_s, element_bytes = _run("the chain", pipeline, seconds)
    plain = _without_work(pipeline)
    reader = _EpochReader(plan, pipeline.workers)
    runs = [
        *([] if plain is None else [_run("without work on values", plain, seconds)[0]]),
        reader.run("without decoding", reader.columns, seconds),
        reader.run("bytes alone", reader.bytes, seconds),
    ]
    parts = _parts(whole, runs, has_work=plain is not None)
    bound = bound_of({part.stage: part.microseconds for part in parts})
    used = pipeline.options.parallelism
    return Bench(
        planning_s=planning_s,
        first_s=first_s,
        element_bytes=element_bytes,
        stored_row_bytes=reader.row_bytes,
        workers=used,
        whole=whole,
        runs=tuple(runs),
        parts=parts,
        bound=bound,
        advice=tuple(_advice(bound, pipeline, whole, planning_s)),
    )


def _without_work(pipeline: Pipeline) -> Pipeline | None:
    """Returns the chain without the verbs that work on values, or ``None`` if it has none."""
    if all(stage.decides is not Decision.FIELDS or stage.keeps_values for stage in pipeline.stages):
        return None
    plain = pipeline.with_stages([])
    for stage in pipeline.stages:
        if stage.decides in (Decision.FIELDS, Decision.FORM) and not stage.keeps_values:
            continue
        added = plain.with_stages([*plain.stages, stage])
        if not stage.keeps_values or _has_fields(added):
            plain = added
    return plain


def _has_fields(pipeline: Pipeline) -> bool:
    """Whether there are all fields that the chain names; a verb that works on values may have made some of them."""
    try:
        return bool(pipeline.element.outputs)
    except ParquetryError:
        return False


def _run(name: str, pipeline: Pipeline, seconds: float) -> tuple[MeasuredRun, float, int]:
    """Returns a run, the time to its first element, and the size of that element in bytes."""
    element = pipeline.element
    begin = time.perf_counter()
    elements = _endless(pipeline)
    first = next(elements)
    first_s = time.perf_counter() - begin
    size = _bytes_of(leaves(element, first))
    rows = count = 0
    begin, busy = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        value = next(elements)
        rows += len(next(iter(leaves(element, value).values()))) if element.batched else 1
        count += 1
    took, busy = time.perf_counter() - begin, time.process_time() - busy
    return _measured(name, rows, took, count * size, busy), first_s, size


def _endless(pipeline: Pipeline) -> Iterator[Any]:
    while True:
        has_some = False
        for element in pipeline:
            has_some = True
            yield element
        if not has_some:
            raise PipelineError(
                f"bench: expected a chain with elements, got none from {' -> '.join(map(str, pipeline.stages))}. "
                "Take more rows, or make smaller batches."
            )


def _measured(name: str, rows: int, took: float, size: float, busy: float) -> MeasuredRun:
    return MeasuredRun(
        name=name,
        rows=rows,
        seconds=took,
        rows_per_s=rows / took,
        mib_per_s=size / took / (1 << 20),
        processors=busy / took,
    )


def _bytes_of(columns: Mapping[str, Any]) -> int:
    total = 0
    for value in columns.values():
        if isinstance(value, RaggedArray | NestedArray):
            total += value.values.nbytes
        elif isinstance(value, np.ndarray) and value.dtype != object:
            total += value.nbytes
        else:
            total += sum(
                len(each) for each in np.atleast_1d(np.asarray(value, object)) if isinstance(each, str | bytes)
            )
    return total


class _EpochReader:
    """Reads the data of an epoch without decoding it."""

    def __init__(self, plan: Plan, workers: int | None) -> None:
        self._dataset: StoredDataset = plan.dataset
        self._names = [field.name for field in plan.program.fields if field.name not in self._dataset.partitions]
        self._fetcher = Fetcher(self._dataset, plan.program.fields)
        self._counts = np.diff(plan.selection.items_before)
        self._row_groups = np.flatnonzero(self._counts)
        self._threads = fetch_threads(self._dataset.remote, workers or usable_processors())
        sampled = self._row_groups[:: max(1, len(self._row_groups) // _SAMPLED_GROUPS)]
        size = sum(column_bytes(self._dataset, int(row_group), self._names) for row_group in sampled)
        self.row_bytes = size / max(int(self._counts[sampled].sum()), 1)

    def columns(self, row_group: int) -> None:
        """Reads the columns of a row group with Arrow."""
        self._fetcher.stored(row_group)

    def bytes(self, row_group: int) -> None:
        """Reads the bytes of the columns of a row group."""
        groups = self._dataset.row_groups
        file = int(groups.file[row_group])
        footer = self._dataset.footer(file)
        stored = {self._dataset.stored_name(file, name) or "" for name in self._names}
        group = footer.row_group(int(groups.group[row_group]))
        with self._dataset.open(file) as source:
            for number in range(group.num_columns):
                if belongs(footer.schema.column(number).path, stored):
                    self._read_chunk(source, group.column(number))

    def _read_chunk(self, source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> None:
        source.seek(chunk_begin(chunk))
        source.read(chunk.total_compressed_size)

    def run(self, name: str, read: Callable[[int], None], seconds: float) -> MeasuredRun:
        """Reads the row groups in order, repeatedly, in as many threads as the chain uses."""
        rows = 0
        begin, busy = time.perf_counter(), time.process_time()
        with ThreadPool(self._threads, "parquetry-bench") as pool:
            running: dict[Future[None], int] = {}
            for row_group in itertools.cycle(self._row_groups.tolist()):
                running[pool.submit(read, row_group)] = int(self._counts[row_group])
                if len(running) < self._threads:
                    continue
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    rows += running.pop(future)
                if time.perf_counter() - begin >= seconds:
                    break
            for future, count in running.items():
                future.result()
                rows += count
        took, busy = time.perf_counter() - begin, time.process_time() - busy
        return _measured(name, rows, took, rows * self.row_bytes, busy)


def _parts(whole: MeasuredRun, runs: list[MeasuredRun], *, has_work: bool) -> tuple[StageShare, ...]:
    """Computes the time that each stage adds to a row."""
    times = [1e6 / max(run.rows_per_s, 1e-9) for run in (whole, *runs)]
    names = [*([WORK] if has_work else []), DECODE, PARQUET, STORE]
    added = [max(more - less, 0.0) for more, less in zip(times, [*times[1:], 0.0], strict=True)]
    total = sum(added) or 1.0
    parts = [
        StageShare(stage=name, microseconds=each, share=each / total) for name, each in zip(names, added, strict=True)
    ]
    return tuple(reversed(parts))


def _advice(bound: str, pipeline: Pipeline, whole: MeasuredRun, planning_s: float) -> Iterator[str]:
    processors = usable_processors()
    yield from advice(bound, chain_of(pipeline))
    if whole.processors > 0.85 * processors:
        yield f"All {processors} processors are busy. More processors would help; more workers would not."
    elif (pipeline.workers or processors) <= processors and whole.processors < 0.6 * processors:
        yield f"Only {whole.processors:.1f} of {processors} processors are busy. Try more workers, or larger batches."
    if not pipeline.element.batched:
        yield "Without batch(), rows are handed over one at a time."
    if planning_s > 10:
        place = shlex.quote(url_without_secrets(pipeline.urls[0])) if len(pipeline.urls) == 1 else "URL"
        yield (
            f"Planning took {planning_s:.0f} s. Before the job, run parquetry cache warm {place} with the same chain, "
            f"and parquetry index {place}"
        )
