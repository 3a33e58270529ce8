"""`UserFunction`: wraps a Python callable so that an immutable pipeline can compare, hash and cloudpickle it."""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import io
import logging
import os
import random
import re
import sys
import threading
import weakref
from collections import ChainMap, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing.context import get_spawning_popen
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from ..base.errors import PipelineError
from ..base.process.forks import cached_property, importing

_EXACT = (
    bool | int | float | complex | str | bytes | None | EllipsisType | range | np.generic | PurePath
    | datetime.date | datetime.time | datetime.timedelta | decimal.Decimal
)  # fmt: skip
"""Types whose ``repr`` identifies the value completely."""

_REWRITTEN = b"__autograph_generated_file"  # the name of the file of such a function
_OF_AUTOGRAPH = (b"FunctionScope", b"converted_call")  # what it calls, and unpickled functions do not find

_GENERATORS = [
    *(("numpy.random", name) for name in ("Generator", "RandomState", "BitGenerator")),
    ("torch", "Generator"),
]

_LOGGER = logging.getLogger(__name__)
_MOST_CARRIED = 1_000  # objects to search, nearest first
_SPAWNED_MAIN = "__mp_main__"
"""What ``multiprocessing`` calls the main program in processes that it spawns."""


class UserFunction:
    """A callable passed by the user.

    Two are equal if they hold the same callable, or pickle to the same bytes. ``digest`` identifies the function's
    behavior (see `digest_of`). It is computed here, because calls may change a function's state, and is pickled with
    the function.

    Attributes:
        name: the callable's qualified name.
        digest: see above.
    """

    def __init__(self, function: Callable[..., Any], digest: str | None = None) -> None:
        if not callable(function):
            raise PipelineError(f"user function: expected a callable, got {type(function).__name__}.")
        self.function = function
        self.name: str = getattr(function, "__qualname__", type(function).__qualname__)
        self.digest = digest or digest_of(function)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The callable. One from JSON is unpickled on first use: that imports its modules, perhaps a framework, which
        a process that only plans does not need.

        Raises:
            PipelineError: it cannot be unpickled here; the message gives the reason.
        """
        with importing():
            return _loaded(self._pickled, self.name)

    @property
    def pickled(self) -> bytes:
        """The callable, serialized with cloudpickle.

        Raises:
            PipelineError: the callable cannot be pickled; the message gives the reason.
        """
        return self._pickled_for_this_program if _runs_this_program() else self._pickled

    @cached_property
    def _pickled(self) -> bytes:
        return self._pickle()

    @cached_property
    def _pickled_for_this_program(self) -> bytes:
        return self._pickle()

    def _pickle(self) -> bytes:
        try:
            pickled = pickle_with_files(self.function)
        except Exception as error:
            raise PipelineError(
                f"user function {self.name}: cannot travel to another process: {error!r}. Keep open files, locks and "
                "sessions out of it (open them inside the function), or use executor='threads'."
            ) from error
        if _REWRITTEN in pickled and any(name in pickled for name in _OF_AUTOGRAPH):
            raise PipelineError(
                f"user function {self.name}: TensorFlow's AutoGraph has rewritten it, because it is created inside a "
                "function that TensorFlow traces. It would fail in another process. Define it outside of that function."
            )
        return pickled

    def to_json(self) -> dict[str, str]:
        """The pickled callable, with its name for human readers."""
        return {"name": self.name, "digest": self.digest, "pickle": base64.b64encode(self.pickled).decode("ascii")}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> UserFunction:
        """The inverse of `to_json`. Using the function runs pickled code, so only load pipelines that you created
        yourself.
        """
        pickled = base64.b64decode(value["pickle"])
        if "digest" not in value:
            return cls(_loaded(pickled, value["name"]))
        made = cls.__new__(cls)
        made.name, made.digest = value["name"], value["digest"]
        made._pickled = made._pickled_for_this_program = pickled
        return made

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserFunction):
            return NotImplemented
        loaded = "function" in vars(self) and "function" in vars(other)
        if loaded and (self.function is other.function or self.function == other.function):
            return True
        try:
            return self.pickled == other.pickled
        except PipelineError:  # one of them cannot be pickled
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.pickled, self.digest, self.name)

    def __repr__(self) -> str:
        return self.name


class FunctionLock:
    """Held while a function runs and its result is copied: functions may reuse the memory they return, and few are
    thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _FunctionLocks:
    """The locks in use, by the ``id`` of their function."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts afresh in a forked child, where the threads that held locks do not exist."""
        self._guard = threading.Lock()
        self.by_value = threading.RLock()  # held while modules that cloudpickle takes by value are not the usual ones
        self._locks: weakref.WeakValueDictionary[int, FunctionLock] = weakref.WeakValueDictionary()

    def of(self, function: Callable[..., Any]) -> FunctionLock:
        """The lock that all callers of this function share."""
        with self._guard:
            return self._locks.setdefault(id(function), FunctionLock())


_LOCKS = _FunctionLocks()
lock_of = _LOCKS.of
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.reset)


def pickle_with_files(value: object) -> bytes:
    """Returns ``value``, serialized with cloudpickle; functions keep the names of their files, for tracebacks.

    Since version 3.1.3, cloudpickle itself leaves these names out.

    Whatever the trainer's own program defines is sent by value to processes that do not run that program.
    """
    with _program_by_value(), io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _runs_this_program() -> bool:
    """Whether this thread pickles for a process that ``multiprocessing`` starts, which runs the program again."""
    return get_spawning_popen() is not None


