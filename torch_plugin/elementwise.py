"""DataPipes over a `ParquetPipe` that work element by element, and so keep its state: map, filter, collate.

They are torch's own classes with another iterator: iterators are independent, ``state_dict`` is the source's, and
``sharding_filter`` is passed to the source, where it saves reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter.callable import CollatorIterDataPipe, MapperIterDataPipe
from torch.utils.data.datapipes.iter.combining import ZipperIterDataPipe
from torch.utils.data.datapipes.iter.selecting import FilterIterDataPipe

from parquetry.common.base.errors import StateError

from .combining import check_combined
from .torch_internals import map_next, next_kept


class ElementwiseVerbs:
    """The DataPipe verbs that keep the state of their source."""

    def map(self, fn: Callable[..., Any], input_col: object = None, output_col: object = None) -> ParquetMapper:
        """torch's ``map``: applies a function to the elements (tensors), in the process that iterates the pipe.

        As in torch, the function's result is passed on without a copy, and torch's ``batch`` and ``shuffle`` keep it:
        return new tensors, not the same buffer again. `transform` takes functions of both kinds.
        """
        return ParquetMapper(_pipe(self), fn, input_col, output_col)

    def collate(self, *args: Any, **kwargs: Any) -> ParquetCollator:
        """torch's ``collate``; by default applies `torch.utils.data.default_collate` to each element."""
        return ParquetCollator(_pipe(self), *args, **kwargs)

    def zip(self, *others: IterDataPipe) -> Any:
        """torch's ``zip``: tuples of the elements of several pipes.

        Raises:
            PipelineError: in a process group, pipes whose elements would not stay together.
        """
        zipped: ZipperIterDataPipe = ZipperIterDataPipe(_pipe(self), *others)
        check_combined(zipped, workers=0)
        return zipped

    def filter(self, filter_fn: Callable[..., Any], input_col: object = None) -> Any:
        """torch's ``filter``: keeps the elements for which the function is true."""
        return ParquetFilter(_pipe(self), filter_fn, input_col)


class _Elementwise(ElementwiseVerbs):
    """Iteration and state; comes before torch's class in the MRO, so that torch's metaclass does not wrap them."""

    datapipe: Any

    def __iter__(self) -> ElementwiseIterator:
        return ElementwiseIterator(iter(self.datapipe), self._apply)

    def _apply(self, elements: Iterator[Any]) -> Any:
        """Returns the next element, made from the source's; raises StopIteration at its end."""
        raise NotImplementedError

    def length_in_loader(self) -> int:
        """Returns the number of elements a ``DataLoader`` on this rank gives."""
        return int(self.datapipe.length_in_loader())

    def batches_in_loader(self, batch_size: int, workers: int, *, drop_last: bool) -> int:
        """Returns the number of batches of a ``DataLoader`` whose workers collate elements."""
        return int(self.datapipe.batches_in_loader(batch_size, workers, drop_last=drop_last))

    def state_dict(self) -> dict[str, Any]:
        """Returns the source's state."""
        return dict(self.datapipe.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        """Makes the next iterator resume from the state. Returns itself."""
        self.datapipe.load_state_dict(state_dict, strict=strict)
        return self

    def state_after(self, elements: int) -> dict[str, Any]:
        """Returns the source's state after a loader with workers has given ``elements`` elements."""
        return dict(self.datapipe.state_after(elements))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iterator epoch ``epoch``."""
        self.datapipe.set_epoch(epoch)

    def sharding_filter(self, sharding_group_filter: object = None) -> Any:
        """Applies ``sharding_filter()`` to the source: the same elements, read only once."""
        result = copy.copy(self)
        result.datapipe = self.datapipe.sharding_filter(sharding_group_filter)
        return result


class ElementwiseIterator:
    """Iterates over elements made from another iterator's, with that iterator's state."""

    def __init__(self, source: Iterator[Any], apply: Callable[[Iterator[Any]], Any]) -> None:
        self._source: Any = source
        self._apply = apply

    def __iter__(self) -> ElementwiseIterator:
        return self

    def __next__(self) -> Any:
        return self._apply(self._source)

    def state_dict(self) -> dict[str, Any]:
        """Returns the source's position."""
        return dict(self._source.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> ElementwiseIterator:
        """Resumes from a state. Returns itself."""
        self._source.load_state_dict(state_dict, strict=strict)
        return self

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._source.close()


class ParquetMapper(_Elementwise, MapperIterDataPipe):
    """A function applied to each element."""

    _apply = map_next


class ParquetCollator(_Elementwise, CollatorIterDataPipe):
    """A collate function applied to each element."""

    _apply = map_next


class ParquetFilter(_Elementwise, FilterIterDataPipe):
    """The elements for which a function is true."""

    def length_in_loader(self) -> int:
        """Unknown before iteration."""
        raise TypeError("len(): a pipe filtered by a function has no length before it is iterated.")

    def state_after(self, elements: int) -> dict[str, Any]:
        """Unknown: dropped elements are not counted."""
        raise StateError(
            "state_after: expected a pipe whose elements can be counted, got filter() by a function. "
            "Use where(function, fields=[...]), or StatefulDataLoader."
        )

    _apply = next_kept


def _pipe(verbs: object) -> IterDataPipe:
    assert isinstance(verbs, IterDataPipe)
    return verbs
