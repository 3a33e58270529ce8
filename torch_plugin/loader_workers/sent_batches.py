"""Batches as messages from a loader worker to the trainer: where their values lie in the worker's memory, as numbers.

A worker makes many batches at once (a job), in regions of its memory that the trainer maps (`loader_memory`). `Encoder`
describes the columns of a job once, and each of its batches by a row of numbers: offsets, and the lengths of lists. So
a batch takes no tensors and no pickling in the worker, and another worker can pass its message on. `decode` makes the
tensors and the lists of text, in the trainer.
"""

from __future__ import annotations

import itertools
import math
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from parquetry.common.base.memory.lru_cache import LRUCache
from parquetry.common.base.native.dlpack import DTYPES, TensorLayout, tensors_in
from parquetry.common.engine.columns.batch import (
    Column,
    Dense,
    Ragged,
    Strings,
    arrays_in,
    by_output,
    split_column,
    with_arrays,
)
from parquetry.common.schema.element import Element, OutputField

from ..tensors import batch_value, is_jagged, list_offsets, torch_exchange
from ..torch_internals import jagged, seen_by_modes
from .loader_memory import Copies, place_arrays, release
from .mapped_regions import RegionMemory, borrow, give_back_unused, own_copy

_HEAD = struct.Struct("<II")  # the size of the layout, and the number of regions
_REGION = struct.Struct("<6q")  # a `RegionMemory`, and whether the trainer copies what is in it
_OFFSETS = np.dtype(np.int64)
_BYTES = np.dtype(np.uint8)
_LAYOUTS = 64

Place: TypeAlias = tuple[int, int]
"""Where an array is: the number of its region among those of a message, and the offset in it."""
Lease: TypeAlias = tuple[Any, bool]
"""A region in the trainer: borrowed memory, and whether to copy what is in it."""


class SentBatch:
    """A batch on its way to the trainer. Unpickling it gives the batch.

    Args:
        message: see `Encoder`.
        collate: the trainer calls it with the batch, if the batch is not a dict.
    """

    __slots__ = ("_collate", "_message")

    def __init__(self, message: bytes, collate: Callable[[Any], Any] | None = None) -> None:
        self._message = message
        self._collate = collate

    def collated(self, collate: Callable[[Any], Any]) -> SentBatch:
        """Returns the batch with a function of this package that changes no dicts."""
        return SentBatch(self._message, collate)

    def __reduce__(self) -> Any:
        return decode, (self._message,) if self._collate is None else (self._message, self._collate)


Shape: TypeAlias = tuple[int, ...] | int
"""A shape, or its number of axes: then the sizes are the first of a field's numbers.

Batches that are made one by one may differ in size, and a layout is described and parsed only once.
"""


class ArrayLayout(NamedTuple):
    """A field of numbers. Its number: the offset."""

    region: int
    dtype: np.dtype[Any]
    shape: Shape

    def make(self, leases: Sequence[Lease], numbers: Iterator[int]) -> torch.Tensor:
        """Returns the field of a batch."""
        return _tensor(leases[self.region], self.dtype, _shape(self.shape, numbers), next(numbers))


class ListLayout(NamedTuple):
    """A field of lists of numbers.

    Its numbers: how many lists and values there are, the values' offset, the offset of the lists' offsets, and the
    lengths of the shortest and the longest list.
    """

    region: int
    offsets_region: int
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]

    def make(self, leases: Sequence[Lease], numbers: Iterator[int]) -> torch.Tensor:
        """Returns the field of a batch."""
        lists = next(numbers)
        values = _tensor(leases[self.region], self.dtype, (next(numbers), *self.row_shape), next(numbers))
        offsets = _tensor(leases[self.offsets_region], _OFFSETS, (lists + 1,), next(numbers))
        return jagged(values, offsets, next(numbers), next(numbers))


class TextLayout(NamedTuple):
    """A field of text or bytes. Its numbers: the offset of the offsets, the size of the bytes, and their offset."""

    region: int
    offsets_region: int
    shape: Shape
    text: bool

    def make(self, leases: Sequence[Lease], numbers: Iterator[int]) -> list[Any]:
        """Returns the field of a batch."""
        shape = _shape(self.shape, numbers)
        offsets = _array(leases[self.offsets_region], _OFFSETS, (math.prod(shape) + 1,), next(numbers))
        data = _array(leases[self.region], _BYTES, (next(numbers),), next(numbers))
        strings: list[Any] = Strings(offsets, data, shape).to_list(text=self.text)
        return strings


