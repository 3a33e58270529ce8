"""Columns as torch elements: the values a PyTorch user gets for a batch or a row.

It takes an `Element` and the columns of one step, and returns dicts by field name. Numbers are tensors over the
engine's own memory, which they keep alive; nothing is copied, and batches are made without a Python object per row.

| field | in a batch | in a row |
|---|---|---|
| numbers of one shape | tensor ``[B, *shape]`` | tensor ``[*shape]``, 0-d for a scalar |
| variable, padded by ``pad()`` | tensor ``[B, *shape]``, padded to the largest row | tensor, padded |
| first axis variable, the others fixed | jagged nested tensor of ``B`` rows | tensor of the row's own shape |
| any other variable axes | list of ``B`` tensors | tensor of the row's own shape |
| nested lists, by ``nested()`` | `NestedTensors` of ``B`` rows | `NestedTensors` with one level less, or a tensor |
| text, bytes | list of ``B`` ``str`` / ``bytes`` (nested for more axes) | ``str`` / ``bytes`` (or lists of them) |

A stacked window has its axis ``T`` after ``B``; ragged values in windows are lists of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from parquetry.common.base.native.dlpack import TensorRun, is_exchanged
from parquetry.common.base.native.kernels import exchange_of
from parquetry.common.engine.columns.batch import (
    Column,
    Compound,
    Dense,
    Ragged,
    Strings,
    by_output,
    offsets_of,
    split_array,
    split_column,
)
from parquetry.common.schema.element import Element, OutputField
from parquetry.common.schema.ragged import ends_of

from .nested import NestedTensors
from .torch_internals import jagged, jagged_parts, seen_by_modes

ToTensor = Callable[[np.ndarray], torch.Tensor]
_FEW_TENSORS = 64  # describing so few for the core takes longer than it saves
_LIVE_TENSORS = 512  # with more new tensors at a time, the garbage collector scans them again and again


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a tensor over the array's memory; it keeps the array alive."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()  # torch has no read-only tensors
    return torch.from_numpy(array)


def cu_seqlens(segment_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Returns the segments of joined items in the form of flash-attention's ``varlen`` functions, on the same device.

        >>> offsets, longest = cu_seqlens(batch["segment_ids"])
        >>> flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest, causal=True)

    Args:
        segment_ids: integers ``[B, length]`` or ``[length]``, as given by ``concat`` and ``pack_rows``.

    Returns:
        int32 ``[segments + 1]``: the start of each segment in the flat batch, then the number of tokens; and the length
        of the longest segment. An item's padding is a separate segment, so every token is in a segment.

    Raises:
        ValueError: another shape, or not integers.
    """
    if segment_ids.ndim not in (1, 2) or segment_ids.is_floating_point() or segment_ids.is_complex():
        shown = f"{segment_ids.dtype} {tuple(segment_ids.shape)}"
        raise ValueError(f"cu_seqlens: expected integers [B, length] or [length], got {shown}.")
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    torch.ne(segment_ids[..., 1:], segment_ids[..., :-1], out=begins[..., 1:])
    offsets = torch.nonzero(begins.reshape(-1)).reshape(-1)
    offsets = torch.cat([offsets, offsets.new_tensor([segment_ids.numel()])]).to(torch.int32)
    return offsets, int(offsets.diff().max()) if segment_ids.numel() else 0


def batch_to_torch(element: Element, columns: Sequence[Column], tensor: ToTensor = as_tensor) -> Any:
    """Returns a batch of tensors, nested tensors and lists; ``tensor`` converts an array to a tensor."""
    return element.nest(batch_value(output, column, tensor) for output, column in by_output(element, columns))


class JaggedPart(NamedTuple):
    """One batch of a field of lists: what `jagged` takes, as arrays."""

    values: np.ndarray
    offsets: np.ndarray
    shortest: int
    longest: int


Part: TypeAlias = np.ndarray | JaggedPart | list[Any] | Column
"""One field of a batch: numbers, lists of numbers, strings, or anything else."""


