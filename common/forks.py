"""What stays usable in a forked child: `cached_property`, `ForkLock`, and modules that are imported under `importing`.

A fork copies every lock, but only the thread that forks. A lock that another thread held at that moment is never
released in the child. ``DataLoader`` forks its workers, often beside threads that read.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: TID251  # to type checkers it is that one
else:

    class cached_property(functools.cached_property):  # noqa: N801, TID251  # as the one that it replaces
        """A property that is computed once, without a lock.

        Before Python 3.12, ``functools.cached_property`` has one lock for all instances of a class. Two threads that
        need the value at once may both compute it here; both get the one that was ready first.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            known = instance.__dict__
            try:
                return known[self.attrname]
            except KeyError:
                return known.setdefault(self.attrname, self.func(instance))


class ForkLock:
    """A lock that is free in a forked child, whoever held it in the parent. Use it with ``with``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock.locked():  # not in a child that was forked in between
            self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in _locks:
        lock._lock = threading.Lock()


_IMPORTS_WITHIN_S = 10.0  # a fork in the middle of an import may be what another import waits for
_imports = threading.RLock()
_forking = threading.local()


@contextmanager
def importing() -> Iterator[None]:
    """Around an import in a thread that reads: forks wait for its end.

    Python has a lock for each module, held while the module is imported. In a child that was forked meanwhile, the same
    import would wait forever.
    """
    with _imports:
        yield


def _wait_for_imports() -> None:
    _forking.waited = _imports.acquire(timeout=_IMPORTS_WITHIN_S)


def _let_imports_go_on() -> None:
    if _forking.waited:
        _imports.release()


def _begin_in_child() -> None:
    global _imports
    _imports = threading.RLock()
    _free_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_parent=_let_imports_go_on, after_in_child=_begin_in_child)
