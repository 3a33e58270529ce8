"""`LoaderStats`: what an iteration has done so far, whether the loader or the model is slow, and what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from html import escape
from typing import Any, Literal, get_args

from ..process.dataclass import dataclass
from ..text_table import WIDTH, TextTable, counted
from .counters import Count
from .tally import Waits

STORE, PARQUET, DECODE, WORK, HAND_OVER = "store", "parquet", "decode", "work on values", "hand-over"
DEVICE_COPY, UNEXPLAINED = "device copy", "unexplained"
Verdict = Literal["input-bound", "model-bound", "store-bound", "too early"]
_ENOUGH_ELEMENTS = 10
_ENOUGH_S = 0.5
_LITTLE_WAIT = 0.1
_WORTH_NAMING = 0.001
_MB = 1e6
_NO_NUMBERS = ("verdict", "why", "waits", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row that ``on_error="skip"`` left out. For a window, it is the first row.

    Attributes:
        file: the path of the file, without the query of a URL.
        row_group, row: the row group in the file, and the row in the row group, both from 0.
        cause: the class of the error that it caused.
    """

    file: str
    row_group: int
    row: int
    cause: str

    def __str__(self) -> str:
        return f"{self.cause} in {self.file}, row group {self.row_group}, row {self.row}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What is known about a chain of verbs.

    Attributes:
        cached: whether what is read is cached.
        resizes: whether images are scaled.
        remote: whether the files are on a remote store.
        costly: whether fields are costly to decode, as images are.
        functions: the names of user functions that are called for each row.
        batch_functions: those of user functions that are called for each batch.
    """

    cached: bool = False
    resizes: bool = False
    remote: bool = False
    costly: bool = False
    functions: tuple[str, ...] = ()
    batch_functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoaderStats:
    """What one epoch of a loader has done so far. Seconds of stages are summed over threads and processes.

    >>> batches = iter(Pipeline("data/train").batch(64))  # doctest: +SKIP
    >>> for batch in batches: train(batch)  # doctest: +SKIP
    >>> print(batches.stats())  # doctest: +SKIP
    model-bound: after the first element, you waited for data 1% of the time. The model is the slower side; ...

    Attributes:
        verdict: ``"input-bound"`` means the loader is slower than you; ``"store-bound"`` the same, because the disk or
            network is slow; ``"model-bound"`` means you are slower than the loader; ``"too early"`` means fewer than 10
            elements or less than half a second.
        why: the reason, and what to change.
        rows, elements: delivered so far. An element is a batch, or a row without ``batch()``.
        startup_s: time until the first element: planning, starting processes, loading the first row groups.
        seconds: time from the first element to the latest.
        wait_s: the part of ``seconds`` that you waited for elements.
        waits: how long you waited in all, by cause.
        store_s: time that reading waited for the disk or the network.
        parquet_s: time for reading and decompressing row groups and building columns.
        decode_s: time for decoding values and gathering them into batches.
        transform_s: time in your functions, and in verbs that work on values.
        hand_over_s: time for converting batches to the form or the memory that you get.
        blocked_s: time that making batches waited for row groups.
        read_bytes: stored bytes that were read.
        delivered_bytes: bytes of the batches.
        cache_hits, cache_misses: row groups that were, and were not, in ``cache()``.
        filtered_rows: rows in the row groups read that a filter, ``take``, ``shard`` or another verb left out. With
            loader workers, an estimate.
        retries: jobs that were repeated because a worker process died or one of their elements failed.
        failed_elements: elements that raised an error and were skipped.
        restarts: sidecars that were restarted after one died.
        skipped_decode, skipped_null, skipped_transform: rows that ``on_error="skip"`` left out because a value did not
            decode, was a null that the consumer cannot represent, or made a function fail.
        memory_bytes: the current size of loaded row groups, and of batches that wait for you.
        skipped: the first hundred rows that were left out.
    """

    verdict: Verdict
    why: str
    rows: int
    elements: int
    startup_s: float
    seconds: float
    wait_s: float
    waits: Waits
    store_s: float
    parquet_s: float
    decode_s: float
    transform_s: float
    hand_over_s: float
    blocked_s: float
    read_bytes: int
    delivered_bytes: int
    cache_hits: int
    cache_misses: int
    filtered_rows: int
    retries: int
    failed_elements: int
    restarts: int
    skipped_decode: int
    skipped_null: int
    skipped_transform: int
    memory_bytes: int
    skipped: tuple[SkippedRow, ...] = ()

    @classmethod
    def of(
        cls, totals: Mapping[Count, float], chain: Chain | None = None, skipped: Sequence[SkippedRow] = ()
    ) -> LoaderStats:
        """Builds stats from counters. ``chain`` improves the advice, and ``skipped`` names rows that were left out."""
        began, first, last = totals[Count.BEGAN], totals[Count.FIRST], totals[Count.LAST]
        begun = first > began  # otherwise the times are from an earlier epoch
        seconds = max(last - first, 0.0) if begun else 0.0
        wait = min(totals[Count.WAIT_S], seconds)
        startup = first - began if begun else 0.0
        waits = Waits.of(totals, startup, wait)
        verdict, why = judge(int(totals[Count.ELEMENTS]), seconds, waits, chain or Chain())
        return cls(
            verdict=verdict,
            why=why,
            rows=int(totals[Count.ROWS]),
            elements=int(totals[Count.ELEMENTS]),
            startup_s=startup,
            seconds=seconds,
            wait_s=wait,
            waits=waits,
            store_s=totals[Count.STORE_S],
            parquet_s=totals[Count.PARQUET_S],
            decode_s=totals[Count.DECODE_S],
            transform_s=totals[Count.TRANSFORM_S],
            hand_over_s=totals[Count.HAND_OVER_S],
            blocked_s=totals[Count.BLOCKED_S],
            read_bytes=int(totals[Count.READ_BYTES]),
            delivered_bytes=int(totals[Count.DELIVERED_BYTES]),
            cache_hits=int(totals[Count.CACHE_HITS]),
            cache_misses=int(totals[Count.CACHE_MISSES]),
            filtered_rows=round(totals[Count.FILTERED_ROWS]),
            retries=int(totals[Count.RETRIES]),
            failed_elements=int(totals[Count.FAILED]),
            restarts=int(totals[Count.RESTARTS]),
            skipped_decode=int(totals[Count.SKIPPED_DECODE]),
            skipped_null=int(totals[Count.SKIPPED_NULL]),
            skipped_transform=int(totals[Count.SKIPPED_TRANSFORM]),
            skipped=tuple(skipped),
            memory_bytes=max(int(totals[Count.MEMORY_BYTES]), 0),
        )

    @property
    def skipped_rows(self) -> int:
        """The number of rows that ``on_error="skip"`` left out."""
        return self.skipped_decode + self.skipped_null + self.skipped_transform

    @property
    def rows_per_s(self) -> float:
        """Rows per second since the first element, including your own work."""
        return self._after_first(self.rows)

    @property
    def elements_per_s(self) -> float:
        """Elements per second since the first one, including your own work."""
        return self._after_first(self.elements)

    @property
    def delivered_mb_per_s(self) -> float:
        """Megabytes (1e6 bytes) of batches per second since the first element."""
        return self._after_first(self.delivered_bytes) / _MB

    @property
    def read_mb_per_s(self) -> float:
        """Megabytes (1e6 bytes) read per second from the very start, because reading runs ahead."""
        total = self.startup_s + self.seconds
        return self.read_bytes / total / _MB if total else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time since you asked for the first element that you waited for data, 0 to 1."""
        return sum(self.wait_shares.values())

    @property
    def wait_shares(self) -> dict[str, float]:
        """`wait_share` by cause, which is an attribute of `Waits`. The shares add up to `wait_share`.

        >>> batches.stats().wait_shares["store"]  # doctest: +SKIP
        0.014
        """
        return self.waits.shares_of(self.startup_s + self.seconds)

    def _after_first(self, amount: float) -> float:
        """Returns a rate without the first element, whose time counts as startup."""
        if not self.seconds or not self.elements:
            return 0.0
        return amount * (self.elements - 1) / self.elements / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Returns all attributes and rates as a dict that ``json.dumps`` accepts."""
        return {
            "verdict": self.verdict,
            "why": self.why,
            **self.scalars(),
            "skipped": [asdict(row) for row in self.skipped],
        }

    def scalars(self) -> dict[str, float]:
        """Returns only the numbers, including rates and the shares of waiting, for logs and metrics."""
        shares = {f"wait_share_{cause}": share for cause, share in self.wait_shares.items()}
        return {**{name: getattr(self, name) for name in self.numbers()}, **shares}

    @classmethod
    def numbers(cls) -> tuple[str, ...]:
        """Returns the names of all numbers, including rates."""
        rates = ("rows_per_s", "elements_per_s", "read_mb_per_s", "delivered_mb_per_s", "wait_share")
        return (*(each.name for each in fields(cls) if each.name not in _NO_NUMBERS), *rates)

    def to_prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Returns the numbers and the verdict in Prometheus's text format, as gauges because each epoch starts at zero.

        >>> print(batches.stats().to_prometheus({"split": "train"}))  # doctest: +SKIP
        # TYPE parquetry_rows gauge
        parquetry_rows{split="train"} 64000
        """
        lines = []
        for name, samples in self.gauges().items():
            lines.append(f"# TYPE parquetry_{name} gauge")
            lines += [f"parquetry_{name}{_labels({**(labels or {}), **own})} {value}" for own, value in samples]
        return "\n".join(lines) + "\n"

    def gauges(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Returns the samples of each Prometheus gauge, as labels and a value."""
        samples: dict[str, list[tuple[dict[str, str], float]]] = {
            name: [({}, value)] for name, value in self.scalars().items()
        }
        samples["verdict"] = [({"verdict": verdict}, int(verdict == self.verdict)) for verdict in get_args(Verdict)]
        return samples

    def line(self) -> str:
        """Returns one line with the verdict and the numbers that change most."""
        return (
            f"{self.verdict}: {self.rows_per_s:,.0f} rows/s, read {self.read_mb_per_s:,.1f} MB/s, "
            f"waited {self.wait_share:.0%}, {self.elements:,} elements"
        )

    def __repr__(self) -> str:
        verdict = textwrap.fill(f"{self.verdict}: {self.why}", WIDTH)
        return f"{verdict}\n{self._table()}"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return f"<p>{escape(f'{self.verdict}: {self.why}')}</p>{self._table()._repr_html_()}"

    def _table(self) -> TextTable:
        left_out = [("left out", text) for text in self._skipped_lines()]
        failed = f"{self.failed_elements:,} failed, {self.retries:,} jobs retried, {self.restarts:,} sidecars restarted"
        return TextTable(
            ("what", "how much"),
            [
                ("rows", f"{counted(self.rows, 'row')} in {counted(self.elements, 'element')}"),
                ("speed", f"{self.rows_per_s:,.0f} rows/s, {self.elements_per_s:,.1f} elements/s"),
                ("read", f"{self.read_bytes / _MB:,.1f} MB ({self.read_mb_per_s:,.1f} MB/s)"),
                ("delivered", f"{self.delivered_bytes / _MB:,.1f} MB ({self.delivered_mb_per_s:,.1f} MB/s)"),
                (
                    "time",
                    f"{self.startup_s:.2f} s to the first element, then {self.seconds:.2f} s, of which you waited "
                    f"{self.wait_s:.2f} s",
                ),
                (
                    "waited",
                    f"{self.wait_share:.1%} of the time since you asked for the first element{self._causes()}",
                ),
                (
                    "seconds of threads",
                    f"store {self.store_s:.2f}, Parquet {self.parquet_s:.2f}, decode {self.decode_s:.2f}, "
                    f"transform {self.transform_s:.2f}, hand-over {self.hand_over_s:.2f}",
                ),
                ("cache", f"{self.cache_hits:,} hits, {self.cache_misses:,} misses"),
                ("filtered", f"{self.filtered_rows:,} rows"),
                ("elements", failed),
                ("in memory", f"{self.memory_bytes / _MB:,.1f} MB"),
                *left_out,
            ],
        )

    def _causes(self) -> str:
        shares = sorted(self.wait_shares.items(), key=lambda item: -item[1])
        causes = [f"{cause.replace('_', ' ')} {share:.1%}" for cause, share in shares if share >= _WORTH_NAMING]
        return f": {', '.join(causes)}" if causes else ""

    def _skipped_lines(self) -> list[str]:
        if not self.skipped_rows:
            return []
        causes = f"{self.skipped_decode:,} decode, {self.skipped_null:,} null, {self.skipped_transform:,} transform"
        first = f"; the first: {self.skipped[0]}" if self.skipped else ""
        return [f"{self.skipped_rows:,} rows ({causes}){first}"]


def judge(elements: int, seconds: float, waits: Waits, chain: Chain) -> tuple[Verdict, str]:
    """Decides which side is slow, and why. The start does not count: a faster loader would hardly shorten it.

    Args:
        elements, seconds: the number of elements, and the time since the first one.
        waits: how long the consumer waited.
    """
    if elements < _ENOUGH_ELEMENTS or seconds < _ENOUGH_S:
        return "too early", f"{counted(elements, 'element')} in {seconds:.1f} s: ask again later."
    wait_s = waits.total_s - waits.start
    share = wait_s / seconds
    waited = f"after the first element, you waited for data {share:.0%} of the time."
    if share <= _LITTLE_WAIT:
        return "model-bound", f"{waited} The model is the slower side; loading faster would not help."
    parts = {stage: getattr(waits, cause) for stage, cause in _CAUSE_OF.items()}
    bound = bound_of(parts)
    cause = f"The largest part of that ({parts[bound] / wait_s:.0%}) is {_IN_WORDS[bound]}."
    reason = f"{waited} {cause} {advice(bound, chain)[0]}"
    return ("store-bound" if bound == STORE else "input-bound"), reason


_CAUSE_OF = {
    STORE: "store",
    PARQUET: "parquet",
    DECODE: "decode",
    WORK: "transform",
    HAND_OVER: "hand_over",
    DEVICE_COPY: "device_copy",
    UNEXPLAINED: "other",
}
_IN_WORDS = {
    STORE: "waiting for the disk or network",
    PARQUET: "reading Parquet",
    DECODE: "decoding",
    WORK: "work on values",
    HAND_OVER: "handing batches over",
    DEVICE_COPY: "copying batches to the device",
    UNEXPLAINED: "in no measured stage",
}


def _labels(labels: Mapping[str, str]) -> str:
    """Formats labels for Prometheus."""

    def escaped(value: object) -> str:
        return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def bound_of(parts: Mapping[str, float]) -> str:
    """Returns the stage that takes most of the time.

    >>> bound_of({"store": 0.2, "parquet": 1.0, "decode": 3.5})
    'decode'
    """
    return max(parts, key=lambda stage: parts[stage])


def advice(bound: str, chain: Chain) -> list[str]:
    """Returns ways to speed up the stage that limits a chain, the most useful first."""
    if bound == STORE:
        cache = ["Cache what is read on a local disk: cache(directory)."]
        faster = "Read fewer columns (select), or move the files to a faster disk or a nearer store."
        return [*(cache if chain.remote and not chain.cached else []), faster]
    if bound == PARQUET:
        return ["Read fewer columns (select), and run parquetry lint to check row groups and compression."]
    if bound == DECODE:
        lines = ["Most of this is copying: read fewer columns (select), or make larger batches."]
        if chain.costly:
            lines = ["Decode fewer or smaller values: store images at the size that you train on."]
        if chain.resizes:
            lines.append('With interpolation="area", JPEGs are decoded no larger than needed.')
        return lines
    if bound == UNEXPLAINED:
        return ["A server, a busy processor or Python's GIL may delay batches. Compare with parquetry bench."]
    if bound == DEVICE_COPY:
        return ["Copy less: smaller dtypes (cast), fewer columns (select); larger batches take fewer copies."]
    if bound == HAND_OVER:
        return ["Hand over less data, less often: fewer columns (select), smaller dtypes (cast), larger batches."]
    store = "Store what the chain computes to the same result each time: resized images, casts, encoded labels."
    return [*_about_functions(chain), store]


def _about_functions(chain: Chain) -> list[str]:
    """Names the functions that take the time, and what to try."""
    if chain.functions:
        its, them = _called(chain.functions)
        return [f"{its} for each row: let {them} take whole batches (batched=True), or give {them} more workers=."]
    if chain.batch_functions:
        its, them = _called(chain.batch_functions)
        return [f"{its} for each batch: make {them} faster with numpy or pyarrow, or give {them} more workers=."]
    return []


def _called(functions: Sequence[str]) -> tuple[str, str]:
    """Returns the beginning of a sentence about functions, and their pronoun."""
    shown = " and ".join(f"{name}()" for name in functions)
    return (f"{shown} runs", "it") if len(functions) == 1 else (f"{shown} run", "them")
