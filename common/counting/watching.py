"""`watch` shows a loader's stats as one live line while you iterate; `observe` exports OpenTelemetry metrics."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

from ..errors import ParquetryError, PipelineError
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
            shown, given = time.perf_counter(), False
            for element in iterator:
                yield element
                given = True
                if line.seen and time.perf_counter() - shown > _EVERY_S:
                    line.show(stats().line())
                    shown = time.perf_counter()
            if given and line.seen:
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
    seen: dict[int, object] = {}  # keeps objects alive, so ids stay unique
    waiting: deque[Any] = deque([loader])
    while waiting and len(seen) < _SEARCHED:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if type(value).__module__.startswith("parquetry.") and callable(getattr(type(value), "stats", None)):
            found: Callable[[], LoaderStats] = value.stats
            return found
        inputs = getattr(type(value), "_inputs", None)  # tf.data datasets have this
        waiting.extend(inputs(value) if inputs is not None else [])
        parts = value[:_SEARCHED] if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
        waiting.extend(part for part in parts if hasattr(part, "__dict__") or isinstance(part, (list, tuple)))
    return None


class _Line:
    """One line that is updated in place on the terminal or in a notebook's output."""

    def __enter__(self) -> _Line:
        self._live: Any = None
        self._width = 0
        self._notebook = "ipykernel" in sys.modules
        self.seen = self._notebook or (sys.stderr is not None and sys.stderr.isatty())
        return self

    def show(self, text: str) -> None:
        if self._notebook:
            print("\r" + text.ljust(self._width), end="", flush=True)
            self._width = len(text)
            return
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False)
            self._live.start()
        self._live.update(text, refresh=True)

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._width:
            print()


def observe(loader: object, attributes: Mapping[str, str] | None = None, *, meter: Any = None) -> None:
    """Exports a loader's stats as OpenTelemetry metrics: gauges ``parquetry.rows_per_s``, ``parquetry.wait_s``, etc.

    Each export of your meter provider reads all of them at the same moment, until the loader is garbage-collected.
    The package ``opentelemetry-api`` must be installed.

    >>> rows = ParquetIterable("data/train").batch(64)  # doctest: +SKIP
    >>> parquetry.observe(rows, {"split": "train"})  # doctest: +SKIP

    Args:
        loader: what you iterate; see `watch`. For a `Pipeline`, pass an iterator of it, not the pipeline itself.
        attributes: the attributes of every measurement.
        meter: the meter to use instead of the global meter named ``parquetry``.

    Raises:
        PipelineError: the loader reads no parquetry data.
        ImportError: OpenTelemetry is not installed.
    """
    stats = stats_of(loader)
    if stats is None:
        raise PipelineError(
            f"observe: expected a parquetry dataset or iterator, or a loader over one, got {type(loader).__name__}. "
            "For a Pipeline, pass the iterator: batches = iter(pipeline)."
        )
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "parquetry.observe needs OpenTelemetry, which is not installed. Install it with: "
            "pip install opentelemetry-api",
            name=error.name,
        ) from None

    chosen = metrics.get_meter("parquetry") if meter is None else meter
    snapshots = _Snapshots(WeakMethod(stats))
    for name in LoaderStats.numbers():
        measure = partial(_measured, snapshots, name, dict(attributes or {}), metrics.Observation)
        chosen.create_observable_gauge(f"parquetry.{name}", callbacks=[measure], description=name.replace("_", " "))


class _Snapshots:
    """A loader's numbers, taken once for all gauges of an export. A gauge that asks again starts the next snapshot."""

    def __init__(self, stats: WeakMethod[Callable[[], LoaderStats]]) -> None:
        self._stats = stats
        self._lock = threading.Lock()
        self._left: dict[str, float] = {}

    def take(self, name: str) -> float | None:
        """Returns a number of the current snapshot, or ``None`` if there is no data or the loader is gone."""
        with self._lock:
            if name not in self._left:
                stats = self._stats()
                try:
                    self._left = {} if stats is None else dict(stats().scalars())
                except ParquetryError:  # nothing has been iterated yet
                    self._left = {}
            return self._left.pop(name, None)


def _measured(
    snapshots: _Snapshots, name: str, attributes: dict[str, str], observation: Any, options: object
) -> Iterable[Any]:
    value = snapshots.take(name)
    return [] if value is None else [observation(value, attributes)]
