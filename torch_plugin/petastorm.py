"""`DataLoader`, `BatchedDataLoader`, `InMemBatchedDataLoader`: batches of tensors from the rows of
`parquetry.petastorm` readers, under Petastorm's names.

A batch is a dict by field name (nested by offset for windows). Bools become uint8, uint16 int32, uint32 int64;
`DataLoader` keeps decimals and text as lists. These loaders pass rows through Python; `ParquetPipe` is faster.
"""

from __future__ import annotations

import decimal
import itertools
import logging
import random
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from parquetry.common.base.errors import PipelineError
from parquetry.common.compat.petastorm.errors import IterationError, UnsupportedTypeError
from parquetry.common.compat.petastorm.reading import Reader, Samples
from parquetry.common.compat.petastorm.unischema import Unischema
from parquetry.common.compat.petastorm.values import null_partitions

from .petastorm_buffers import RowBuffer, RowPool, RowQueue, batches, rows_in

_LOGGER = logging.getLogger(__name__)
_PROMOTED = {
    np.dtype(np.bool_): np.uint8,
    np.dtype(np.uint16): np.int32,
    np.dtype(np.uint32): np.int64,
}


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Collates rows like torch, except that decimals and text stay lists."""
    first = batch[0]
    if isinstance(first, decimal.Decimal | str | bytes | bytearray):
        return batch
    if isinstance(first, Mapping):
        return {key: decimal_friendly_collate([row[key] for row in batch]) for key in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(samples) for samples in zip(*batch, strict=True)]
    return default_collate(list(batch))


class LoaderBase:
    """Base of the loaders: allows one pass at a time, and resets the reader before the next one."""

    reader: Samples

    def __init__(self) -> None:
        self._in_iter: bool | None = None
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._error is not None:
            raise IterationError(
                f"loader: expected to begin a new pass, but the last one failed with {self._error!r}. "
                "Make a new reader and loader."
            )
        if self._in_iter:
            raise IterationError(
                "loader: You must finish a full pass of Petastorm DataLoader before making another pass from the "
                "beginning. To end a pass early, make a new reader and loader."
            )
        if self._in_iter is not None:
            self.reader.reset()
            _LOGGER.info("new pass over the reader: reading from the beginning")
        self._in_iter = True
        try:
            yield from self._iter_impl()
        except Exception as error:
            self._error = error
            raise
        finally:
            self._in_iter = False

    def _iter_impl(self) -> Iterator[Any]:
        raise NotImplementedError

    def __enter__(self) -> LoaderBase:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()
        self.reader.join()


class DataLoader(LoaderBase):
    """Batches of a reader's rows.

    Args:
        reader: from `make_reader` or `make_batch_reader`; its ``num_epochs`` sets the length of a pass.
        batch_size: rows in a batch; the last one may have fewer.
        collate_fn: list of row dicts -> batch.
        shuffling_queue_capacity: rows in the shuffle buffer; 0 = no shuffling.
    """

    def __init__(
        self,
        reader: Samples,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__()
        _check(batch_size, shuffling_queue_capacity)
        self.reader = reader
        self.batch_size = batch_size
        self.collate_fn = collate_fn
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def _iter_impl(self) -> Iterator[Any]:
        rows = _rows(self.reader)
        if self.shuffling_queue_capacity > 0:
            rows = _drawn(rows, self.shuffling_queue_capacity)
        while batch := list(itertools.islice(rows, self.batch_size)):
            yield self.collate_fn(batch)


class BatchedDataLoader(LoaderBase):
    """Batches of tensors only, shuffled as tensors: no row is a Python object after the reader.

    Args:
        reader: a reader with only numeric fields.
        batch_size: rows in a batch; the last one may have fewer.
        transform_fn: array with a leading row axis -> tensor; ``None`` = ``torch.as_tensor``.
        shuffling_queue_capacity: rows in the shuffle buffer; 0 = no shuffling.
    """

    def __init__(
        self,
        reader: Samples,
        batch_size: int = 1,
        transform_fn: Callable[[Any], torch.Tensor] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__()
        _check(batch_size, shuffling_queue_capacity)
        self.reader = reader
        self.batch_size = batch_size
        self.transform_fn = transform_fn or torch.as_tensor
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def _iter_impl(self) -> Iterator[dict[str, torch.Tensor]]:
        kept = max(self.shuffling_queue_capacity - 1, 0)
        owned = isinstance(self.reader, Reader) and self.transform_fn is torch.as_tensor
        buffer: RowBuffer = RowPool(_drawn_seed()) if self.shuffling_queue_capacity else RowQueue(copies=not owned)
        for columns in _tensors(self.reader, self.transform_fn, self.batch_size):
            buffer.add(columns)
            yield from batches(buffer, self.batch_size, kept=kept)
        yield from batches(buffer, self.batch_size, last=True)


class InMemBatchedDataLoader:
    """Batches of a reader's first rows, kept in memory and reshuffled for each epoch; can be iterated once.

    Args:
        reader: a reader with only numeric fields; it is stopped once the rows are read.
        batch_size: rows in a batch; the last one of an epoch may have fewer.
        transform_fn: array with a leading row axis -> tensor; ``None`` = ``torch.as_tensor``.
        num_epochs: passes; ``None`` = endless.
        seed: seed of the order; epoch ``e`` uses ``seed + e``.
        rows_capacity: maximum number of rows to keep.
        shuffle: whether to shuffle each epoch.
    """

    def __init__(
        self,
        reader: Samples,
        batch_size: int = 1,
        transform_fn: Callable[[Any], torch.Tensor] | None = None,
        num_epochs: int | None = 1,
        seed: int = 0,
        rows_capacity: int = 1024,
        shuffle: bool = False,
    ) -> None:
        _check(batch_size, 0)
        self._batch_size = batch_size
        self._num_epochs = num_epochs
        self._seed = seed
        self._shuffle = shuffle
        self._in_iter = False
        self._keys, self._buffer = _load_rows_into_mem(reader, transform_fn or torch.as_tensor, rows_capacity)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if self._in_iter:
            raise IterationError(
                "loader: InMemBatchedDataLoader couldn't be used multiple times. Say how many passes with num_epochs=."
            )
        self._in_iter = True
        epochs = itertools.count() if self._num_epochs is None else range(self._num_epochs)
        size = len(self._buffer[0]) if self._buffer else 0
        for epoch in epochs if size else ():
            order = torch.arange(size)
            if self._shuffle:
                order = torch.randperm(size, generator=torch.Generator().manual_seed(self._seed + epoch))
            for chosen in order.split(self._batch_size):
                yield {key: column[chosen] for key, column in zip(self._keys, self._buffer, strict=True)}

    def __enter__(self) -> InMemBatchedDataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffer = []


def _load_rows_into_mem(
    reader: Samples, transform_fn: Callable[[Any], torch.Tensor], rows_capacity: int
) -> tuple[KeysView[str] | tuple[()], list[torch.Tensor]]:
    """Returns the first rows of a reader as ``(field names, one tensor per field)``; stops the reader."""
    chunks: list[dict[str, torch.Tensor]] = []
    rows = 0
    for columns in _tensors(reader, transform_fn, rows_capacity):
        chunks.append(columns)
        rows += rows_in(columns)
        if rows >= rows_capacity:
            break
    reader.stop()
    reader.join()
    if not chunks:
        return (), []
    joined = {key: torch.cat([chunk[key] for chunk in chunks])[:rows_capacity] for key in chunks[0]}
    return joined.keys(), list(joined.values())


def _rows(reader: Samples) -> Iterator[dict[Any, Any]]:
    """Yields a reader's rows as dicts of values that torch accepts."""
    for sample in reader:
        if _has_windows(reader):
            yield {offset: _sanitized(step) for offset, step in sample.items()}
        elif _is_batched(reader):
            yield from _split(_columns_of(reader, sample))
        else:
            yield _sanitized(sample)


