"""What a ``DataLoader`` does to the rows and batches that it gets from these datasets.

It collates rows; `NestedTensors` are registered for that. Batches stay as they are (`as_is`), or are converted as torch
does without a ``collate_fn``: its `default_convert` makes tensors of arrays, and looks for them in every string of
every batch, which takes longer than making a batch of strings. `convert` gives the same result in less time. Rows that
torch cannot stack are an error of `stack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import default_collate, default_convert

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.tracebacks import shortens

from .loader_workers.runs import Run
from .loader_workers.sent_batches import SentBatch
from .nested import NestedTensors
from .torch_internals import default_collate_fn_map

Batch = TypeVar("Batch")
_LEAVES = {str, bytes, type(None)}


def as_is(batch: Batch) -> Batch:
    """Returns the batch unchanged: ``DataLoader(pipe, batch_size=None, collate_fn=as_is)``.

    Without it the loader looks for arrays to convert, and turns tuples into lists. There are no arrays: a pipe gives
    tensors, strings, and lists of them.
    """
    return batch


def convert(value: object) -> object:
    """Returns what ``default_convert(value)`` returns, without copying lists that hold nothing to convert."""
    kind = type(value)
    if isinstance(value, SentBatch | Run):  # both pass it on to their batches
        return value.collated(convert)
    if kind is torch.Tensor or kind in _LEAVES:
        return value
    if type(value) is dict:
        return {key: convert(part) for key, part in value.items()}
    if type(value) is list:
        kinds = set(map(type, value))
        if kinds <= _LEAVES:
            return value
        if kinds == {list}:
            return list(map(convert, value))
    return default_convert(value)


@shortens
def stack(rows: list[Any]) -> Any:
    """Returns what ``default_collate(rows)`` returns, with an error that names the field whose rows it cannot stack.

    Raises:
        PipelineError: rows of a field differ in shape.
    """
    try:
        return default_collate(rows)
    except RuntimeError as error:
        ragged = _ragged(rows)
        if ragged is None:
            raise
        key, shapes = ragged
        name = repr(key) if isinstance(key, str) else "<its name>"  # a place in a tuple
        raise PipelineError(
            f"field {key!r}: expected rows of one shape, which DataLoader(batch_size={len(rows)}) can stack, got "
            f"{' and '.join(map(str, shapes))}. Write dataset.pad({name}).batch({len(rows)}) and "
            "DataLoader(dataset, batch_size=None)."
        ) from error


def _ragged(rows: Sequence[Any]) -> tuple[object, list[tuple[int, ...]]] | None:
    """Returns the first field whose rows differ in shape, and two of the shapes."""
    first = rows[0]
    if not isinstance(first, Mapping | tuple):
        return None
    for key in first if isinstance(first, Mapping) else range(len(first)):
        values = [row[key] for row in rows]
        shapes = list(dict.fromkeys(shape for each in values if (shape := _shape_of(each)) is not None))
        if len(shapes) > 1:
            return key, shapes[:2]
        if (inner := _ragged(values)) is not None:
            return inner
    return None


def _shape_of(value: object) -> tuple[int, ...] | None:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return (len(value),) if isinstance(value, list) else None  # of strings


def _collated(rows: Sequence[NestedTensors], *, collate_fn_map: object = None) -> NestedTensors:
    """Collates rows into a batch, with one more level."""
    counts = torch.tensor([0, *map(len, rows)], dtype=torch.int64)
    offsets = [counts.cumsum(0), *(_end_to_end(level) for level in zip(*(row.offsets for row in rows), strict=True))]
    values = [row.values for row in rows]
    if all(isinstance(each, torch.Tensor) for each in values):
        return NestedTensors(torch.cat(values), offsets)  # type: ignore[arg-type]  # tensors
    return NestedTensors([item for each in values for item in each], offsets)


def _end_to_end(offsets: Sequence[torch.Tensor]) -> torch.Tensor:
    lengths = torch.cat([each.diff() for each in offsets])
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


default_collate_fn_map[NestedTensors] = _collated
