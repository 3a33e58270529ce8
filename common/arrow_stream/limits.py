"""`ClientLimits`: how much one client may ask of a server, and how long it may take.

In: what a client sent. Out: nothing, or a `PipelineError` that names the limit. What always holds: numbers, texts and
patterns of clients are looked at here before anything is made of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, TypeVar

from ..errors import PipelineError
from ..schema.element import Element
from ..schema.plain import PlainFields
from ..transport.processes import report, start_vital
from ..transport.source import DEFAULT_MEMORY_BYTES

Value = TypeVar("Value")

_SHARDS = ("num_shards", "canonical_shards", "workers")
_BATCHES = ("batch_size", "batch_sizes", "buckets", "max_tokens")
_ROWS = ("count", "buffer_size", "rows")
_PATTERNS = ("patterns", "padded", "form")
_PLAIN_NAME = re.compile(r"[\w ./-]*")
_ONE_CHARACTER = r"(?:\\[wdsWDS.\-]|\[\^?[\w .\-]+\]|[\w ./-])"
_SIMPLE_PATTERN = re.compile(rf"(?:{_ONE_CHARACTER}[*+?]?)*")
_MOST_REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits(PlainFields):
    """What each client of a server may ask for, and how long it may take.

    Attributes:
        max_connections: open connections from one machine; all clients of a Unix socket count as one.
        hello_s: seconds that a new client has for its first request.
        idle_s: seconds that a client may neither ask nor read. A trainer that evaluates meanwhile is idle.
        plan_s: seconds that planning one request may take.
        memory_bytes: memory that one stream may fill ahead of its client (the pipeline's own ``memory_limit`` if that
            is lower), and that one batch may have; ``None`` = the pipeline's own, and 1 GiB for a batch.
        max_shards: shards, canonical shards, and loader workers.
        max_batch_rows: rows of a batch.
        max_rows: what a client may give to `take`, `skip`, `repeat` and `shuffle`.
        max_stages: stages that a client may add.
        max_request_bytes: size of a request.

    Raises:
        PipelineError: a limit that is no number above 0.
    """

    max_connections: int = 1024
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
        """The limits of texts such as ``idle_s=600``; the defaults for the rest.

        Raises:
            PipelineError: a limit that there is not, or no number.
        """
        given: dict[str, Any] = {}
        known = [item.name for item in fields(cls)]
        for text in texts:
            name, _, value = text.partition("=")
            if name not in known:
                raise PipelineError(f"limit {text!r}: expected NAME=NUMBER, where NAME is one of {known}.")
            try:
                given[name] = float(value) if name.endswith("_s") else int(value)
            except ValueError:
                raise PipelineError(f"limit {text!r}: expected a number after {name}=, got {value!r}.") from None
        return cls(**given)

    def check_request(self, request: Mapping[str, Any], names: Collection[str] = ()) -> None:
        """Refuses a request that asks for too much, before any of it is used.

        Args:
            names: of the served fields, which may hold any characters.

        Raises:
            PipelineError: it passes a limit, or is not of the protocol's types.
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
            for name in _PATTERNS:
                for pattern in set(_texts(part.get(name))).difference(names):
                    check_pattern(verb, pattern)
        seed = request.get("seed")
        if not (seed is None or (type(seed) is int and abs(seed) < 1 << 64)):
            raise PipelineError(f"request: expected seed to be a 64-bit integer, got {_short(seed)}.")

    def check_element(self, element: Element) -> None:
        """Refuses batches that would not fit: those whose fields have fixed shapes that take more memory.

        Raises:
            PipelineError: such an element.
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
    """What ``make`` returns; it is stopped where it next runs Python, once it took so long.

    Raises:
        PipelineError: it took longer.
    """
    results: list[Value] = []
    errors: list[Exception] = []

    def run() -> None:
        with contextlib.suppress(SystemExit):  # it took too long
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
        f"server: expected a request that is planned within {seconds:g} s, got one that takes longer. Ask for less, or "
        "start the server with a higher limit plan_s."
    )


def check_pattern(verb: str, pattern: str) -> None:
    """Refuses a client's regex that could take long to match.

    Accepted are names, ``|``, and characters or classes (``.``, ``\\w``, ``[a-z]``) with ``*``, ``+`` or ``?`` behind
    at most two of them. Such a pattern takes at most the square of a name's length.

    Raises:
        PipelineError: any other pattern.
    """
    if _PLAIN_NAME.fullmatch(pattern):
        return
    for part in pattern.split("|"):
        if not _SIMPLE_PATTERN.fullmatch(part) or sum(part.count(sign) for sign in "*+?") > _MOST_REPEATS:
            raise PipelineError(
                f"{verb}: expected a field's name or a simple pattern (characters, '.', '\\w', '[a-z]', at most "
                f"{_MOST_REPEATS} of '*', '+' and '?', and '|'), because it is matched on the server, got "
                f"{_short(pattern)}. Name the fields, or put the stage into the pipeline that is served."
            )


def _check_numbers(verb: str, name: str, value: object, most: int) -> None:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not -most <= number <= most:
            raise PipelineError(
                f"{verb}: expected {name} of at most {most:,} from a client, got {_short(number)}. "
                "Start the server with a higher limit if you need more."
            )


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