def _has_windows(reader: object) -> bool:
    """Whether a reader, possibly a user-defined one, gives windows."""
    return getattr(reader, "ngram", None) is not None


def _is_batched(reader: object) -> bool:
    return bool(getattr(reader, "batched_output", getattr(reader, "is_batched_reader", False)))


def _as_dict(sample: Any) -> dict[str, Any]:
    if not isinstance(sample, Mapping) and not hasattr(sample, "_asdict"):
        raise PipelineError(f"loader: expected the named tuples of make_reader or make_batch_reader, got {sample!r}.")
    return dict(sample if isinstance(sample, Mapping) else sample._asdict())


def _sanitized(sample: object) -> dict[str, Any]:
    row = _as_dict(sample)
    _sanitize_pytorch_types(row)
    return row


def _columns_of(reader: Samples, sample: object) -> dict[str, Any]:
    columns = _as_dict(sample)
    schema = getattr(reader, "schema", None)  # not every user-defined reader has one
    for name in null_partitions(schema, columns) if isinstance(schema, Unischema) else ():
        _refuse(name, "nulls")
    return columns


def _sanitized_columns(reader: Samples) -> Iterator[dict[str, Any]]:
    for sample in reader:
        columns = _columns_of(reader, sample)
        _sanitize_pytorch_types(columns)
        yield columns


