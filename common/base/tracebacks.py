"""Shortens the tracebacks of the caller's errors to the caller's frames and the message.

An error of `ParquetryError`'s tree says what is wrong and what to write instead, so parquetry's own frames do not help.
They are removed where the error leaves a public method (`public_methods_shorten`, once for every class with verbs) or
an iterator. Your own frames stay, including those of functions that parquetry called. Errors of other classes keep all
frames. This does not slow down iteration; a verb, and a row read by number, cost one more call.

``PARQUETRY_FULL_TRACEBACK=1`` in the environment keeps all frames.

`did_you_mean` and `instead_of` say what to write for a name of another library: a verb, or something else.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from .errors import ParquetryError, TransformError
from .urls import clean_behind

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_ELSEWHERE = {  # what pandas, polars, tf.data, torch and Petastorm call it: what it is called here
    "astype": "cast",
    "columns": "fields",
    "drop": "select",
    "drop_last": "drop_remainder",
    "drop_nulls": "nulls",
    "dropna": "nulls",
    "fields": "schema",
    "fill_null": "nulls",
    "fillna": "nulls",
    "filter": "where",
    "flip": "random_flip",
    "head": "take",
    "horizontal_flip": "random_flip",
    "limit": "take",
    "map": "transform",
    "num_workers": "workers",
    "random_split": "hash_split",
    "rank": "index",
    "reader_pool_type": "executor",
    "schema_fields": "fields",
    "workers_count": "workers",
    "world_size": "num_shards",
}
_DUNDERS = {"__init__", "__iter__", "__len__", "__getitem__", "__getitems__", "__exit__"}
_LENGTH = "len(...) counts its elements"
_LOOK = "explain() shows the plan, and the command `parquetry describe URL` the values of each field"
_SHOW = "parquetry.plot(batch) draws a batch; a notebook shows the first rows of the dataset itself"
_IMAGES = "Write a function that changes the image, for transform(fn)"
_ORDER = "Rows come in the order of the files; `parquetry rewrite URL OUT --sort-by FIELD` sorts the files"
_AHEAD = "Batches are made ahead without it"
_TABLE = "Iterate it, or read the files with pyarrow.parquet.read_table(...)"
_INSTEAD = {
    "collect": _TABLE,
    "color_jitter": _IMAGES,
    "count": _LENGTH,
    "describe": f"parquetry.describe(batch) describes a batch; {_LOOK}",
    "display": _SHOW,
    "dtypes": _LOOK,
    "info": _LOOK,
    "inspect": _LOOK,
    "jitter": _IMAGES,
    "len": _LENGTH,
    "length": _LENGTH,
    "num_rows": _LENGTH,
    "order_by": _ORDER,
    "plot": _SHOW,
    "prefetch": _AHEAD,
    "rotate": _IMAGES,
    "shape": _LOOK,
    "show": _SHOW,
    "show_batch": _SHOW,
    "size": _LENGTH,
    "sort": _ORDER,
    "sort_by": _ORDER,
    "sort_values": _ORDER,
    "stats": "Its iterator has them: iterator = iter(...), and then iterator.stats()",
    "to_pandas": _TABLE,
}


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
    """Wraps a public function to shorten its errors, and to suggest the right name for a wrong keyword argument."""

    @functools.wraps(function)
    def public(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except ParquetryError as error:
            shorten(error)
            raise
        except TypeError as error:
            near = _near_keyword(function, kwargs, error)
            if near is None:
                raise
        raise TypeError(near)  # raised here, its context is the error that the caller handles

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


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns `` Did you mean 'shuffle'?`` if a name is close to a known one, or is what other libraries call it;
    otherwise an empty string. Append it to a message.
    """
    from difflib import get_close_matches  # needed only for errors

    names = list(known)
    usual = _ELSEWHERE.get(str(name))
    same = [known for known in names if known.lower() == str(name).lower()]
    near = [usual] if usual in names else same or get_close_matches(str(name), names, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def missing_key(error: BaseException, given: object) -> str:
    """Returns the keys of a row or batch if a function asked for a missing key. Append it to a message."""
    if not isinstance(error, KeyError) or not isinstance(given, Mapping) or len(error.args) != 1:
        return ""
    if error.args[0] in given:
        return ""
    return f" It was given {', '.join(map(repr, given))}.{did_you_mean(error.args[0], map(str, given))}"


def _near_keyword(function: Callable[..., object], given: Iterable[str], error: TypeError) -> str | None:
    """Returns the message for a keyword that ``function`` itself does not accept, if another one is close."""
    called = error.__traceback__ is None or error.__traceback__.tb_next is None
    if not called or "unexpected keyword argument" not in str(error):
        return None
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    wrong = next((name for name in given if name not in known), None)
    near = did_you_mean(wrong, known)
    message = str(error).partition(". Did you mean ")[0]  # Python 3.13 suggests a name itself
    return f"{message}.{near}" if near else None


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


def instead_of(name: str) -> str:
    """Returns what to write instead of a name. Append it to a message; it is empty if the name is not known.

    >>> instead_of("count")
    ' len(...) counts its elements.'
    """
    return f" {_INSTEAD[name]}." if name in _INSTEAD else ""
