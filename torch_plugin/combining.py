"""Combined pipes: raises an error if ranks or loader workers would take different elements of the inputs.

A `ParquetPipe` gives each worker and rank its part. Torch's own pipes give everything to each, unless they build on a
``sharding_filter()``, which deals every n-th element. So a ``zip`` of both pairs elements that do not belong together,
and a ``concat`` repeats those of the other pipe. Correct combinations are left alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter.callable import MapperIterDataPipe
from torch.utils.data.datapipes.iter.combining import ZipperIterDataPipe

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError

from .loader_passes import LoaderAware
from .placement import rank_here, shard_of
from .torch_internals import is_fork

_WHOLE = (None, 1)


def check_combined(dataset: object, workers: int) -> None:
    """Checks every pipe with several inputs in a loader's dataset.

    Raises:
        PipelineError: ranks or workers would pair elements that do not belong together, or repeat some.
    """
    workers, (ranks, _) = max(workers, 1), rank_here()
    for node in _below(dataset):
        inputs = _inputs(node) if isinstance(node, IterDataPipe) else []
        if len(inputs) < 2 or not any(isinstance(part, LoaderAware) for one in inputs for part in _below(one)):
            continue
        if isinstance(node, ZipperIterDataPipe):
            if len({_dealing(one, workers, ranks) for one in inputs}) > 1:
                raise _refused("zip", inputs, workers, ranks, "deal them alike", _zip_advice(ranks))
        elif (workers > 1 or ranks > 1) and any(_splitter_below(one) is None for one in inputs):
            advice = "Give the other pipes sharding_filter()."
            raise _refused("concat", inputs, workers, ranks, "deal each of them", advice)


def _dealing(pipe: Any, workers: int, ranks: int) -> Hashable:
    """Returns how an input is dealt to ranks and workers; equal for inputs whose elements stay together."""
    end = pipe
    while isinstance(end, MapperIterDataPipe) or is_fork(end):  # one element out per element in
        end = end.main_datapipe.main_datapipe if is_fork(end) else end.datapipe
    if isinstance(end, LoaderAware):
        pipeline: Pipeline = getattr(end, "pipeline")  # noqa: B009  # ParquetPipe is not imported here
        is_own = shard_of(pipeline) is not None and not getattr(end, "_sharding", False)
        along = getattr(end, "_mesh_part", None)
        return (None if is_own or (ranks == 1 and along is None) else ("parts", len(pipeline), along)), workers
    if _is_filter(end):
        return (None if ranks == 1 else "every nth"), workers
    if _splitter_below(end) is None or (workers, ranks) == (1, 1):
        return _WHOLE
    return id(end)  # dealt before elements were filtered, batched or shuffled: which ones is unknown


def _splitter_below(pipe: object) -> Any:
    return next((part for part in _below(pipe) if isinstance(part, LoaderAware) or _is_filter(part)), None)


def _is_filter(pipe: object) -> bool:
    return not isinstance(pipe, LoaderAware) and hasattr(type(pipe), "apply_sharding")


def _below(pipe: object) -> Iterator[Any]:
    """Yields a pipe and all pipes below it."""
    yield pipe
    for one in _inputs(pipe):
        yield from _below(one)


def _inputs(pipe: object) -> list[Any]:
    if isinstance(pipe, LoaderAware):
        return []
    values = list(vars(pipe).values()) if hasattr(pipe, "__dict__") else []
    parts = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    return [part for part in parts if isinstance(part, IterDataPipe)]


def _zip_advice(ranks: int) -> str:
    if ranks > 1:
        return "Make the other values a column, or read everything on each rank: shard(1, 0), and no loader workers."
    return "Give the other pipes sharding_filter(), and zip before you filter or batch elements."


def _refused(verb: str, inputs: list[Any], workers: int, ranks: int, rule: str, advice: str) -> PipelineError:
    kinds = ", ".join(type(one).__name__ for one in inputs)
    return PipelineError(
        f"{verb}: expected inputs for {workers} loader workers on {ranks} ranks that {rule}, got {kinds}: "
        f"a ParquetPipe is split, and another pipe is read whole or in another order. {advice}"
    )