class ColumnLayout(NamedTuple):
    """Any other field, such as nested lists or images of many sizes.

    Its numbers, for each array of its column: the region, the offset, and the shape.

    Attributes:
        pickled: the field, and its column with empty arrays in place of its own.
    """

    pickled: bytes

    def make(self, leases: Sequence[Lease], numbers: Iterator[int]) -> Any:
        """Returns the field of a batch."""
        output, column = _field_of(self.pickled)
        arrays = []
        for like in arrays_in(column):
            memory, is_copied = leases[next(numbers)]
            offset = next(numbers)
            array = np.ndarray(tuple(itertools.islice(numbers, like.ndim)), like.dtype, memory, offset)
            arrays.append(array.copy() if is_copied else array)
        return batch_value(output, with_arrays(column, iter(arrays)))


Layout: TypeAlias = ArrayLayout | ListLayout | TextLayout | ColumnLayout
Described: TypeAlias = tuple[Layout, np.ndarray]
"""The layout of a field, and its numbers for each batch of a job: int64 ``[batches, numbers]``."""


class JobField(NamedTuple):
    """A field of a job: its arrays, and what to say about them when their places are known."""

    arrays: tuple[np.ndarray, ...]
    describe: Callable[[Sequence[Place]], Described]


class Encoder:
    """Makes the messages of an element's batches."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self._copies = Copies()
        self._pickled: LRUCache[tuple[Layout, ...], bytes] = LRUCache(_LAYOUTS)

    def __call__(self, columns: Sequence[Column], count: int) -> Iterator[bytes]:
        """Yields the messages of ``count`` batches of consecutive rows.

        The trainer has to give back the memory of each; see `discard`.

        Raises:
            BufferError: the trainer holds so many batches that there is no memory left that it could map; or all values
                are empty.
        """
        fields = [_job_field(output, column, count) for output, column in by_output(self._element, columns)]
        placed = place_arrays([array for field in fields for array in field.arrays], self._copies)
        at = iter(placed.places)
        layouts, numbers = zip(*(field.describe([next(at) for _ in field.arrays]) for field in fields), strict=True)
        described = (self._element, layouts)
        layout = self._pickled.made(layouts, lambda: pickle.dumps(described, protocol=pickle.HIGHEST_PROTOCOL))
        named = (_REGION.pack(*region.named(), region.is_copied) for region in placed.regions)
        head = b"".join((_HEAD.pack(len(layout), len(placed.regions)), *named, layout))
        for row in np.ascontiguousarray(np.concatenate(numbers, axis=1), np.int64):
            for region in placed.regions:
                region.count()
            yield head + row.tobytes()


def decode(message: bytes, collate: Callable[[Any], Any] | None = None) -> Any:
    """Returns the batch of a message, over the worker's memory. The memory goes back when its last tensor is gone."""
    size, count = _HEAD.unpack_from(message)
    begin = _HEAD.size + count * _REGION.size
    element, layouts, together = _layouts_of(message[begin : begin + size])
    leases = [(borrow(memory, None), copied) for memory, copied in regions_of(message)]
    exchange = torch_exchange()
    if exchange is not None and together is not None and not leases[0][1]:
        batch = element.nest(seen_by_modes(tensors_in(exchange, together, leases[0][0], message, begin + size)))
    else:
        numbers = iter(np.frombuffer(message, np.int64, offset=begin + size).tolist())
        batch = element.nest([layout.make(leases, numbers) for layout in layouts])
    return batch if collate is None or element.form is None else collate(batch)


def discard(message: bytes, worker: int) -> None:
    """In loader worker number ``worker``: gives back the memory of a batch that will not get to the trainer.

    Raises:
        PipelineError: the worker whose memory it is has ended.
    """
    for memory, _ in regions_of(message):
        if not release(memory):
            give_back_unused(memory, worker)


def regions_of(message: bytes) -> list[tuple[RegionMemory, bool]]:
    """Returns the regions that a message names, and whether the trainer copies what is in them."""
    _, count = _HEAD.unpack_from(message)
    entries = [_REGION.unpack_from(message, _HEAD.size + number * _REGION.size) for number in range(count)]
    return [(RegionMemory(*members), bool(copied)) for *members, copied in entries]


def with_regions(message: bytes, memories: Sequence[RegionMemory]) -> bytes:
    """Returns a message that names the same regions in another way."""
    pairs = zip(memories, regions_of(message), strict=True)
    named = b"".join([_REGION.pack(*memory, copied) for memory, (_, copied) in pairs])
    return b"".join((message[: _HEAD.size], named, message[_HEAD.size + len(named) :]))


@lru_cache(maxsize=_LAYOUTS)
def _field_of(pickled: bytes) -> tuple[OutputField, Column]:
    field: tuple[OutputField, Column] = pickle.loads(pickled)
    return field


@lru_cache(maxsize=_LAYOUTS)
def _layouts_of(layout: bytes) -> tuple[Element, tuple[Layout, ...], TensorLayout | None]:
    """Returns what the layout says, and its arrays for the core. It is the same for nearly all jobs of a pass."""
    element, layouts = pickle.loads(layout)
    return element, layouts, _together(layouts)


