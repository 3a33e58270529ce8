"""Loader passes: tells a dataset of this package, in the training process, when a loader begins to iterate it.

``DataLoader`` tells an ``IterableDataset`` nothing: with workers it copies the dataset, once per worker and epoch, and
never calls it in the process that made it. So this module extends the iterators of torch's loaders: when a pass begins,
before workers are started or resumed, it is announced to every dataset of this package that the loader's dataset is or
contains (in a ``ChainDataset``, a user's own dataset, a chain of DataPipes).
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy.random  # noqa: F401  # loader workers need it; a thread importing it during a fork would block them
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from parquetry.common import Pipeline
from parquetry.common.base.errors import ParquetryError
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.base.process.forks import begun_by_parent, leave_to_parent
from parquetry.common.base.tracebacks import shorten, shortens
from parquetry.common.plan.order.cursor import SkipState

from .collation import as_is, convert, stack
from .copies import CopyCounter, CountedSampler, may_copy
from .loader_state import check_dealt_state_of, check_state_of, restored_by, restores_end
from .loader_workers import worker_failures
from .loader_workers.runs import Run, RunMerger
from .loader_workers.worker_failures import explain, follow, watched
from .torch_internals import (
    LoaderIterator,
    base_seed,
    count_yielded,
    extend_fetcher,
    extend_iterators,
    extend_wait,
    keeps_items,
    mark_shut_down,
    replace_collate,
    replace_elements,
    replace_sampler,
    unrestored_state,
    unwrapped,
)
from .trainer_sharding import TrainerEpoch, TrainerSharding, trainer_epoch, trainer_sharding_of

_SEARCHED = 10_000  # how many objects to search, nearest first
_LONGEST = 1_000  # longer lists and dicts are assumed to hold data
_OPAQUE = (type, ModuleType, CodeType, FrameType, Pipeline, DataLoader, torch.nn.Module, torch.Tensor)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_NO_WORK = (default_convert, as_is)
_COLLATES: list[tuple[Any, Any]] = [(default_convert, convert), (default_collate, stack)]
"""Torch's functions, and what does the same here."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a loader.

    Attributes:
        loader: id of the loader's iterator in this process; one with persistent workers makes many passes.
        workers: how many processes read; 0 = this one.
        seed: the loader's random seed; ``None`` if torch does not expose it.
        dataset: the dataset that the loader iterates.
        batch_size: how many elements the loader stacks; ``None`` if it stacks none, or not those of the dataset.
        trainer_sharding: the trainer that deals the rows of the pass, if the dataset does not.
        dispatched: whether a trainer reads on one rank, and sends what it reads to the others.
        trainer: the epoch of the trainer that iterates the loader, if known.
        samplers: the loader's samplers, if they choose rows by number.
        at_once: how many elements the loader makes one batch of; 1 if it makes none.
        restored: the positions of the dataset that the loader restores, of each worker, to continue within a pass.
        ended: whether the pass is one that the loader restores after its end, so that it begins another one at once.
        untouched: whether workers pass on the elements of the dataset as they are.
        alone: whether the loader's processes do nothing but the work of the dataset.
        in_runs: whether the workers may send `Run`s.
    """

    loader: int
    workers: int
    seed: int | None
    dataset: object = None
    batch_size: int | None = None
    trainer_sharding: TrainerSharding | None = None
    dispatched: bool = False
    trainer: TrainerEpoch | None = None
    samplers: tuple[Any, ...] = ()
    at_once: int = 1
    restored: tuple[dict[str, Any], ...] = ()
    ended: bool = False
    untouched: bool = False
    alone: bool = False
    in_runs: bool = False


LoaderPosition: TypeAlias = tuple[int, int, SkipState]
"""The iteration, its consumed elements, and what it has skipped."""


class LoaderAware:
    """Base class of datasets that are notified of loader passes, so that a search can find them.

    Attributes:
        by_number: whether it gives rows by number, so that it is notified of loaders over map-style datasets too.
    """

    by_number = False
    draws_numbers = False
    """Whether copies of a row may differ, because random numbers are drawn for it."""
    _is_plain = False
    """Whether its iterators are those of this package, not of a subclass that may do something with the elements."""

    def pass_begins(self, begun: Pass) -> None:
        """Called in the training process when a loader is about to iterate this."""
        raise NotImplementedError

    def _continues(self, loader: DataLoader, trainer: TrainerEpoch | None) -> Callable[[], None] | None:
        """Called before `pass_begins` when a loader is about to iterate this, and perhaps to restore a state.

        Returns what to call when it has restored the state, if anything.
        """

    def _check_begun(self, iterator: object) -> None:
        """Called in the training process before the loader's iterator gives the first element of a pass."""

    def _wrap_for_worker(self, elements: Iterator[Any]) -> Iterator[Any]:
        """In a loader worker: returns what the worker sends of the elements that torch has begun to iterate."""
        return elements

    def _waited(self, begin: float, end: float) -> None:
        """Called when the consumer of the loader waited for an element from ``begin`` to ``end``."""

    def _ended(self) -> None:
        """Called when the consumer of the loader took the last element of the pass."""

    def _position(self) -> LoaderPosition | None:
        """Returns the position of this process's latest iterator, if it has one."""

    def _rewind_to(self, position: LoaderPosition | None) -> None:
        """Called when the loader was interrupted, so that its consumer got nothing after a `_position`."""


