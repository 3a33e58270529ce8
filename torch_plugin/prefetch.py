"""`prefetch_to_device`: copies batches to a device ahead of the training step, on a separate stream.

It takes a loader of host batches, and yields the same batches, in order, on the device. Work that you enqueue on your
stream runs after the copy of its batch. A host batch is kept until its copy is done. State and errors belong to the
last batch you took, however many were copied ahead.
"""

from __future__ import annotations

import copy
import operator
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import field
from typing import Any, Self

import torch

from parquetry.common.base.errors import PipelineError, StateError
from parquetry.common.base.metrics.watching import counted_in
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.base.process.forks import leave_to_parent

from .devices import DeviceCopies, copies_to
from .loader_state import Position, dataset_of, position_of
from .nested import NestedTensors
from .pinned_regions import PINNED_BATCHES
from .torch_internals import Jagged, jagged, jagged_parts

Move = Callable[[torch.Tensor], torch.Tensor]
_AT_ONCE = 2  # batches taken from the loader per step until enough are ahead, so that the first one comes soon


def prefetch_to_device(loader: Iterable[Any], device: torch.device | str | int, depth: int = 2) -> DevicePrefetcher:
    """Returns a loader of the same batches on ``device``; up to ``depth`` batches are copied ahead of your step.

        >>> pipe = ParquetIterable(url, ["image", "label"]).shuffle(10_000).batch(64)  # doctest: +SKIP
        >>> with prefetch_to_device(pipe, "cuda") as batches:  # doctest: +SKIP
        ...     for batch in batches:
        ...         train(batch["image"], batch["label"])

    Copies run on a separate stream, from page-locked memory, so they overlap the step. Your stream waits for the copy
    of a batch; your thread does not. Threads of this process decode batches straight into page-locked memory; other
    batches are copied to page-locked memory first, unless they come from ``DataLoader(pin_memory=True)``.

    Dicts, tuples, lists, jagged tensors and `NestedTensors` keep their form. Text and all other objects stay on the
    host. On ``"cpu"``, batches are passed on as they are.

    Each ``for`` is a new pass of the loader, and therefore the next epoch. Use the result in one thread.

    Args:
        loader: a `ParquetIterable`, `ParquetPipe` or `ParquetNode`, or a loader over one, such as a ``DataLoader``.
        device: a ``torch.device``, or its name or index.
        depth: how many batches are copied ahead; the device holds them in addition to yours.

    Raises:
        PipelineError: torch has no such device, or ``depth`` is below 1.
    """
    depth = operator.index(depth)
    if depth < 1:
        raise PipelineError(f"prefetch_to_device: expected depth of at least 1, got {depth}.")
    return DevicePrefetcher(loader, copies_to(device), depth=depth)


