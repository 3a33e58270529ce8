"""`UserFunction`: a Python callable inside an immutable pipeline: comparable, hashable, and able to travel by
cloudpickle.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from types import CodeType
from typing import Any

import cloudpickle

from .errors import PipelineError


class UserFunction:
    """A callable given by the user.

    Two are equal if they hold the same callable, or pickle to the same bytes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise PipelineError(f"user function: expected a callable, got {type(function).__name__}.")
        self.function = function

    @property
    def name(self) -> str:
        """The callable's qualified name."""
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    @cached_property
    def pickled(self) -> bytes:
        """The callable by cloudpickle.

        Raises:
            PipelineError: it cannot be pickled; says why.
        """
        try:
            return cloudpickle.dumps(self.function)
        except Exception as error:
            raise PipelineError(
                f"user function {self.name}: cannot travel to another process: {error!r}. Keep open files, locks and "
                "sessions out of it (open them inside the function), or use executor='threads'."
            ) from error

    @cached_property
    def digest(self) -> str:
        """A short name of the function's code, the same in every process that runs the same source."""
        code = getattr(self.function, "__code__", None)
        content = _code_text(code) if isinstance(code, CodeType) else self.name
        return hashlib.blake2b(f"{self.name}\0{content}".encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, str]:
        """The pickled callable, with its name for people."""
        return {"name": self.name, "pickle": base64.b64encode(self.pickled).decode("ascii")}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> UserFunction:
        """The inverse of `to_json`; runs what the pickle says, so only for pipelines that this user made."""
        return cls(cloudpickle.loads(base64.b64decode(value["pickle"])))

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserFunction):
            return NotImplemented
        return self.function is other.function or self.function == other.function or self.pickled == other.pickled

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.pickled,)

    def __repr__(self) -> str:
        return self.name


class FunctionLock:
    """Held while a function runs and what it returned is copied: functions return their own memory again, and few may
    be called by two threads at once.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _FunctionLocks:
    """The locks that somebody uses now, by the function's number."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a forked child: whoever held a lock is not there."""
        self._guard = threading.Lock()
        self._locks: weakref.WeakValueDictionary[int, FunctionLock] = weakref.WeakValueDictionary()

    def of(self, function: Callable[..., Any]) -> FunctionLock:
        """One lock for all who call this function."""
        with self._guard:
            return self._locks.setdefault(id(function), FunctionLock())


_LOCKS = _FunctionLocks()
lock_of = _LOCKS.of
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.reset)


def _unpickle(pickled: bytes) -> UserFunction:
    return UserFunction(cloudpickle.loads(pickled))


def _code_text(code: CodeType) -> str:
    constants = [_code_text(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    return f"{code.co_code.hex()}{constants}{code.co_names}"
