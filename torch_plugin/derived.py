"""DataPipes over a `ParquetPipe` that work element by element, and so keep its state: map, filter, collate.

They are torch's own classes with another iterator: several at once are independent, ``state_dict`` is the source's, and
``sharding_filter`` goes down to the source, where it saves reading.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter.callable import CollatorIterDataPipe, MapperIterDataPipe
from torch.utils.data.datapipes.iter.combining import ZipperIterDataPipe
from torch.utils.data.datapipes.iter.selecting import FilterIterDataPipe
from typing_extensions import Self

from parquetry.common.errors import StateError

from .combining import check_combined


class DerivedVerbs:
    """The DataPipe verbs that keep the state of what they stand on."""

    def map(self, fn: Callable[..., Any], input_col: object = None, output_col: object = None) -> ParquetMapper:
        """torch's ``map``: a function of the elements (tensors), run where the pipe is iterated.

        As with torch, what the function returns is handed on uncopied, and torch's ``batch`` and ``shuffle`` keep it:
        return new tensors, not the same buffer again. `transform` takes functions of both kinds.
        """
        return ParquetMapper(_pipe(self), fn, input_col, output_col)

    def collate(self, *args: Any, **kwargs: Any) -> ParquetCollator:
        """torch's ``collate``; by default `torch.utils.data.default_collate` of each element."""
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


class _Elementwise(DerivedVerbs):
    """Iteration and state; before torch's class in the method resolution order, and out of its metaclass's sight."""

    datapipe: Any

    def __iter__(self) -> DerivedIterator:
        return DerivedIterator(iter(self.datapipe), self._apply)

    def _apply(self, elements: Iterator[Any]) -> Any:
        """The next element made from the source's; raises StopIteration at its end."""
        raise NotImplementedError

    def length_in_loader(self) -> int:
        """Elements that a ``DataLoader`` of this rank gives."""
        return int(self.datapipe.length_in_loader())

    def state_dict(self) -> dict[str, Any]:
        """The source's state."""
        return dict(self.datapipe.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> Self:
        """The next iterator goes on where the state was taken. Returns itself."""
        self.datapipe.load_state_dict(state_dict, strict=strict)
        return self

    def state_after(self, elements: int) -> dict[str, Any]:
        """The source's state when a loader with workers has given ``elements`` elements."""
        return dict(self.datapipe.state_after(elements))

    def set_epoch(self, epoch: int) -> None:
        """The next iterator is epoch ``epoch``."""
        self.datapipe.set_epoch(epoch)

    def sharding_filter(self, sharding_group_filter: object = None) -> Any:
        """The source with ``sharding_filter()``: the same elements, read only once."""
        result = copy.copy(self)
        result.datapipe = self.datapipe.sharding_filter(sharding_group_filter)
        return result


class DerivedIterator:
    """Elements made from another iterator's, with that one's state."""

    def __init__(self, source: Iterator[Any], apply: Callable[[Iterator[Any]], Any]) -> None:
        self._source: Any = source
        self._apply = apply

    def __iter__(self) -> DerivedIterator:
        return self

    def __next__(self) -> Any:
        return self._apply(self._source)

    def state_dict(self) -> dict[str, Any]:
        """How far the source has come."""
        return dict(self._source.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> DerivedIterator:
        """Goes on where a state was taken. Returns itself."""
        self._source.load_state_dict(state_dict, strict=strict)
        return self

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._source.close()


class ParquetMapper(_Elementwise, MapperIterDataPipe):
    """A function applied to each element."""

    def _apply(self, elements: Iterator[Any]) -> Any:
        return self._apply_fn(next(elements))


class ParquetCollator(_Elementwise, CollatorIterDataPipe):
    """A collate function applied to each element."""

    def _apply(self, elements: Iterator[Any]) -> Any:
        return self._apply_fn(next(elements))


class ParquetFilter(_Elementwise, FilterIterDataPipe):
    """The elements for which a function is true."""

    def length_in_loader(self) -> int:
        """Unknown before iteration."""
        raise TypeError("len(): a pipe filtered by a function has no length before it is iterated.")

    def state_after(self, elements: int) -> dict[str, Any]:
        """Unknown: nobody counts the elements that were left out."""
        raise StateError(
            "state_after: expected a pipe whose elements can be counted, got filter() by a function. "
            "Use where(function, fields=[...]), or StatefulDataLoader."
        )

    def _apply(self, elements: Iterator[Any]) -> Any:
        while True:
            kept, element = self._returnIfTrue(next(elements))
            if kept:
                return element


def _pipe(verbs: object) -> IterDataPipe:
    assert isinstance(verbs, IterDataPipe)
    return verbs