class DevicePrefetcher:
    """A loader of batches on a device; see `prefetch_to_device`. A context manager that closes itself.

    Args:
        loader: yields batches on the host.
        copies: the device; ``None`` = the host.
        depth: how many batches are copied ahead.
    """

    def __init__(self, loader: Iterable[Any], copies: DeviceCopies | None, *, depth: int) -> None:
        self._loader = loader
        self._copies = copies
        self._depth = depth
        self._pass: _Pass | None = None
        self._position: Position | None = None  # at the end of the latest pass
        self._has_begun = False  # since a state was loaded
        self._locks_pages = False

    def __iter__(self) -> Iterator[Any]:
        """Begins the next pass, and ends the previous one."""
        self._end_pass()
        if self._copies is not None and self._copies.page_lock is not None and not self._locks_pages:
            PINNED_BATCHES.acquire(self._copies.page_lock)
            self._locks_pages = True
        if self._has_begun and isinstance(self._loader, Iterator) and hasattr(self._loader, "reset"):
            self._loader.reset()  # iter() does not restart a node
        self._has_begun = True
        self._pass = _Pass(self._loader, self._copies, self._depth)
        return self._pass

    def __len__(self) -> int:
        """Returns the loader's number of batches.

        Raises:
            TypeError: the loader has no length.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state after the last batch you took; after a restore, those copied ahead come again.

        Load it with `load_state_dict`, or into the loader itself; if that is a stock ``DataLoader``, into its dataset.

        Raises:
            StateError: the loader's position is unknown, see `ParquetIterable.state_after`.
        """
        position = self._position if self._pass is None else self._pass.position
        return position_of(self._loader, 0)() if position is None else position()

    def load_state_dict(self, state_dict: dict[str, Any]) -> Self:
        """Resumes the loader from a state, for the next pass. Returns itself.

        Raises:
            StateError: the state does not fit, or the loader does not support states.
        """
        self._end_pass()
        takes = self._loader if hasattr(self._loader, "load_state_dict") else dataset_of(self._loader)
        if takes is None:
            raise StateError(
                f"load_state_dict: expected a loader with a state, got {type(self._loader).__name__} over another "
                "dataset. Use StatefulDataLoader."
            )
        takes.load_state_dict(state_dict)
        self._position, self._has_begun = None, False
        return self

    def close(self) -> None:
        """Ends the pass, waits for copies under way, and unlocks the engine's memory. Idempotent."""
        self._end_pass()
        if self._locks_pages:
            self._locks_pages = False
            PINNED_BATCHES.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._position = self._pass.position
            self._pass.close()
            self._pass = None


@dataclass(slots=True, kw_only=True)
class _Ahead:
    """A batch that was taken from the loader, or the error that it raised instead.

    Attributes:
        value: the batch on the device.
        position: the loader's position right after the batch.
        copied: the tensors of the batch that were copied.
        event: occurs when all copies are done; ``None`` if nothing was copied.
        error: the error that the loader raised instead.
    """

    position: Position
    value: Any = None
    copied: list[torch.Tensor] = field(default_factory=list)
    event: Any = None
    error: Exception | None = None


