"""`ClientLimits`: how much one client may request from a server, and how long it may take.

Checks a client's request and raises a `PipelineError` that names the exceeded limit. Numbers, texts and patterns from
clients are always checked here before they are used.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, TypeVar

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..plan.options import DEFAULT_MEMORY_BYTES
from ..schema.element import Element
from ..schema.plain import PlainFields
from ..transport.processes import report, start_vital

Value = TypeVar("Value")

_SHARDS = ("num_shards", "canonical_shards", "resumed_streams", "workers")
_BATCHES = ("batch_size", "batch_sizes", "buckets", "max_tokens")
_ROWS = ("count", "buffer_size", "rows")
_PATTERNS = ("patterns", "padded", "form")
_NAMES = ("names", "form")
_PLAIN_NAME = re.compile(r"[\w ./-]*")
_ONE_CHARACTER = r"(?:\\[wdsWDS.\-]|\[\^?[\w .\-]+\]|[\w ./-])"
_SIMPLE_PATTERN = re.compile(rf"(?:{_ONE_CHARACTER}[*+?]?)*")
_MOST_REPEATS = 2
_MOST_NAME_CHARACTERS = 255
_MOST_REPEATING_CHARACTERS = 500
"""The length of all alternatives of a pattern together that have ``*``, ``+`` or ``?``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits(PlainFields):
    """How much each client of a server may request, and how long it may take.

    Attributes:
        max_connections: open connections of all clients.
        max_streams: open streams of all clients. All clients of a shared epoch count as one.
        total_memory_bytes: memory that all streams may fill ahead of their clients. The first streams get up to
            ``memory_bytes`` each, later ones less, and each of ``max_streams`` at least an equal part of one half.
            ``None`` means half of the memory of this machine or its container.
        hello_s: seconds a new client has to complete its first request.
        idle_s: seconds a client may go without a request or a read. A trainer is idle while it evaluates.
        plan_s: seconds that planning one request may take.
        memory_bytes: memory that one stream may fill ahead of its client (or the pipeline's ``memory_limit`` if that
            is lower), and the maximum size of one field in a batch. ``None`` means the pipeline's ``memory_limit``,
            and 1 GiB for the field.
        max_shards: maximum number of shards, canonical shards, and loader workers.
        max_batch_rows: maximum number of rows in a batch.
        max_rows: largest argument that a client may give to `take`, `skip`, `repeat` and `shuffle`.
        max_stages: maximum number of stages that a client may add.
        max_request_bytes: maximum size of a request.

    Raises:
        PipelineError: a limit is not a number above 0.
    """

    max_connections: int = 1024
    max_streams: int = 512
    total_memory_bytes: int | None = None
    hello_s: float = 10.0
    idle_s: float = 3600.0
    plan_s: float = 120.0
    memory_bytes: int | None = None
    max_shards: int = 65_536
    max_batch_rows: int = 1 << 20
    max_rows: int = 1 << 48
    max_stages: int = 32
    max_request_bytes: int = 1 << 18

    def check(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < float("inf")):
                raise PipelineError(f"limit {item.name}: expected a number above 0, got {value!r}.")

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ClientLimits:
        """Parses texts such as ``idle_s=600``; the other limits keep their defaults.

        Raises:
            PipelineError: a limit is unknown, or its value is not a number.
        """
        values: dict[str, Any] = {}
        known = [item.name for item in fields(cls)]
        for text in texts:
            name, _, value = text.partition("=")
            if name not in known:
                raise PipelineError(f"limit {text!r}: expected NAME=NUMBER, where NAME is one of {known}.")
            try:
                values[name] = float(value) if name.endswith("_s") else int(value)
            except ValueError:
                raise PipelineError(f"limit {text!r}: expected a number after {name}=, got {value!r}.") from None
        return cls(**values)

    def check_request(self, request: Mapping[str, Any], names: Collection[str] = ()) -> None:
        """Refuses a request that exceeds a limit, before any of it is used.

        Args:
            request: what the client sent.
            names: names of the served fields; patterns equal to one of them may contain any characters.

        Raises:
            PipelineError: the request exceeds a limit, or has the wrong types.
        """
        stages = request.get("stages") or []
        if not isinstance(stages, list) or len(stages) > self.max_stages:
            raise PipelineError(f"request: expected a list of at most {self.max_stages} stages, got {_short(stages)}.")
        for part in (request, *(entry for entry in stages if isinstance(entry, dict))):
            verb = str(part.get("verb", part.get("do")))
            for bounded, most in (
                (_SHARDS, self.max_shards),
                (_BATCHES, self.max_batch_rows),
                (_ROWS, self.max_rows),
            ):
                for name in bounded:
                    _check_numbers(verb, name, part.get(name), most)
            _check_numbers(verb, "recut", _streams_of(part.get("recut")), self.max_shards)
            for name in _NAMES:
                for text in set(_texts(part.get(name))).difference(names):
                    _check_name(verb, text)
            for name in _PATTERNS:
                for pattern in set(_texts(part.get(name))).difference(names):
                    check_pattern(verb, pattern)
        seed = request.get("seed")
        if not (seed is None or (type(seed) is int and abs(seed) < 1 << 64)):
            raise PipelineError(f"request: expected seed to be a 64-bit integer, got {_short(seed)}.")

    def check_element(self, element: Element) -> None:
        """Refuses batches in which a field of fixed shape exceeds the memory limit.

        Raises:
            PipelineError: a field is too large.
        """
        most = self.memory_bytes or DEFAULT_MEMORY_BYTES
        for leaf in element.leaves:
            size_bytes = (
                (element.batch_size or 1) * prod(length or 1 for length in leaf.element_shape) * leaf.dtype.itemsize
            )
            if size_bytes > most:
                raise PipelineError(
                    f"server: expected batches of at most {most:,} bytes, got {size_bytes:,} bytes for field "
                    f"'{leaf.name}'. Ask for smaller batches or shapes, or start the server with a higher limit "
                    "memory_bytes."
                )