def split_for_torch(element: Element, columns: Sequence[Column], count: int) -> Iterable[tuple[Any, ...] | list[Part]]:
    """Splits the columns into ``count`` batches of consecutive rows.

    A batch is a tuple of arrays if tensors can view all of them, because the cost of many small tensors is mostly per
    tensor; otherwise it is a list of parts, one for each output.
    """
    arrays = [column.values for column in columns if isinstance(column, Dense)]
    if len(arrays) == len(columns) and all(array.flags.writeable and array.flags.c_contiguous for array in arrays):
        return zip(*(split_array(array, count) for array in arrays), strict=True)
    return map(list, zip(*(_parts(output, each, count) for output, each in by_output(element, columns)), strict=True))


class CoreBatch(NamedTuple):
    """A batch whose tensors the compiled core makes, all in one call, when they are asked for.

    They are what `torch.from_numpy` makes of the same arrays, one at a time.
    """

    run: TensorRun
    number: int

    def tensors(self) -> list[torch.Tensor]:
        """Returns one tensor for each column. They keep the memory of the arrays, which is not copied."""
        return seen_by_modes(self.run.tensors(self.number))


def split_for_core(
    element: Element, columns: Sequence[Column], count: int
) -> Iterable[CoreBatch | tuple[Any, ...] | list[Part]]:
    """Splits columns as `split_for_torch` does, but into `CoreBatch`es if they are many small columns of numbers."""
    exchange = torch_exchange()
    arrays = [column.values for column in columns if isinstance(column, Dense) and is_exchanged(column.values)]
    if exchange is None or len(arrays) < len(columns) or len(arrays) * (count - 1) < _FEW_TENSORS:
        return split_for_torch(element, columns, count)
    run = TensorRun(exchange, arrays, count)
    return (CoreBatch(run, number) for number in range(count))


@lru_cache(maxsize=1)
def torch_exchange() -> int | None:
    """Returns torch's interface for the core; ``None`` if this torch has none, or without the compiled core."""
    return exchange_of(torch.Tensor)


def parts_to_torch(element: Element, parts: Sequence[Part], tensor: ToTensor = as_tensor) -> Any:
    """Converts one batch of `split_for_torch`, a list of parts, to tensors, nested tensors and lists."""
    return element.nest(_part_value(*each, tensor) for each in zip(element.outputs, parts, strict=True))


def arrays_to_torch(element: Element, arrays: Sequence[np.ndarray], tensor: ToTensor = torch.from_numpy) -> Any:
    """Converts one batch of `split_for_torch` to tensors.

    Created as late as possible: fewer live objects mean fewer garbage collections.
    """
    return element.nest(map(tensor, arrays))


def rows_to_torch(element: Element, columns: Sequence[Column]) -> Iterator[Any]:
    """Yields the rows of a chunk, made on demand; tensors are views of the chunk."""
    group = max(1, _LIVE_TENSORS // len(columns))
    pairs = by_output(element, columns)
    return element.each([_row_values(output, column, group) for output, column in pairs])


def to_list(values: torch.Tensor | Iterable[Any]) -> list[Any]:
    """Returns one value per row for any field of a batch: ``B`` tensors (views), strings, nested lists, or lists."""
    return list(values.unbind(0)) if isinstance(values, torch.Tensor) else list(values)


def reduce_jagged(tensor: object) -> Any:
    """Pickles a jagged tensor for another process: with its lengths, and as little else as possible.

    The thread of a loader's queue calls it, which loses errors, and the batch with them.
    """
    parts = jagged_parts(tensor)
    return tensor.__reduce_ex__(2) if parts is None else (jagged, parts)


def is_jagged(output: OutputField) -> bool:
    """Whether a batch of the field is one jagged nested tensor: only the first axis varies, and there is no window."""
    if output.kind != "dense" or output.window is not None or output.padded:
        return False
    return output.shape[:1] == (None,) and None not in output.shape[1:]


def _parts(output: OutputField, column: Column, count: int) -> Iterable[Part]:
    if isinstance(column, Dense):
        return split_array(column.values, count)
    if isinstance(column, Strings):
        texts = column.to_list(text=output.kind == "text")
        rows = len(texts) // count
        return (texts[first : first + rows] for first in range(0, len(texts), rows))
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray) and is_jagged(output):
        return _jagged_parts(output, column.shapes[:, 0].reshape(count, -1), column.values)
    return split_column(column, count)


def list_offsets(lengths: np.ndarray) -> np.ndarray:
    """Returns the offsets of the lists of each batch, int64 ``[batches, rows + 1]``, given ``[batches, rows]``."""
    offsets = np.zeros((len(lengths), lengths.shape[1] + 1), np.int64)
    np.cumsum(lengths, axis=1, out=offsets[:, 1:])
    return offsets