@contextmanager
def _program_by_value() -> Iterator[None]:
    """Lets cloudpickle treat the main program of a spawned process as it treats ``__main__``."""
    program = sys.modules.get(_SPAWNED_MAIN)
    if program is None or program.__name__ != _SPAWNED_MAIN or _runs_this_program():
        yield
        return
    with _LOCKS.by_value:
        before = _SPAWNED_MAIN in cloudpickle.list_registry_pickle_by_value()
        cloudpickle.register_pickle_by_value(program)
        try:
            yield
        finally:
            if not before:  # others use cloudpickle, too
                cloudpickle.unregister_pickle_by_value(program)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code_in_file, (make, arguments, code.co_filename)


def _code_in_file(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Mapping[type, Any]] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )


def _unpickle(pickled: bytes, digest: str, name: str) -> UserFunction:
    return UserFunction(_loaded(pickled, name), digest)


def _loaded(pickled: bytes, name: str) -> Callable[..., Any]:
    """Unpickles a function that another process sent.

    Raises:
        PipelineError: it cannot be unpickled here; the message gives the reason.
    """
    try:
        function: Callable[..., Any] = cloudpickle.loads(pickled)
    except Exception as error:
        raise PipelineError(
            f"user function {name}: cannot be loaded in another process: {error!r}. Define it, and what it uses, in "
            "your program or in modules that can be imported there, or use executor='threads'."
        ) from error
    return function


def digest_of(function: Callable[..., Any]) -> str:
    """A short hash of what a function does, the same in every process that runs the same source.

    It covers the code, defaults, closure, arguments of ``partial``, attributes of a callable object, and the numbers,
    strings and functions of its own module that the function refers to. For other objects, only the type counts.
    """
    hasher = hashlib.blake2b(digest_size=8)
    _feed(function, hasher.update, (), callee=True)
    return hasher.hexdigest()


def warn_of_generators(verb: str, function: object, consequence: str) -> None:
    """Warns if a function carries a random generator: each process that runs it would have a copy of it.

    Args:
        verb: the verb that takes the function.
        consequence: what follows from that, and what to write instead; sentences.
    """
    kind = next((type(each).__qualname__ for each in _carried(function) if _is_generator(each)), None)
    if kind is not None:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        _LOGGER.warning("%s: %s carries a %s. %s", verb, name, kind, consequence)


def _is_generator(value: object) -> bool:
    """Whether a value is a random generator of Python, numpy or torch. A module that is not imported has none."""
    return isinstance(value, random.Random) or any(
        isinstance(value, getattr(sys.modules.get(module), name, ())) for module, name in _GENERATORS
    )


def _carried(value: object) -> Iterator[object]:
    """Yields what a function holds, directly or in functions, containers and objects that it holds."""
    seen: dict[int, Any] = {}  # kept alive, so that ids stay unique
    pending: deque[Any] = deque([value])
    while pending and len(seen) < _MOST_CARRIED:
        each = pending.popleft()
        if id(each) in seen or isinstance(each, _EXACT | CodeType | type | ModuleType | np.ndarray):
            continue
        seen[id(each)] = each
        yield each
        with suppress(Exception):  # objects of users may refuse to be looked into
            pending += islice(_parts(each, callee=True), _MOST_CARRIED)
            if isinstance(each, FunctionType):
                pending += _referenced(each).values()


def _feed(value: object, put: Callable[[bytes], None], above: tuple[int, ...], *, callee: bool = False) -> None:
    put(f"{type(value).__qualname__}\0".encode())
    if id(value) in above:
        return
    above = (*above, id(value))
    if isinstance(value, set | frozenset):
        put(b"".join(sorted(_feed_alone(item, above) for item in value)))
        return
    if isinstance(value, np.ndarray) and value.dtype != object:
        put(f"{value.dtype.str} {value.shape}\0".encode())
        put(np.ascontiguousarray(value).tobytes())
        return
    for part in _parts(value, callee=callee):
        if isinstance(part, _Text):
            put(part.encode() + b"\0")
        else:
            _feed(part, put, above)


def _feed_alone(value: object, above: tuple[int, ...]) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    _feed(value, hasher.update, above)
    return hasher.digest()


class _Text(str):
    """Text that describes a value, as opposed to a value that is a string."""


def _parts(value: object, *, callee: bool) -> Iterator[Any]:
    """Yields the parts of a value that identify it."""
    if isinstance(value, _EXACT):
        yield _Text(repr(value))
    elif isinstance(value, tuple | list):
        yield _Text(len(value))
        yield from value
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, CodeType):
        yield _Text(value.co_code.hex())
        yield from (value.co_consts, value.co_names)
    elif isinstance(value, FunctionType):
        yield _Text(value.__qualname__)
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
        yield [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        yield _globals_of(value)
    elif isinstance(value, MethodType):
        yield value.__func__
        yield from _parts(value.__self__, callee=True)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, re.Pattern):
        yield from (value.pattern, value.flags)
    elif isinstance(value, type | ModuleType | BuiltinFunctionType):
        yield _Text(getattr(value, "__qualname__", value.__name__))
    elif callee:
        yield vars(type(value)).get("__call__")
        yield getattr(value, "__dict__", None)


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:  # not filled yet
        return True


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """The globals that a function refers to: plain values, and functions defined in the same module."""
    references = _referenced(function)
    own = {name for name, value in references.items() if getattr(value, "__module__", None) == function.__module__}
    return {
        name: value
        for name, value in references.items()
        if isinstance(value, _EXACT | tuple | frozenset) or (name in own and isinstance(value, FunctionType))
    }


def _referenced(function: FunctionType) -> dict[str, Any]:
    """The globals that a function refers to."""
    pending, names = [function.__code__], set[str]()
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [item for item in code.co_consts if isinstance(item, CodeType)]
    return {name: function.__globals__[name] for name in sorted(names & function.__globals__.keys())}
