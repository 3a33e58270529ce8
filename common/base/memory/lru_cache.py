"""`LRUCache`: a cache of the values that were used last, limited in number or in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from ..process.forks import ForkLock

Key = TypeVar("Key")
Value = TypeVar("Value")


def _one(value: object) -> int:
    return 1


class LRUCache(Generic[Key, Value]):
    """Keeps the most recently used values, and at least one. Thread-safe, and usable in a forked child.

    A pickled one arrives empty.

    Args:
        limit: the largest sum of sizes.
        size_of: returns the size of a value. By default, each counts as one.

    Attributes:
        size: the sum of the sizes of the values that are kept.
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int] = _one) -> None:
        self.limit = limit
        self.size = 0
        self._size_of = size_of
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = ForkLock()
        self._making: WeakValueDictionary[Key, ForkLock] = WeakValueDictionary()

    def __reduce__(self) -> tuple[object, ...]:
        return LRUCache, (self.limit, self._size_of)

    def get(self, key: Key) -> Value | None:
        """Returns a value, or ``None`` if it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Key, value: Value) -> None:
        """Keeps a value, unless one is kept under this key."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self.size += self._size_of(value)
            self._drop_oldest()

    def limit_to(self, limit: int) -> None:
        with self._lock:
            self.limit = limit
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self.size > self.limit and len(self._kept) > 1:
            self.size -= self._size_of(self._kept.popitem(last=False)[1])

    def replace(self, key: Key, value: Value) -> None:
        """Keeps a value in place of the one that is kept under this key."""
        with self._lock:
            before = self._kept.pop(key, None)
            if before is not None:
                self.size -= self._size_of(before)
        self.keep(key, value)

    def made(
        self, key: Key, make: Callable[[], Value], is_enough: Callable[[Value], bool] = lambda value: True
    ) -> Value:
        """Returns a value. If it is not kept, makes and keeps it, while other threads that need it wait.

        If that raises an error, the next thread tries again.

        Args:
            is_enough: whether a kept value will do. Otherwise, a new one replaces it.
        """
        value = self.get(key)
        if value is not None and is_enough(value):
            return value
        with self._lock:
            lock = self._making.setdefault(key, ForkLock())
        with lock:
            value = self.get(key)
            if value is None or not is_enough(value):
                value = make()
                self.replace(key, value)
        return value

    def clear(self) -> None:
        """Drops every value."""
        with self._lock:
            self._kept.clear()
            self.size = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)
