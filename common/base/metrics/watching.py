"""`watch` shows a loader's stats as one live line while you iterate."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TextIO, TypeVar

from ..errors import PipelineError
from .loader_stats import LoaderStats

_Element = TypeVar("_Element")
_EVERY_S = 0.5
_SEARCHED = 1000


class Watched(Generic[_Element]):
    """A loader that shows its stats while it is iterated; see `watch`."""

    def __init__(self, loader: Iterable[_Element]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[_Element]:
        iterator = iter(self._loader)
        stats = stats_of(iterator) or stats_of(self._loader)
        if stats is None:
            raise PipelineError(
                f"watch: expected a parquetry pipeline or dataset, or a loader over one, got "
                f"{type(self._loader).__name__}."
            )
        with _Line() as line:
            shown, has_elements = time.perf_counter(), False
            for element in iterator:
                yield element
                has_elements = True
                if line.seen and time.perf_counter() - shown > _EVERY_S:
                    line.show(stats().line())
                    shown = time.perf_counter()
            if has_elements and line.seen:
                line.show(stats().line())

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises if the loader has no length


def watch(loader: Iterable[_Element]) -> Watched[_Element]:
    """Iterates a loader and shows one line that is kept up to date: the verdict, rates, and how long you waited.

    >>> loader = DataLoader(ParquetIterable("data/train").batch(64), batch_size=None)  # doctest: +SKIP
    >>> for batch in parquetry.watch(loader): train(batch)  # doctest: +SKIP
    input-bound: 5,120 rows/s, read 210.3 MB/s, waited 84%, 1,200 elements

    Nothing is shown without a terminal or a notebook.

    Args:
        loader: a `Pipeline`, a parquetry dataset, pipe or node, or a loader or dataset over one.

    Raises:
        PipelineError: the loader reads no parquetry data (raised when it is iterated).
    """
    return Watched(loader)


def stats_of(loader: object) -> Callable[[], LoaderStats] | None:
    """Returns the `stats` method of a loader, or of the first parquetry object that it iterates, or ``None``."""
    return getattr(counted_in(loader), "stats", None)


def counted_in(loader: object) -> object:
    """Returns the loader if it has `stats`, or the first parquetry object with them that it iterates, or ``None``."""
    seen: dict[int, object] = {}  # keeps objects alive, so ids stay unique
    waiting: deque[Any] = deque([loader])
    while waiting and len(seen) < _SEARCHED:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if type(value).__module__.startswith("parquetry.") and callable(getattr(type(value), "stats", None)):
            return value
        inputs = getattr(type(value), "_inputs", None)  # tf.data datasets have this
        waiting.extend(inputs(value) if inputs is not None else [])
        parts = value[:_SEARCHED] if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
        waiting.extend(part for part in parts if hasattr(part, "__dict__") or isinstance(part, (list, tuple)))
    return None


class _Line:
    """One line that is updated in place on the terminal or in a notebook's output."""

    def __enter__(self) -> _Line:
        self._width = 0
        self._notebook = "ipykernel" in sys.modules
        self.seen = self._notebook or (sys.stderr is not None and sys.stderr.isatty())
        return self

    def show(self, text: str) -> None:
        if not self._notebook:  # a line that wraps could not be replaced
            text = text[: shutil.get_terminal_size().columns - 1]
        print("\r" + text.ljust(self._width), end="", flush=True, file=self._file)
        self._width = len(text)

    def __exit__(self, *_: object) -> None:
        if self._width:
            print(file=self._file)

    @property
    def _file(self) -> TextIO:
        return sys.stdout if self._notebook else sys.stderr