def install() -> None:
    """Makes torch's loaders announce their passes. Idempotent; has no effect if torch's internals differ."""
    base = LoaderIterator
    if base is None or hasattr(base, "_parquetry_loader"):
        return
    base._parquetry_loader = 0
    base._parquetry_datasets = ()
    base._parquetry_merger = None
    base._parquetry_fresh = False
    base._parquetry_restored = None
    base._parquetry_process = 0
    base._parquetry_copies = None
    base._parquetry_counted = False
    base.forget_elements = _forget_elements
    extend_iterators(
        start=_announcing_start,
        reset=_announcing_reset,
        following=_timed_next,
        next_index=_counting_copies,
        process=_keeping,
        length=_counting,
    )
    extend_fetcher(_sending_start)
    worker_failures.install()


def _announcing_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: Any, loader: DataLoader, *args: object, **options: object) -> None:
        extend_wait(type(self), watched)
        original(self, loader, *args, **options)
        self._parquetry_loader = next(_numbers)
        self._parquetry_in_runs = _may_have_runs(self, loader)  # its workers do not change what they send
        if isinstance(unwrapped(loader.dataset), LoaderAware):
            replace_collate(self, _own_collate)
        try:
            _announce(self, loader)
        except BaseException:
            mark_shut_down(self)
            raise

    return shortens(start)


def _own_collate(collate: object) -> object:
    return next((own for torchs, own in _COLLATES if collate is torchs), collate)


def _counting_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        index = original(self)
        return index if self._parquetry_copies is None else self._parquetry_copies.counted(index)

    return next_index


def _counting(original: Callable[[DataLoader], int]) -> Callable[[DataLoader], int]:
    """Returns torch's ``__len__``, but with the batches that several workers make: each collates its own rows."""

    @functools.wraps(original)
    def length(self: DataLoader) -> int:
        result = original(self)  # also notes the number of elements, for a warning while it iterates
        if self.batch_size in (None, 1) or self.num_workers < 2 or not isinstance(self.dataset, IterableDataset):
            return result
        own: Any = unwrapped(self.dataset)
        if hasattr(type(own), "batches_in_loader"):
            if trainer_sharding_of(self) is not None:  # it deals whole batches to the workers
                return result
            return int(own.batches_in_loader(self.batch_size, self.num_workers, drop_last=self.drop_last))
        if type(own).__module__.startswith("torch.utils.data.") and next(announced_in(own), None) is not None:
            raise TypeError(
                f"len(): unknown, because each of {self.num_workers} loader workers makes batches of its own part of "
                f"{type(own).__name__}. Use batch() in the dataset and batch_size=None in the loader."
            )
        return result

    return shortens(length)


def _sending_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: Any, dataset: object, *args: object, **options: object) -> None:
        original(self, dataset, *args, **options)
        own = unwrapped(dataset)
        if isinstance(own, LoaderAware):
            replace_elements(self, own._wrap_for_worker)

    return shortens(start)


