"""parquetry's `ParquetDataset`, iterated in Python or in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from parquetry.tf_plugin import ParquetDataset

from ..workloads import Case
from .ours_numpy import start_steps
from .ours_pipelines import passes_of, pipeline_of
from .tf_loops import eager, graph

SETTINGS = {
    "eager": "for batch in dataset",
    "graph": "inside a tf.function, 8 batches a call",
    "graph-64": "inside a tf.function, 64 batches a call",
}
_LOOPS: dict[str, Callable[[Any], Iterator[int]]] = {
    "eager": eager,
    "graph": graph,
    "graph-64": partial(graph, batches_per_call=64),
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch, or of each graph call."""
    dataset = ParquetDataset.from_pipeline(pipeline_of(case, workers=case.workers))
    for _ in passes_of(case):
        yield from _LOOPS[case.variant](dataset)


def steps(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns the steps to time: starts."""
    pipeline = pipeline_of(case, workers=case.workers)
    return start_steps(pipeline, lambda: ParquetDataset.from_pipeline(pipeline), _first)


def _first(dataset: ParquetDataset, state: dict[str, Any] | None) -> None:
    if state is not None:
        dataset.start_next_at(state)
    next(iter(dataset))
