"""Passes of loaders: a dataset of this package learns in the training process when a loader begins to iterate it.

``DataLoader`` tells an ``IterableDataset`` nothing: with workers it copies the dataset, once for each worker and epoch,
and never calls it in the process that made it. So the iterators of torch's loaders are extended: when a pass begins,
before workers are started or told to go on, it is announced to every dataset of this package that the loader's dataset
is or holds (in a ``ChainDataset``, a dataset of the user's own, a chain of DataPipes).
"""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy.random  # noqa: F401  # each loader worker needs it; a thread that imports it at a fork would block them
import torch
from torch.utils.data import DataLoader, IterableDataset, dataloader, default_collate

from parquetry.common import Pipeline

from . import dead_workers
from .dead_workers import explain, follow
from .dealers import Dealer, TrainerEpoch, dealer_of, trainer_epoch
from .loader_state import check_state_of

_SEARCHED = 10_000  # objects, the nearest first
_LONGEST = 1_000  # a longer list or dict holds data
_OPAQUE = (type, ModuleType, CodeType, FrameType, Pipeline, DataLoader, torch.nn.Module, torch.Tensor)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a loader.

    Attributes:
        loader: names the loader's iterator among those of this process; one with persistent workers makes many passes.
        workers: how many processes read; 0 = this one.
        seed: of the loader's random numbers; ``None`` where torch does not say.
        dataset: what the loader iterates.
        batch_size: how many elements the loader stacks; ``None`` where it stacks none, or not those of the dataset.
        dealer: who deals the rows of the pass, if it is not the dataset.
        trainer: the epoch of the trainer that iterates the loader, where it is known.
        samplers: of the loader, where they choose rows by number.
    """

    loader: int
    workers: int
    seed: int | None
    dataset: object = None
    batch_size: int | None = None
    dealer: Dealer | None = None
    trainer: TrainerEpoch | None = None
    samplers: tuple[Any, ...] = ()


class Announced:
    """What is told of the passes of loaders. A base class, so that a search finds it.

    Attributes:
        by_number: whether it gives rows by number, so that loaders over map-style datasets concern it.
    """

    by_number = False

    def pass_begins(self, begun: Pass) -> None:
        """A loader is about to iterate this; called in the training process."""
        raise NotImplementedError

    def _waited(self, begin: float, end: float) -> None:
        """Whoever iterates the loader waited for an element from ``begin`` to ``end``."""


def install() -> None:
    """From now on, torch's loaders announce their passes. Idempotent; nothing happens where torch works otherwise."""
    base: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
    if base is not None and not hasattr(base, "_parquetry_loader"):
        base._parquetry_loader = 0
        base.__init__ = _announcing_start(base.__init__)
        base._reset = _announcing_reset(base._reset)
        base._parquetry_told = ()
        dead_workers.install()
        base.__next__ = _timed_next(base.__next__)


def _announcing_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: Any, loader: DataLoader, *args: object, **options: object) -> None:
        original(self, loader, *args, **options)
        self._parquetry_loader = next(_numbers)
        try:
            _announce(self, loader)
        except BaseException:
            self._shutdown = True  # there is nothing yet that torch's __del__ could end
            raise

    return start


def _announcing_reset(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset(self: Any, loader: DataLoader, first_iter: bool = False, *args: object, **options: object) -> None:
        original(self, loader, first_iter, *args, **options)
        if not first_iter:  # the first is a part of the start
            _announce(self, loader)

    return reset


def _timed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def following(self: Any) -> Any:
        if not self._parquetry_told:
            return original(self)
        begin = time.perf_counter()
        try:
            element = original(self)
        except RuntimeError as error:
            explain(error)
            raise
        end = time.perf_counter()
        for dataset in self._parquetry_told:
            dataset._waited(begin, end)
        return element

    return following


def _announce(iterator: Any, loader: DataLoader) -> None:
    iterable = isinstance(loader.dataset, IterableDataset)
    own = getattr(loader.dataset, "_datapipe", loader.dataset)  # torch wraps DataPipes
    seed, trainer = getattr(iterator, "_base_seed", None), trainer_epoch()
    dealer = dealer_of(loader) if iterable else None
    try:
        if iterable and isinstance(own, Announced):
            check_state_of(loader)
        told = [dataset for dataset in announced_in(loader.dataset) if iterable or dataset.by_number]
        for number, dataset in enumerate(told):
            begun = Pass(
                loader=iterator._parquetry_loader,
                workers=loader.num_workers,
                seed=None if seed is None else seed + number,  # two shuffles in one loader are two orders
                batch_size=loader.batch_size if dataset is own and loader.collate_fn is default_collate else None,
                dataset=loader.dataset,
                dealer=dealer,
                trainer=trainer,
                samplers=() if iterable else (loader.sampler, loader.batch_sampler),
            )
            dataset.pass_begins(begun)
        iterator._parquetry_told = told
        if told and loader.num_workers:
            follow(iterator)
    except BaseException:
        iterator._shutdown = True  # no workers have been started that its end would stop
        raise


def announced_in(dataset: object) -> Iterator[Announced]:
    """What is to be told: the dataset, and all that it holds."""
    seen: dict[int, Any] = {}  # kept alive, so that an id names one object
    waiting = deque([dataset])
    while waiting and len(seen) < _SEARCHED:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, _OPAQUE):
            continue
        seen[id(value)] = value
        if isinstance(value, Announced):
            yield value
        waiting.extend(part for part in _parts(value) if gc.is_tracked(part))


def _parts(value: object) -> list[Any]:
    if isinstance(value, FunctionType):  # not its globals
        return [value.__closure__, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, _CONTAINERS) and len(value) > _LONGEST:
        return []
    return gc.get_referents(value)
