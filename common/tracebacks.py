"""Tracebacks of errors that are the caller's: the caller's frames and the message, without the frames between.

An error of `ParquetryError`'s tree says what is wrong and what to write instead, so where it was raised in here helps
nobody. It loses parquetry's frames where it leaves a public method (`public_methods_shorten`, once for every class with
verbs) or an iterator. Your own frames stay, also those of a function that parquetry called. Errors of any other class
keep every frame. Iterating costs nothing for it; a verb, and a row asked for by number, cost one more call.

``PARQUETRY_FULL_TRACEBACK=1`` in the environment keeps all frames.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from .errors import ParquetryError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_DUNDERS = {"__init__", "__iter__", "__len__", "__getitem__", "__getitems__", "__exit__"}


def full_tracebacks() -> bool:
    """Whether the environment asks for all frames."""
    return os.environ.get("PARQUETRY_FULL_TRACEBACK", "0") not in ("", "0")


def shorten(error: BaseException) -> None:
    """Takes parquetry's frames out of the traceback of ``error``, and of the errors that caused it, in place.

    For an ``except`` clause that raises it again.
    """
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
        if frames and _is_ours(frames[0].tb_frame):  # otherwise it was the caller's before it came here
            each.__traceback__ = _linked(_kept(frames))
        pending += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def shortens(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A public function whose errors leave it short; a wrong keyword argument says which one is near."""

    @functools.wraps(function)
    def public(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except ParquetryError as error:
            shorten(error)
            if sys.version_info < (3, 11):  # there a plain raise brings the frames back
                hidden = error.__suppress_context__
                try:
                    raise error from error.__cause__
                finally:
                    error.__suppress_context__ = hidden
            raise
        except TypeError as error:
            near = _near_keyword(function, kwargs, error)
            if near is None:
                raise
        raise TypeError(near)  # out here its context is what the caller handles

    return public


def public_methods_shorten(cls: type[_T]) -> type[_T]:
    """Does for every public method and property of a class, and of parquetry's classes below it, what `shortens` does
    for a function; once for each class.
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


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`` Did you mean 'shuffle'?`` if one of the names is near, else nothing; for the end of a message."""
    from difflib import get_close_matches  # only when something is wrong

    near = get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def missing_key(error: Exception, given: object) -> str:
    """What a row or batch has, where a function asked it for another key; for the end of a message."""
    if not isinstance(error, KeyError) or not isinstance(given, Mapping) or len(error.args) != 1:
        return ""
    if error.args[0] in given:
        return ""
    return f" It was given {', '.join(map(repr, given))}.{did_you_mean(error.args[0], map(str, given))}"


def _near_keyword(function: Callable[..., object], given: Iterable[str], error: TypeError) -> str | None:
    """The message for a keyword that ``function`` itself does not take, if another one is near."""
    called = error.__traceback__ is None or error.__traceback__.tb_next is None
    if not called or "unexpected keyword argument" not in str(error):
        return None
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    wrong = next((name for name in given if name not in known), None)
    near = did_you_mean(wrong, known)
    return f"{error}.{near}" if near else None


def _frames(first: TracebackType | None) -> Iterator[TracebackType]:
    while first is not None:
        yield first
        first = first.tb_next


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    for number, frame in enumerate(frames):
        frame.tb_next = frames[number + 1] if number + 1 < len(frames) else None
    return frames[0] if frames else None


def _kept(frames: Iterable[TracebackType]) -> list[TracebackType]:
    """Neither parquetry's frames, nor those of the standard library that it called (of a thread pool, say)."""
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
    """Whether a file is of the standard library; packages that are installed stand in a folder below it."""
    if filename.startswith("<frozen "):
        return True
    below = filename.removeprefix(_LIBRARY)
    return below != filename and not below.startswith(("site-packages", "dist-packages"))
