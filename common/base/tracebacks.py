"""Shortens the tracebacks of the caller's errors to the caller's frames and the message.

An error of `ParquetryError`'s tree says what is wrong and what to write instead, so parquetry's own frames do not help.
They are removed where the error leaves a public method (`public_methods_shorten`, once for every class with verbs) or
an iterator. Your own frames stay, including those of functions that parquetry called. Errors of other classes keep all
frames. This does not slow down iteration; a verb, and a row read by number, cost one more call.

``PARQUETRY_FULL_TRACEBACK=1`` in the environment keeps all frames.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from .errors import ParquetryError, TransformError
from .other_names import did_you_mean
from .urls import clean_behind

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_DUNDERS = {"__init__", "__iter__", "__len__", "__getitem__", "__getitems__", "__exit__"}


def full_tracebacks() -> bool:
    """Returns whether the environment asks for all frames."""
    return os.environ.get("PARQUETRY_FULL_TRACEBACK", "0") not in ("", "0")


def shorten(error: BaseException) -> None:
    """Removes parquetry's frames from the traceback of ``error`` and of the errors that caused it, in place.

    Also removes the secrets of URLs from the errors of other libraries that caused it. What your own function raised
    stays as it is. Call it in an ``except`` clause that re-raises the error.
    """
    if isinstance(error, ParquetryError) and not isinstance(error, TransformError):
        clean_behind(error)
    if full_tracebacks():
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        frames = list(_frames(each.__traceback__))
        if frames and _is_ours(frames[0].tb_frame):  # otherwise the error began outside parquetry
            each.__traceback__ = _linked(_kept(frames))
        pending += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def shortens(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wraps a public function to shorten its errors, and to say which arguments it takes if it was given others."""

    @functools.wraps(function)
    def public(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except ParquetryError as error:
            shorten(error)
            raise
        except TypeError as error:
            wrong = _wrong_call(function, args, kwargs, error)
            if wrong is None:
                raise
        raise TypeError(wrong)  # raised here, its context is the error that the caller handles

    return public


def public_methods_shorten(cls: type[_T]) -> type[_T]:
    """Applies `shortens` to every public method and property of a class and of its base classes in parquetry, once per
    class.
    """
    for base in cls.__mro__:
        if not base.__module__.startswith("parquetry.") or "_errors_are_short" in vars(base):
            continue
        for name, member in list(vars(base).items()):
            if name.startswith("_") and name not in _DUNDERS:
                continue
            if inspect.isfunction(member):
                setattr(base, name, shortens(member))
            elif isinstance(member, classmethod):
                setattr(base, name, classmethod(shortens(member.__func__)))
            elif isinstance(member, property) and member.fget is not None:
                setattr(base, name, property(shortens(member.fget), member.fset, member.fdel, member.__doc__))
        base._errors_are_short = True  # type: ignore[attr-defined]
    return cls


def missing_key(error: BaseException, given: object) -> str:
    """Returns the keys of a row or batch if a function asked for a missing key. Append it to a message."""
    if not isinstance(error, KeyError) or not isinstance(given, Mapping) or len(error.args) != 1:
        return ""
    if error.args[0] in given:
        return ""
    return f" It was given {', '.join(map(repr, given))}.{did_you_mean(error.args[0], map(str, given))}"


def _wrong_call(
    function: Callable[..., object], args: tuple[object, ...], given: Mapping[str, object], error: TypeError
) -> str | None:
    """Returns the message for arguments that ``function`` itself does not accept: the name that the caller knows, what
    is wrong, and the argument that is near or those that there are. ``None`` for other errors.
    """
    called = error.__traceback__ is None or error.__traceback__.tb_next is None
    if not called or function.__qualname__ not in str(error):
        return None
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    said = str(error).partition(". Did you mean ")[0]  # Python 3.13 suggests a name itself
    public = type(args[0]).__name__ if function.__name__ == "__init__" and args else function.__name__
    said = said.replace(f"{function.__qualname__}()", f"{public}()", 1)
    wrong = next((name for name in given if name not in known), None)
    takes = f" It takes {', '.join(known)}." if known else ""
    return f"{said}.{(wrong is not None and did_you_mean(wrong, known)) or takes}"


def _frames(first: TracebackType | None) -> Iterator[TracebackType]:
    while first is not None:
        yield first
        first = first.tb_next


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    for number, frame in enumerate(frames):
        frame.tb_next = frames[number + 1] if number + 1 < len(frames) else None
    return frames[0] if frames else None


def _kept(frames: Iterable[TracebackType]) -> list[TracebackType]:
    """Drops parquetry's frames, and frames of the standard library that parquetry called (such as a thread pool's)."""
    kept = []
    after_ours = False
    for each in frames:
        after_ours = _is_ours(each.tb_frame) or (after_ours and _is_of_python(each.tb_frame.f_code.co_filename))
        if not after_ours:
            kept.append(each)
    return kept


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("parquetry.")


def _is_of_python(filename: str) -> bool:
    """Returns whether a file is in the standard library. Installed packages are in a folder below it."""
    if filename.startswith("<frozen "):
        return True
    below = filename.removeprefix(_LIBRARY)
    return below != filename and not below.startswith(("site-packages", "dist-packages"))
