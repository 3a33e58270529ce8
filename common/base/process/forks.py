"""Keeps things usable in a forked child: `cached_property`, `ForkLock`, imports inside `importing`, and Arrow's memory.

What a child must not use, because its parent goes on with it, is left to the parent: see `leave_to_parent`.

`pc` is `pyarrow.compute`, imported when it is first used: readers that do not need it start about 10 % faster.

A fork copies every lock, but only the thread that forks. A lock that another thread held at that moment is never
released in the child. ``DataLoader`` forks its workers, often while other threads are reading.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # its hook for forks takes a lock: ours is added later, so it runs first
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import PipelineError

_MISSING = object()

if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: TID251  # type checkers see the original
else:

    class cached_property(functools.cached_property):  # noqa: N801, TID251  # named like the original
        """A property that is computed once, without a lock.

        Before Python 3.12, ``functools.cached_property`` has one lock for all instances of a class. Here, two threads
        that need the value at once may both compute it, and both get the one that was ready first.
        """

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is None:
                return self
            known = instance.__dict__
            value = known.get(self.attrname, _MISSING)
            if value is _MISSING:  # not in an except block, which errors of the function would show
                value = known.setdefault(self.attrname, self.func(instance))
            return value


class ForkLock:
    """A lock that is free in a forked child, even if it was held in the parent. Use it with ``with``.

    ``with`` looks up both methods before the block, so a child that was forked inside it releases the lock that was
    held. The methods are those of a lock of the system: between them and the block, Python code could be interrupted
    (Ctrl-C), and the lock would stay held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in _locks:
        lock._lock = threading.Lock()


class HoldsElements(Protocol):
    """An iterator that holds elements which are made already."""

    def forget_elements(self) -> object:
        """Called in a forked child: forgets the elements, and returns what holds them."""


def leave_to_parent(iterator: HoldsElements) -> None:
    """Leaves the elements that an iterator holds to its own process: in a forked child, it does not give them again.

    So the iterator need not compare processes for each element, only where it makes more of them.
    """
    _holders.add(iterator)


def begun_by_parent(process: int, called: str = "iterator") -> PipelineError:
    """The error of an iterator or reader that is used in a forked child of the process that began it."""
    instead = "Call iter() on the dataset" if called == "iterator" else f"Make the {called}"
    return PipelineError(
        f"{called}: expected process {process}, which began it, got its fork {os.getpid()}, in which the {called}'s "
        f"threads do not run. {instead} in this process, for example in each loader worker."
    )


_holders: weakref.WeakSet[HoldsElements] = weakref.WeakSet()
_forgotten: list[object] = []  # never freed here: a thread of the parent may hold the lock of their memory


_IMPORTS_WITHIN_S = 10.0  # not forever, as the import may itself wait for a fork
_imports = threading.RLock()
_forking = threading.local()


@contextmanager
def importing() -> Iterator[None]:
    """Wraps an import in a reading thread, so that forks wait until the import is done.

    Python holds a lock per module while the module is imported. In a child that was forked in the meantime, the same
    import would hang forever.
    """
    with _imports:
        yield


def load_compute() -> None:
    """Imports `pyarrow.compute`, so that no reading thread does, because Arrow's casts need it.

    Call it before threads read in a process that may be forked.
    """
    with importing():
        import pyarrow.compute  # noqa: F401


if TYPE_CHECKING:
    import pyarrow.compute

    pc = pyarrow.compute
else:

    class _Compute:
        def __getattr__(self, name: str) -> object:
            load_compute()
            value = getattr(sys.modules["pyarrow.compute"], name)
            setattr(self, name, value)
            return value

    pc = _Compute()


_READS_WITHIN_S = 0.5  # a read from a store, or a user's function, may take long


class _Reads:
    """Counts the threads inside `reading`, and keeps further ones out during a fork."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.forks = 0


_reads = _Reads()
_here = threading.local()


@contextmanager
def reading() -> Iterator[None]:
    """Wraps work with Arrow in a thread, so that forks wait until it is done, for up to half a second.

    Arrow's memory allocator has locks that a forked child can never release if another thread held them.
    """
    reads, depth = _reads, getattr(_here, "depth", 0)
    with reads.changed:
        if not depth:
            reads.changed.wait_for(lambda: not reads.forks, 2 * _READS_WITHIN_S)
        reads.inside += 1
    _here.depth = depth + 1
    try:
        yield
    finally:
        _here.depth = depth
        with reads.changed:
            reads.inside -= 1
            reads.changed.notify_all()


def _before_fork() -> None:
    _forking.waited = _forking.counted = False  # an interrupt may end this function anywhere, and the fork goes on
    own = getattr(_here, "depth", 0)
    with _reads.changed:
        _reads.forks += 1
        _forking.counted = True
        _reads.changed.wait_for(lambda: _reads.inside <= own, _READS_WITHIN_S)
    _forking.waited = _imports.acquire(timeout=_IMPORTS_WITHIN_S)  # last, because a thread that reads may import
    _wait_for_pandas()


_knows_pandas = False


def _wait_for_pandas() -> None:
    """Waits for a thread in which Arrow imports pandas. Arrow holds a lock then, which this call takes, too."""
    global _knows_pandas
    if not _knows_pandas and "pandas" in sys.modules and "pyarrow" in sys.modules:
        with suppress(Exception):
            sys.modules["pyarrow"].array([0])
        _knows_pandas = True


def _after_in_parent() -> None:
    if _forking.counted:
        with _reads.changed:
            _reads.forks -= 1
            _reads.changed.notify_all()
    if _forking.waited:
        _imports.release()


def _after_in_child() -> None:
    global _imports, _reads
    _imports, _reads = threading.RLock(), _Reads()
    _free_all()
    _forgotten.extend([iterator.forget_elements() for iterator in _holders])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