def _together(layouts: Sequence[Layout]) -> TensorLayout | None:
    """Returns the arrays for the core, if a batch has nothing but arrays in one region."""
    arrays = [each for each in layouts if isinstance(each, ArrayLayout) and not each.region and each.dtype in DTYPES]
    shapes = [each.shape for each in arrays if isinstance(each.shape, tuple)]
    if torch_exchange() is None or len(shapes) < len(layouts):
        return None
    return TensorLayout([each.dtype for each in arrays], shapes)


def _shape(shape: Shape, numbers: Iterator[int]) -> tuple[int, ...]:
    return shape if isinstance(shape, tuple) else tuple(itertools.islice(numbers, shape))


def _described(shape: tuple[int, ...], numbers: np.ndarray) -> tuple[Shape, np.ndarray]:
    """Returns what a layout says of the shape of a job's batches, and the numbers of the field."""
    if len(numbers) > 1:  # all have this shape
        return shape, numbers
    return len(shape), np.concatenate([np.array([shape], np.int64), numbers], axis=1)


def _array(lease: Lease, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> np.ndarray:
    return np.ndarray(shape, dtype, lease[0], offset)


def _tensor(lease: Lease, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> torch.Tensor:
    tensor = torch.from_numpy(np.ndarray(shape, dtype, lease[0], offset))
    return own_copy(tensor) if lease[1] else tensor


def _job_field(output: OutputField, column: Column, count: int) -> JobField:
    if isinstance(column, Dense):
        return _number_field(column.values, count)
    if isinstance(column, Strings) and column.valid is None:
        return _text_field(column, count, text=output.kind == "text")
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray) and is_jagged(output):
        return _list_field(output, column.shapes[:, 0].reshape(count, -1), column.values)
    return _column_field(output, column, count)


def _number_field(values: np.ndarray, count: int) -> JobField:
    def describe(places: Sequence[Place]) -> Described:
        region, begin = places[0]
        offsets = begin + _steps(count, values.nbytes // count)
        shape, numbers = _described((len(values) // count, *values.shape[1:]), offsets)
        return ArrayLayout(region, values.dtype, shape), numbers

    return JobField((values,), describe)


def _text_field(column: Strings, count: int, *, text: bool) -> JobField:
    def describe(places: Sequence[Place]) -> Described:
        (offsets_region, offset), (region, begin) = places
        each = (column.shape[0] // count, *column.shape[1:])
        offsets = offset + _steps(count, math.prod(each) * _OFFSETS.itemsize)
        data = np.full_like(offsets, column.data.nbytes), np.full_like(offsets, begin)
        shape, numbers = _described(each, np.hstack([offsets, *data]))
        return TextLayout(region, offsets_region, shape, text), numbers

    return JobField((column.offsets, column.data), describe)


def _list_field(output: OutputField, lengths: np.ndarray, values: np.ndarray) -> JobField:
    offsets = list_offsets(lengths)
    row_shape = tuple(int(axis) for axis in output.shape[1:] if axis is not None)
    row_bytes = math.prod(row_shape) * values.itemsize

    def describe(places: Sequence[Place]) -> Described:
        (region, begin), (offsets_region, offset) = places
        count, counts = len(offsets), offsets[:, -1]
        numbers = np.column_stack(
            [
                np.full_like(counts, lengths.shape[1]),
                counts,
                begin + (np.cumsum(counts) - counts) * row_bytes,
                offset + _steps(count, offsets[0].nbytes),
                lengths.min(axis=1),
                lengths.max(axis=1),
            ]
        )
        return ListLayout(region, offsets_region, values.dtype, row_shape), numbers

    return JobField((values, offsets), describe)


def _column_field(output: OutputField, column: Column, count: int) -> JobField:
    columns = split_column(column, count)
    batches = [arrays_in(each) for each in columns]
    empty = (np.empty((0,) * array.ndim, array.dtype) for array in batches[0])
    layout = ColumnLayout(pickle.dumps((output, with_arrays(columns[0], empty))))

    def describe(places: Sequence[Place]) -> Described:
        at = iter(places)
        rows = [[number for array in arrays for number in (*next(at), *array.shape)] for arrays in batches]
        return layout, np.array(rows, np.int64)

    return JobField(tuple(itertools.chain(*batches)), describe)


def _steps(count: int, size_bytes: int) -> np.ndarray:
    """Returns the offsets of ``count`` things of this size, one after another: int64 ``[count, 1]``."""
    return _numbers(count) * size_bytes


@lru_cache(maxsize=_LAYOUTS)
def _numbers(count: int) -> np.ndarray:
    """Returns the numbers from 0: int64 ``[count, 1]``. Kept, because `numpy.arange` gives up the interpreter lock."""
    numbers = np.arange(count, dtype=np.int64)[:, None]
    numbers.flags.writeable = False
    return numbers