def _jagged_parts(output: OutputField, lengths: np.ndarray, values: np.ndarray) -> Iterator[JaggedPart]:
    """Splits lists, given the lengths ``[batches, rows]``."""
    offsets = list_offsets(lengths)
    row_shape = [int(axis) for axis in output.shape[1:] if axis is not None]
    ends = np.cumsum(offsets[:, -1]).tolist()
    rows = values.reshape(ends[-1], *row_shape)
    limits = zip([0, *ends], ends, offsets, lengths.min(axis=1).tolist(), lengths.max(axis=1).tolist(), strict=False)
    return (JaggedPart(rows[first:last], own, shortest, longest) for first, last, own, shortest, longest in limits)


def _part_value(output: OutputField, part: Part, tensor: ToTensor) -> Any:
    if isinstance(part, np.ndarray):
        return tensor(part)
    if isinstance(part, JaggedPart):
        return jagged(tensor(part.values), tensor(part.offsets), part.shortest, part.longest)
    return part if isinstance(part, list) else batch_value(output, part, tensor)


def batch_value(output: OutputField, column: Column, tensor: ToTensor = as_tensor) -> Any:
    """Returns a field of a batch; see the table above."""
    if isinstance(column, Dense):
        return tensor(column.values)
    if isinstance(column, Strings):
        return column.to_list(text=output.kind == "text")
    if isinstance(column, Compound):
        return _nested_value(output, column, tensor)
    if is_jagged(output) and isinstance(column.values, np.ndarray):
        rows = tensor(column.values).view(-1, *(int(axis) for axis in output.shape[1:] if axis is not None))
        lengths = column.shapes[:, 0]
        return jagged(rows, tensor(ends_of(lengths)), int(lengths.min()), int(lengths.max()))
    return list(_ragged_rows(output, column, tensor))


def _row_values(output: OutputField, column: Column, group: int) -> Iterator[Any]:
    if isinstance(column, Dense):
        values = as_tensor(column.values)
        return (row for start in range(0, len(values), group) for row in values[start : start + group].unbind(0))
    if isinstance(column, Strings):
        return iter(column.to_list(text=output.kind == "text"))
    if isinstance(column, Compound):
        return iter(_nested_value(output, column, as_tensor))
    return _ragged_rows(output, column, as_tensor)


def _nested_value(output: OutputField, column: Compound, tensor: ToTensor) -> NestedTensors:
    """Returns all rows of nested lists; window steps are the level below the rows."""
    whole = column.parts[-1]
    assert isinstance(whole, Ragged)
    values: Any = whole.values
    if isinstance(values, Strings):
        values, tensor = values.to_list(text=output.kind == "text"), as_tensor
    else:
        values = tensor(values).view(int(whole.shapes[:, 0].sum()), *map(int, whole.shapes[:1, 1:].reshape(-1)))
    offsets = [tensor(each) for each in offsets_of(column)]
    steps = [torch.arange(whole.lead[0] + 1) * size for size in whole.lead[1:]]
    return NestedTensors(values, [*steps, *offsets])


def _ragged_rows(output: OutputField, column: Ragged, tensor: ToTensor) -> Iterator[Any]:
    """Yields the tensor of each row, or its tensors as nested lists."""
    tensors = _tensors(output, column, tensor)
    return (_nested(tensors, column.lead[1:]) for _ in range(column.lead[0]))


def _nested(tensors: Iterator[Any], axes: tuple[int, ...]) -> Any:
    return [_nested(tensors, axes[1:]) for _ in range(axes[0])] if axes else next(tensors)


def _tensors(output: OutputField, column: Ragged, tensor: ToTensor) -> Iterator[Any]:
    """Yields every value of a ragged column: a tensor of its own shape, or nested lists of strings."""
    sizes = np.prod(column.shapes, axis=1, dtype=np.int64)
    spans = zip(np.cumsum(sizes).tolist(), sizes.tolist(), column.shapes.tolist(), strict=True)
    values: Any
    if isinstance(column.values, Strings):
        values = column.values.to_objects(text=output.kind == "text")
        return (values[end - size : end].reshape(shape).tolist() for end, size, shape in spans)
    values = tensor(column.values)
    return (values[end - size : end].view(shape) for end, size, shape in spans)