def _split(columns: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Splits a row group into rows; columns of text and decimals give single values."""
    numbers = {name: column for name, column in columns.items() if column.dtype.kind not in "SUO"}
    _sanitize_pytorch_types(numbers)
    for row in zip(*({**columns, **numbers}).values(), strict=True):
        values = dict(zip(columns, row, strict=True))
        for name, value in values.items():
            if value is None:
                _refuse(name, "None")
        yield values


def _sanitize_pytorch_types(row_as_dict: dict[str, Any]) -> None:
    """Converts the values of a row (or the columns of a row group) to types that torch has, in place.

    Raises:
        UnsupportedTypeError: arrays of text or objects, and nulls, with the field's name.
    """
    for name, value in row_as_dict.items():
        if value is None:
            _refuse(name, "None")
        if isinstance(value, np.ma.MaskedArray):
            _refuse(name, "nulls")
        if isinstance(value, np.ndarray) and value.dtype.kind in "SUO":
            _refuse(name, f"an array of {value.dtype}")
        if isinstance(value, np.ndarray | np.generic) and value.dtype in _PROMOTED:
            row_as_dict[name] = value.astype(_PROMOTED[value.dtype])


def _refuse(name: str, problem: str) -> None:
    raise UnsupportedTypeError(
        f"field '{name}': Pytorch does not support {problem}: expected numbers without nulls. Drop the field or such "
        "rows, or convert them to numbers in a TransformSpec."
    )


def _tensors(
    reader: Samples, transform_fn: Callable[[Any], torch.Tensor], rows: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yields the reader's elements as tensors with a leading row axis; single rows in chunks of ``rows``.

    Raises:
        UnsupportedTypeError: a field whose tensors differ in dtype.
    """
    if _has_windows(reader):
        raise PipelineError("loader: expected single rows, got a reader of windows. Use DataLoader for windows.")
    dtypes: dict[str, torch.dtype] = {}
    for columns in _sanitized_columns(reader) if _is_batched(reader) else _stacked_rows(reader, rows):
        tensors = {name: transform_fn(column) for name, column in columns.items()}
        for name, tensor in tensors.items():
            if dtypes.setdefault(name, tensor.dtype) != tensor.dtype:
                raise UnsupportedTypeError(
                    f"field '{name}': expected {dtypes[name]}, as in the rows before, got {tensor.dtype}. "
                    "Declare the dtype in edit_fields= of the TransformSpec."
                )
        yield tensors


def _stacked_rows(reader: Samples, rows: int) -> Iterator[dict[str, np.ndarray]]:
    samples = map(_sanitized, reader)
    while chunk := list(itertools.islice(samples, rows)):
        columns = {name: _stacked(name, [row[name] for row in chunk]) for name in chunk[0]}
        _sanitize_pytorch_types(columns)
        yield columns


def _stacked(name: str, values: list[Any]) -> np.ndarray:
    try:
        return np.stack(values)
    except ValueError as error:
        raise UnsupportedTypeError(
            f"field '{name}': expected one shape, got {sorted({np.shape(value) for value in values})}. "
            "Pad in a TransformSpec, or use DataLoader with a collate_fn."
        ) from error


def _drawn(rows: Iterator[Any], capacity: int) -> Iterator[Any]:
    """Yields rows in random order, each drawn from a buffer of ``capacity`` rows."""
    source = random.Random(_drawn_seed())
    waiting = list(itertools.islice(rows, capacity))
    for row in rows:
        place = source.randrange(len(waiting))
        drawn, waiting[place] = waiting[place], row
        yield drawn
    source.shuffle(waiting)
    yield from waiting


def _drawn_seed() -> int:
    """Returns a seed from torch's own generator, so ``torch.manual_seed`` controls it."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _check(batch_size: object, shuffling_queue_capacity: object) -> None:
    if not isinstance(batch_size, int) or batch_size < 1:
        raise PipelineError(f"loader: expected batch_size to be an integer >= 1, got {batch_size!r}.")
    if not isinstance(shuffling_queue_capacity, int) or shuffling_queue_capacity < 0:
        raise PipelineError(
            f"loader: expected shuffling_queue_capacity to be an integer >= 0, got {shuffling_queue_capacity!r}."
        )
