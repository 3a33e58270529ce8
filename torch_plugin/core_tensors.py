"""Tensors made by the compiled core: all columns of a batch in one call, where torch offers an interface for it.

They are what `torch.from_numpy` makes from the same arrays. It makes one at a time, and is used otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from parquetry.common.engine.columns.batch import Column, Dense
from parquetry.common.native.dlpack import TensorRun, exchange_of, is_exchanged
from parquetry.common.schema.element import Element

from .tensors import Part, split_for_torch

_FEW_TENSORS = 64  # describing a run for the core takes longer than it saves for so few tensors


class CoreBatch(NamedTuple):
    """A batch whose tensors are made late, because fewer live objects mean fewer garbage collections."""

    run: TensorRun
    number: int

    def tensors(self) -> list[torch.Tensor]:
        """Returns one tensor for each column. They keep the memory of the arrays, which is not copied."""
        return self.run.tensors(self.number)


def split_for_core(
    element: Element, columns: Sequence[Column], count: int
) -> Iterable[CoreBatch | tuple[Any, ...] | list[Part]]:
    """Splits the columns into ``count`` batches of consecutive rows: `CoreBatch`es, or what `split_for_torch` gives."""
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
