"""`Copy`: a row number that says how often a loader's sampler gave it before, so that copies of a row are not alike.

A sampler that draws with replacement gives a number several times in a pass. Only the training process sees all of
them, so it counts there, and the count travels with the number: to loader workers, through ``Subset`` and
``ConcatDataset``, and through datasets of your own that pass the number on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, SequentialSampler, Subset

from .torch_internals import extend_subsets


class Copy(int):
    """A number that came ``copies`` times before in the pass."""

    copies: int

    def __new__(cls, number: int, copies: int) -> Copy:
        result = super().__new__(cls, number)
        result.copies = copies
        return result

    def __sub__(self, other: int) -> Copy:
        """Returns the number within a part of a ``ConcatDataset``."""
        return Copy(int(self) - other, self.copies)

    def __reduce__(self) -> tuple[Any, ...]:
        return Copy, (int(self), self.copies)


class CopyCounter:
    """Counts how often each number of a pass was given."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}

    def counted(self, index: Any) -> Any:
        """Returns the numbers of a batch, or one number, with `Copy` in place of those that came before."""
        if isinstance(index, list):
            return [self.counted(each) for each in index]
        copies = self._counts.get(index, 0) if isinstance(index, int | np.integer) else None
        if copies is None:  # it is not a number
            return index
        self._counts[index] = copies + 1
        return Copy(int(index), copies) if copies else index


class CountedSampler:
    """A sampler whose numbers are counted as they are given, from the beginning of each pass.

    A ``StatefulDataLoader`` that resumes skips the numbers that it gave before, and these must count, too.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return map(CopyCounter().counted, self._sampler)

    def __len__(self) -> int:
        assert isinstance(self._sampler, Sized)
        return len(self._sampler)


def copies_in(index: object) -> np.ndarray | None:
    """Returns the `Copy.copies` of a number or several (int64), or ``None`` if none of them came before."""
    indices: Iterable[Any] = index if isinstance(index, list | tuple) else [index]
    copies = [each.copies if isinstance(each, Copy) else 0 for each in indices]
    return np.array(copies, np.int64) if any(copies) else None


def may_copy(samplers: Iterable[object]) -> bool:
    """Whether samplers, some of which wrap others, may give a number twice in a pass."""
    return not any(
        type(each) is SequentialSampler
        or (isinstance(each, RandomSampler) and not each.replacement and each.num_samples <= len(each.data_source))
        for each in samplers
    )


def install() -> None:
    """Lets ``Subset`` pass copies on. Idempotent."""
    extend_subsets(_passing_copies)


def _passing_copies(original: Callable[[Subset[Any], Any], Any]) -> Callable[[Subset[Any], Any], Any]:
    @functools.wraps(original)
    def get(self: Subset[Any], index: object) -> Any:
        if copies_in(index) is None:
            return original(self, index)
        return original(Subset(self.dataset, _Passing(self.indices)), index)

    return get


class _Passing(Sequence[int]):
    """The numbers of a subset; that of a `Copy` is a `Copy`."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    def __getitem__(self, place: Any) -> Any:
        number = self._numbers[place]
        return Copy(number, place.copies) if isinstance(place, Copy) else number

    def __len__(self) -> int:
        return len(self._numbers)