class _Pass(Iterator[Any]):
    """One pass over a loader.

    Attributes:
        position: the loader's position after the batch that was taken last.
    """

    def __init__(self, loader: Iterable[Any], copies: DeviceCopies | None, depth: int) -> None:
        self._loader = loader
        self._copies = copies
        self._depth = depth
        self._count: Callable[[float], None] | None = getattr(counted_in(loader), "_copied", None)
        self._batches = iter(loader)
        self._given = 0
        self.position = position_of(loader, 0)
        self._ahead: deque[_Ahead] = deque()
        self._sources: deque[tuple[Any, list[torch.Tensor]]] = deque()  # of copies that may be under way
        self._is_open = True
        leave_to_parent(self)
        if copies is not None:  # an abandoned pass must not free memory that is still being read
            weakref.finalize(self, _finish, copies, self._sources).atexit = False

    def __next__(self) -> Any:
        for _ in range(_AT_ONCE):
            if self._is_open and len(self._ahead) <= self._depth and not self._is_interrupted:
                self._ahead.append(self._take())
        if not self._ahead or not self._is_open:
            raise StopIteration
        first = self._ahead.popleft()
        self.position = first.position
        if isinstance(first.error, StopIteration):
            self._ahead.append(first)  # for later calls
            self._finish()
            raise StopIteration
        if first.error is not None:
            raise first.error
        return self._handed_over(first)

    def close(self) -> None:
        """Stops the loader's iterator, and waits for copies under way. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._ahead.clear()
        self._finish()
        stop = getattr(self._batches, "close", None)
        if callable(stop):
            stop()

    def forget_elements(self) -> object:
        """As `HoldsElements`."""
        ahead, self._ahead = self._ahead, deque()
        return ahead

    def _finish(self) -> None:
        if self._copies is not None:
            _finish(self._copies, self._sources)

    @property
    def _is_interrupted(self) -> bool:
        """Whether an error waits to be raised; no batch is taken before that."""
        return bool(self._ahead) and self._ahead[-1].error is not None

    def _take(self) -> _Ahead:
        try:
            batch = next(self._batches)
            self._given += 1
            ahead = _Ahead(position=position_of(self._loader, self._given), value=batch)
            return ahead if self._copies is None else self._copied(ahead, self._copies)
        except StopIteration:
            # a new one, because the frames of this one hold the pass
            return _Ahead(position=position_of(self._loader, self._given), error=StopIteration())
        except Exception as error:  # raised later, after the batches before it
            return _Ahead(position=position_of(self._loader, self._given), error=error)

    def _copied(self, ahead: _Ahead, copies: DeviceCopies) -> _Ahead:
        """Enqueues the copies of a batch; its sources are kept until they are done."""
        begin = time.perf_counter()
        self._drop_finished(copies)
        side, sources = copies.side_stream(), []

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                return tensor.to(copies.device)  # on your stream
            source = copies.pinned(tensor)
            sources.append(source)
            ahead.copied.append(copies.copy(source, side))
            return ahead.copied[-1]

        try:
            ahead.value = moved(ahead.value, copy)
        finally:
            if sources:
                ahead.event = copies.record(side)
                self._sources.append((ahead.event, sources))
        if self._count is not None:
            self._count(time.perf_counter() - begin)
        return ahead

    def _drop_finished(self, copies: DeviceCopies) -> None:
        """Drops the sources of finished copies, and waits if too many are under way."""
        while len(self._sources) > self._depth:
            copies.finish(self._sources[0][0])
            self._sources.popleft()
        while self._sources and copies.is_done(self._sources[0][0]):
            self._sources.popleft()

    def _handed_over(self, ahead: _Ahead) -> Any:
        if self._copies is not None and ahead.event is not None:
            current = self._copies.current_stream()
            self._copies.wait(current, ahead.event)
            for tensor in ahead.copied:
                self._copies.keep_for(tensor, current)
        return ahead.value


def _finish(copies: DeviceCopies, sources: deque[tuple[Any, list[torch.Tensor]]]) -> None:
    while sources:
        copies.finish(sources[0][0])
        sources.popleft()


def moved(value: object, move: Move) -> Any:
    """Returns the value with ``move(tensor)`` in place of each plain tensor, in new containers.

        >>> moved({"x": torch.ones(2), "name": ["a", "b"]}, lambda tensor: tensor + 1)
        {'x': tensor([2., 2.]), 'name': ['a', 'b']}

    Dicts, named tuples and other sequences keep their types. A jagged tensor or `NestedTensors` is moved as its values
    and offsets. A list of strings, and any other object, is the same object as before.
    """
    if isinstance(value, torch.Tensor):
        return _moved_jagged(value, move) if Jagged is not None and isinstance(value, Jagged) else move(value)
    if isinstance(value, NestedTensors):
        values = move(value.values) if isinstance(value.values, torch.Tensor) else value.values
        return NestedTensors(values, [move(offsets) for offsets in value.offsets])
    if isinstance(value, MutableMapping):
        new = {name: moved(each, move) for name, each in value.items()}
        if type(value) is dict:
            return new
        result = copy.copy(value)
        result.update(new)
        return result
    if isinstance(value, tuple):
        parts = [moved(each, move) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list) and not _is_text(value):
        return type(value)(moved(each, move) for each in value)
    return value


def _is_text(value: list[Any]) -> bool:
    """Whether the first item is text: the items of one field are of one kind, and a batch may have many."""
    return bool(value) and isinstance(value[0], str | bytes)


def _moved_jagged(tensor: Any, move: Move) -> torch.Tensor:
    parts = jagged_parts(tensor)
    if parts is None:
        return move(tensor)  # not one of this package
    values, offsets, shortest, longest = parts
    return jagged(move(values), move(offsets), shortest, longest)
