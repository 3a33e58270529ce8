"""parquetry's `Pipeline`: numpy batches, in threads or from the sidecar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parquetry.common import Pipeline

from ..touch import rows_of
from ..workloads import Case
from .ours_pipelines import passes_of, pipeline_of

SETTINGS = {"threads": 'executor="threads"', "sidecar": 'executor="sidecar"'}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    pipeline = pipeline_of(case, workers=case.workers, executor=case.variant)
    for _ in passes_of(case):
        yield from map(rows_of, iter(pipeline))


def steps(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns the steps to time: starts and planning."""
    if case.workload.key == "i":
        return {"plan": lambda: _plan(pipeline_of(case))}
    pipeline = pipeline_of(case, workers=case.workers, executor=case.variant)
    return start_steps(pipeline, lambda: pipeline, _open)


def start_steps(
    pipeline: Pipeline, make: Callable[[], Any], first: Callable[[Any, dict[str, Any] | None], None]
) -> dict[str, Callable[[], Any]]:
    """Returns the steps to time for starting one dataset class over a pipeline.

    Args:
        make: builds it (a pipeline, a dataset, a pipe).
        first: takes the first element from a new iterator, resumed from a state if there is one.
    """
    faces: list[Any] = []
    states: list[dict[str, Any]] = []

    def cold() -> None:
        faces.append(make())
        first(faces[0], None)

    def remember() -> None:
        states.append({**iter(pipeline).state_dict(), "consumed": int(0.9 * len(pipeline))})

    return {
        "cold": cold,
        "warm": lambda: first(faces[0], None),
        "_state": remember,
        "resume at 90 %": lambda: first(faces[0], states[0]),
    }


def _open(pipeline: Pipeline, state: dict[str, Any] | None) -> None:
    iterator = iter(pipeline)
    if state is not None:
        iterator.load_state_dict(state)
    next(iterator)
    iterator.close()


def _plan(pipeline: Pipeline) -> None:
    """Computes the exact length, and the items of a batch in the middle of the shuffled epoch."""
    middle = len(pipeline) // 2
    items = np.arange(middle * 64, middle * 64 + 64)
    pipeline.plan().reads(0, np.zeros_like(items), items)