def _keeping(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def process(self: Any, *args: object, **options: object) -> object:
        item = original(self, *args, **options)
        if isinstance(item, Run) and self._parquetry_merger is not None:
            self._parquetry_merger.add(item)  # an interrupt of torch's next step would lose all of its batches
        return item

    return process


def _announcing_reset(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset(self: Any, loader: DataLoader, first_iter: bool = False, *args: object, **options: object) -> None:
        original(self, loader, first_iter, *args, **options)
        if not first_iter:  # start() calls the first one
            _announce(self, loader)

    return shortens(reset)


def _timed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def following(self: Any) -> Any:
        if not self._parquetry_datasets:
            return original(self)
        if self._parquetry_fresh:
            try:
                if self._parquetry_process not in (0, os.getpid()):
                    raise begun_by_parent(self._parquetry_process)
                for dataset in self._parquetry_datasets:
                    dataset._check_begun(self)
            except ParquetryError as error:
                shorten(error)
                raise
            self._parquetry_fresh = False
            if self._parquetry_restored is not None:
                self._parquetry_restored()
                self._parquetry_restored = None
        merger = self._parquetry_merger

        def item() -> Any:
            if merger is not None:
                count_yielded(self, merger.taken - 1)  # torch adds one
            return original(self)

        begin = self._parquetry_since = time.perf_counter()
        positions = [dataset._position() for dataset in self._parquetry_datasets]
        try:
            element = item() if merger is None else merger.following(item)
        except (KeyboardInterrupt, SystemExit):
            for dataset, position in zip(self._parquetry_datasets, positions, strict=True):
                dataset._rewind_to(position)
            raise
        except StopIteration:
            for dataset in self._parquetry_datasets:
                dataset._ended()
            raise
        except ParquetryError as error:
            shorten(error)
            raise
        except RuntimeError as error:
            explain(error)
            raise
        end = time.perf_counter()
        for dataset in self._parquetry_datasets:
            dataset._waited(begin, end)
        return element

    return following


def _forget_elements(self: Any) -> object:
    """As `HoldsElements`. A forked child would take what the workers send to its parent, too."""
    merger, self._parquetry_merger = self._parquetry_merger, None
    self._parquetry_fresh = True
    return merger


def _announce(iterator: Any, loader: DataLoader) -> None:
    iterable = isinstance(loader.dataset, IterableDataset)
    own = unwrapped(loader.dataset)
    seed, trainer = base_seed(iterator), trainer_epoch()
    dealt = trainer_sharding_of(loader)
    trainer_sharding = dealt if iterable else None
    try:
        if trainer_sharding is not None and not trainer_sharding.dispatches:
            check_dealt_state_of(loader)
        if iterable and isinstance(own, LoaderAware):
            check_state_of(loader)
            if trainer_sharding is None:  # a trainer that deals rows has one rank's state, on any number of ranks
                iterator._parquetry_restored = own._continues(loader, trainer)
        datasets = [dataset for dataset in announced_in(loader.dataset) if iterable or dataset.by_number]
        iterator._parquetry_merger = RunMerger(loader.num_workers) if iterator._parquetry_in_runs else None
        for number, dataset in enumerate(datasets):
            passed_on = dataset is own and loader.collate_fn in _NO_WORK
            untouched = passed_on and loader.batch_size is None
            begun = Pass(
                loader=iterator._parquetry_loader,
                workers=loader.num_workers,
                seed=None if seed is None else seed + number,  # two shuffles in one loader get different orders
                batch_size=loader.batch_size if dataset is own and _stacks(loader.collate_fn) else None,
                dataset=loader.dataset,
                trainer_sharding=trainer_sharding,
                dispatched=dealt is not None and dealt.dispatches,
                trainer=trainer,
                samplers=() if iterable else (loader.sampler, loader.batch_sampler),
                at_once=loader.batch_size or 1,
                restored=tuple(restored_by(loader)),
                ended=restores_end(loader),
                untouched=untouched,
                alone=passed_on and not loader.pin_memory,
                in_runs=untouched and iterator._parquetry_in_runs,
            )
            dataset.pass_begins(begun)
        iterator._parquetry_copies = None if iterable else _copy_counter(iterator, loader, datasets)
        iterator._parquetry_datasets, iterator._parquetry_fresh = datasets, True
        if datasets and loader.num_workers:
            follow(iterator)
            leave_to_parent(iterator)
            iterator._parquetry_process = os.getpid()
    except BaseException:
        mark_shut_down(iterator)
        raise


def _copy_counter(iterator: Any, loader: DataLoader, datasets: Sequence[LoaderAware]) -> CopyCounter | None:
    """Returns what counts the copies of rows in the numbers that an iterator takes; ``None`` if there are none."""
    used = loader.sampler if loader.batch_sampler is None else loader.batch_sampler  # or the sampler that it wraps
    if not any(dataset.draws_numbers for dataset in datasets) or not may_copy(inner_samplers([used])):
        return None
    if unrestored_state(loader):
        iterator._parquetry_counted = replace_sampler(iterator, CountedSampler)
    return None if iterator._parquetry_counted else CopyCounter()


def inner_samplers(samplers: Iterable[Any]) -> Iterator[Any]:
    """Yields a loader's samplers, and the samplers they wrap."""
    for sampler in samplers:
        if sampler is not None:
            yield sampler
            yield from inner_samplers(getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))


def _stacks(collate: object) -> bool:
    """Whether a function surely stacks elements, as torch's own and those of the Hugging Face Trainer do."""
    module = getattr(collate, "__module__", None) or ""
    return collate is default_collate or module.startswith("transformers.")


def _may_have_runs(iterator: object, loader: DataLoader) -> bool:
    """Whether elements of a dataset of this package come in order, and nobody before the loop sees or counts them."""
    if not keeps_items(iterator) or loader.batch_size is not None or not getattr(loader, "in_order", True):
        return False
    own = unwrapped(loader.dataset)
    return isinstance(own, LoaderAware) and own._is_plain and loader.collate_fn in _NO_WORK


def announced_in(dataset: object) -> Iterator[LoaderAware]:
    """Yields the datasets to notify: the dataset, and those it contains."""
    seen: dict[int, Any] = {}  # kept alive, so that ids stay unique
    waiting = deque([dataset])
    while waiting and len(seen) < _SEARCHED:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, _OPAQUE):
            continue
        seen[id(value)] = value
        if isinstance(value, LoaderAware):
            yield value
        waiting.extend(part for part in _parts(value) if gc.is_tracked(part))


def _parts(value: object) -> list[Any]:
    if isinstance(value, FunctionType):  # not its globals
        return [value.__closure__, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, _CONTAINERS) and len(value) > _LONGEST:
        return []
    return gc.get_referents(value)
