"""parquetry's `ParquetIterable`, alone and in a `DataLoader`, and `ParquetNode`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from torchdata.nodes import Loader

from parquetry.common import Pipeline
from parquetry.torch_plugin import ParquetIterable, ParquetNode, as_is

from ..touch import rows_of
from ..workloads import Case
from .ours_pipelines import passes_of, pipeline_of

SETTINGS = {
    "iterable": "DataLoader(iterable, batch_size=None, collate_fn=as_is)",
    "loader": "the same with num_workers: one for each processor",
    "node": "iterated as torchdata.nodes.Loader(node)",
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    workers = None if case.variant == "loader" else case.workers
    face = _face(case, pipeline_of(case, workers=workers))
    for _ in passes_of(case):
        yield from map(rows_of, _iterator(case, face))


def steps(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns the steps to time: starts."""
    from .ours_numpy import start_steps

    def first(face: ParquetIterable | ParquetNode, state: dict[str, Any] | None) -> None:
        if state is not None:
            face.load_state_dict(state)
        next(_iterator(case, face))

    pipeline = pipeline_of(case)
    return start_steps(pipeline, lambda: _face(case, pipeline), first)


def _face(case: Case, pipeline: Pipeline) -> ParquetIterable | ParquetNode:
    return (ParquetNode if case.variant == "node" else ParquetIterable).from_pipeline(pipeline)


def _iterator(case: Case, face: ParquetIterable | ParquetNode) -> Iterator[Any]:
    if case.variant == "node":
        return iter(Loader(face))
    workers = case.workers if case.variant == "loader" else 0
    return iter(DataLoader(face, batch_size=None, num_workers=workers, collate_fn=as_is))