def within(seconds: float, make: Callable[[], Value]) -> Value:
    """Returns ``make()``. If it takes longer than ``seconds``, it is stopped when it next runs Python code.

    Raises:
        PipelineError: ``make`` took too long.
    """
    results: list[Value] = []
    errors: list[Exception] = []

    def run() -> None:
        with contextlib.suppress(SystemExit):  # raised below when it takes too long
            try:
                results.append(make())
            except Exception as error:
                errors.append(error)

    thread = start_vital(run, name="parquetry-planning", failed=report)
    thread.join(seconds)
    if errors:
        raise errors[0]
    if results:
        return results[0]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    raise PipelineError(
        f"server: expected a request that can be planned within {seconds:g} s, got one that takes longer. Ask for "
        "less, or start the server with a higher limit plan_s."
    )


def check_pattern(verb: str, pattern: str) -> None:
    """Refuses a client's regex that could take long to match.

    It accepts names, ``|``, and characters or classes (``.``, ``\\w``, ``[a-z]``), at most two of them followed by
    ``*``, ``+`` or ``?``. The time to match such a pattern is at most the square of a name's length times the length of
    the alternatives with such signs, so both lengths are limited. No other thread runs Python code meanwhile.

    Raises:
        PipelineError: any other pattern.
    """
    if _PLAIN_NAME.fullmatch(pattern):
        return
    repeating = 0
    for part in pattern.split("|"):
        repeats = sum(part.count(sign) for sign in "*+?")
        repeating += len(part) if repeats else 0
        if not _SIMPLE_PATTERN.fullmatch(part) or repeats > _MOST_REPEATS or repeating > _MOST_REPEATING_CHARACTERS:
            raise PipelineError(
                f"{verb}: expected a field's name or a simple pattern (characters, '.', '\\w', '[a-z]', at most "
                f"{_MOST_REPEATS} of '*', '+' and '?', and '|'; at most {_MOST_REPEATING_CHARACTERS} characters around "
                f"such signs), because it is matched on the server, got {_short(pattern)}. Name the fields, or add the "
                "stage to the served pipeline."
            )


def _check_name(verb: str, name: str) -> None:
    if len(name) > _MOST_NAME_CHARACTERS:
        raise PipelineError(
            f"{verb}: expected field names of at most {_MOST_NAME_CHARACTERS} characters from a client, got "
            f"{_short(name)}. Add the stage to the served pipeline."
        )


def _check_numbers(verb: str, name: str, value: object, most: int) -> None:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not -most <= number <= most:
            raise PipelineError(
                f"{verb}: expected {name} of at most {most:,} from a client, got {_short(number)}. "
                "Start the server with a higher limit if you need more."
            )


def _streams_of(recut: object) -> list[object]:
    """Returns the numbers of streams in the JSON of a `Recut`."""
    if not isinstance(recut, dict):
        return []
    cuts = recut.get("cuts")
    return [recut.get("streams"), *(cut[-1] for cut in cuts or () if isinstance(cut, list) and cut)]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (str(key), *_texts(item))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _short(value: object) -> str:
    text = json.dumps(value) if isinstance(value, dict | list | str) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
