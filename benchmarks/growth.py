"""How cost grows with row groups, filters, sources, iterators, files and ranks: ``python -m benchmarks.growth``.

Prints, for each kind of work at three sizes, its cost, that of the comparison, their ratio, and the exponent of the
cost: 1 if the cost grows as the size does, 0 if it does not grow. Costs are processor seconds, or counts of reads.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from parquetry.common import Pipeline, mix
from parquetry.common.base.threads import _Call
from parquetry.common.dataset.index import write_index
from parquetry.common.dataset.index_format import INDEX_NAME
from parquetry.common.dataset.store_reads import RUN_BYTES
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.parquet import group_footers
from parquetry.common.parquet.group_footers import StoredFooter
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.plan.selection import conditions
from parquetry.common.plan.state import state_of

from .store_requests import CountingStore, serving

GROUP_ROWS = 4096
SMALL_ROWS = 32_768  # of a file that is cut into more and more row groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of work of one size, and of the same work in another way."""

    size: int
    cost: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of work: what its size counts, and what its cost and the comparison are."""

    size: str
    cost: str
    measure: Callable[[Path, int], Cost]
    sizes: tuple[int, int, int]


@dataclass(slots=True)
class Counts:
    """Reads of row groups, footers read, and expressions evaluated (each builds its sets)."""

    reads: int = 0
    footers: int = 0
    evaluations: int = 0


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what pipelines do in this process while the block runs."""
    counts = Counts()
    read, load, mask = Fetcher.stored_slices, group_footers.load_stored_footer, conditions.row_mask

    def reading(fetcher: Fetcher, row_group: int) -> Iterator[pa.Table]:
        counts.reads += 1
        slices: Iterator[pa.Table] = read(fetcher, row_group)
        return slices

    def loading(*arguments: Any) -> StoredFooter:
        counts.footers += 1
        footer: StoredFooter = load(*arguments)
        return footer

    def evaluating(table: pa.Table, expression: pc.Expression) -> np.ndarray:
        counts.evaluations += 1
        matches: np.ndarray = mask(table, expression)
        return matches

    with (
        mock.patch.object(Fetcher, "stored_slices", reading),
        mock.patch.object(group_footers, "load_stored_footer", loading),
        mock.patch.object(conditions, "row_mask", evaluating),
    ):
        yield counts


def written(folder: Path, row_groups: int, group_rows: int = GROUP_ROWS) -> str:
    """Writes a file of shuffled numbers, once, and returns its folder."""
    target = folder / f"{row_groups}-{group_rows}"
    if not target.exists():
        target.mkdir(parents=True)
        numbers = np.random.default_rng(1).permutation(row_groups * group_rows * 4)[: row_groups * group_rows]
        pq.write_table(pa.table({"id": numbers}), target / "0.parquet", row_group_size=group_rows)
    return str(target)


def partitioned(folder: Path, files: int) -> str:
    """Writes a folder of partitions with a file each, once, and returns it."""
    target = folder / f"parts-{files}"
    for number in range(0 if target.exists() else files):
        part = target / f"part={number}"
        part.mkdir(parents=True)
        pq.write_table(pa.table({"id": np.arange(4)}), part / "0.parquet")
    return str(target)


def members(folder: Path, values: int) -> Cost:
    """Processor seconds of a filter by a set, with Arrow's."""
    url = written(folder, 128)
    chosen = np.random.default_rng(2).choice(128 * GROUP_ROWS * 4, values, replace=False)
    return _against_arrow(url, pc.field("id").isin(pa.array(chosen)), values)


def groups_of_members(folder: Path, row_groups: int) -> Cost:
    """Processor seconds of a filter by a set of 100,000 values, with Arrow's."""
    url = written(folder, row_groups)
    chosen = np.random.default_rng(2).choice(row_groups * GROUP_ROWS * 4, 100_000, replace=False)
    return _against_arrow(url, pc.field("id").isin(pa.array(chosen)), row_groups)


def _against_arrow(url: str, expression: pc.Expression, size: int) -> Cost:
    began = time.process_time()
    rows = pads.dataset(url).to_table(columns=["id"], filter=expression).num_rows
    arrow = time.process_time() - began
    began = time.process_time()
    assert len(Pipeline(url, executor="threads").where(expression)) == rows
    return Cost(size=size, cost=time.process_time() - began, other=arrow)


def filters(folder: Path, count: int) -> Cost:
    """Reads of row groups by adjacent filters, and by one filter that joins them."""
    url = written(folder, 16, 512)
    # Statistics do not decide these.
    each = [pc.field("id") != 10_000 + number for number in range(count)]
    one_by_one, joined = Pipeline(url, executor="threads"), each[0]
    for expression in each:
        one_by_one = one_by_one.where(expression)
    for expression in each[1:]:
        joined = joined & expression
    with counting() as counts:
        rows = len(one_by_one)
    with counting() as once:
        assert len(Pipeline(url, executor="threads").where(joined)) == rows
    return Cost(size=count, cost=counts.reads, other=once.reads)


def partitions(folder: Path, files: int) -> Cost:
    """Footers that are read for a filter by a partition that one file has, and the files that match."""
    rows = Pipeline(partitioned(folder, files), executor="threads").where(pc.field("part") == 1)
    with counting() as counts:
        assert len(rows) == 4
    return Cost(size=files, cost=counts.footers, other=1)


def indexed_files(folder: Path, files: int) -> Cost:
    """Footers that are read for a first epoch of files with an index, and without one."""
    url = partitioned(folder, files)

    def footers() -> int:
        with counting() as counts:
            assert sum(1 for _ in Pipeline(url, executor="threads").batch(64)) == -(-4 * files // 64)
        return counts.footers

    index = Path(url) / INDEX_NAME
    index.unlink(missing_ok=True)
    without = footers()
    write_index(url)
    try:
        return Cost(size=files, cost=max(footers(), 1), other=without)
    finally:
        index.unlink()


def store_requests(folder: Path, row_groups: int) -> Cost:
    """Requests of an epoch in order, of row groups of 128 KiB, and one for each 8 MiB."""
    file = Path(written(folder, row_groups, 1 << 14)) / "0.parquet"
    with serving(file.parent, 0.0) as url:
        store = CountingStore(url)
        rows = Pipeline([file.name], filesystem=store, executor="threads").batch(1 << 14)
        assert len(rows) == row_groups
        before = store.requests
        assert sum(1 for _ in rows) == row_groups
        store.close()
    return Cost(size=row_groups, cost=store.requests - before, other=max(file.stat().st_size / RUN_BYTES, 1))


def resumed_ranks(folder: Path, ranks: int) -> Cost:
    """Row groups that a rank reads after one of the ranks was lost in the middle of an epoch, and its share."""
    row_groups = 512
    rows = Pipeline(written(folder, row_groups, 512), executor="threads").shuffle(512, seed=1)
    state = state_of(rows.shard(ranks, 0).plan(), Cursor(start=row_groups * 512 // (2 * ranks))).to_json()
    iterator = iter(rows.shard(ranks - 1, 0)).load_state_dict(state)
    read: set[int] = set()
    fetch = Fetcher.fetch

    def fetching(fetcher: Fetcher, row_group: int, *arguments: Any) -> Any:
        read.add(row_group)
        return fetch(fetcher, row_group, *arguments)

    with mock.patch.object(Fetcher, "fetch", fetching):
        assert sum(1 for _ in iterator) > 0
    return Cost(size=ranks, cost=len(read), other=row_groups / (ranks - 1))


def mixed_sources(folder: Path, sources: int) -> Cost:
    """Python calls for each row of a mix, in all threads, and those of a mix of ten."""
    rows = 300

    def calls_per_row(count: int) -> float:
        source = Pipeline(written(folder, 1, 64), executor="threads").repeat()
        elements = iter(mix([source] * count, seed=1).batch(1))
        for _ in range(10):
            next(elements)
        with counting_calls() as calls:
            for _ in range(rows):
                next(elements)
        return sum(calls.values()) / rows

    return Cost(size=sources, cost=calls_per_row(sources), other=calls_per_row(10))


@contextmanager
def counting_calls() -> Iterator[dict[int, int]]:
    """Counts the calls of Python functions by thread while the block runs."""
    calls: dict[int, int] = {}

    def count(frame: object, event: str, argument: object) -> None:
        if event == "call":
            calls[threading.get_ident()] = calls.get(threading.get_ident(), 0) + 1

    make = _Call.make

    def making(*arguments: Any) -> None:
        sys.setprofile(count)
        try:
            make(*arguments)
        finally:
            sys.setprofile(None)

    with mock.patch.object(_Call, "make", making):
        sys.setprofile(count)
        try:
            yield calls
        finally:
            sys.setprofile(None)


def open_iterators(folder: Path, iterators: int) -> Cost:
    """Threads of iterators that are open and wait for their consumer, and of one."""
    url = written(folder, 16, 512)
    before = threading.active_count()
    opened = []
    for _ in range(iterators):
        opened.append(iter(Pipeline(url, executor="threads", workers=2).batch(64)))
        next(opened[-1])
    return Cost(size=iterators, cost=max(threading.active_count() - before, 1), other=1)


def row_groups_in_order(folder: Path, row_groups: int) -> Cost:
    """Processor seconds of an epoch in order of as many rows in more and more row groups, with Arrow's."""
    return _epoch_of_small(folder, row_groups, lambda rows: rows)


def row_groups_shuffled(folder: Path, row_groups: int) -> Cost:
    """Processor seconds of a shuffled epoch of as many rows in more and more row groups, with Arrow's in order."""
    return _epoch_of_small(folder, row_groups, lambda rows: rows.shuffle(1000, seed=1))


def _epoch_of_small(folder: Path, row_groups: int, order: Callable[[Pipeline], Pipeline]) -> Cost:
    url = written(folder, row_groups, max(SMALL_ROWS // row_groups, 1))
    batches = order(Pipeline(url, executor="threads")).batch(64)
    file = pq.ParquetFile(Path(url) / "0.parquet")

    def epoch() -> None:
        assert sum(1 for _ in batches) == len(batches)

    def arrow() -> None:
        for number in range(row_groups):
            file.read_row_group(number)

    epoch()  # reads the footer
    return Cost(size=row_groups, cost=_least_seconds(epoch), other=_least_seconds(arrow))


def _least_seconds(work: Callable[[], None], times: int = 5) -> float:
    """Returns the least processor seconds of some runs."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


KINDS = {
    "values of isin": Kind(size="values", cost="s, Arrow", measure=members, sizes=(1_000, 27_000, 735_000)),
    "row groups of isin": Kind(size="row groups", cost="s, Arrow", measure=groups_of_members, sizes=(32, 256, 2_048)),
    "filters": Kind(size="filters", cost="reads, joined by &", measure=filters, sizes=(2, 10, 50)),
    "partitions": Kind(size="files", cost="footers, files that match", measure=partitions, sizes=(30, 300, 3_000)),
    "sources of a mix": Kind(size="sources", cost="calls a row, of ten", measure=mixed_sources, sizes=(20, 200, 2_000)),
    "open iterators": Kind(size="iterators", cost="threads, 1", measure=open_iterators, sizes=(5, 50, 500)),
    "row groups in order": Kind(
        size="row groups", cost="s, Arrow", measure=row_groups_in_order, sizes=(32, 512, 8_192)
    ),
    "row groups shuffled": Kind(
        size="row groups", cost="s, Arrow", measure=row_groups_shuffled, sizes=(32, 512, 8_192)
    ),
    "index": Kind(size="files", cost="footers, without an index", measure=indexed_files, sizes=(10, 100, 1_000)),
    "store requests": Kind(
        size="row groups", cost="requests, pieces of 8 MiB", measure=store_requests, sizes=(128, 512, 2_048)
    ),
    "ranks": Kind(
        size="ranks before one was lost", cost="row groups, a share", measure=resumed_ranks, sizes=(8, 64, 256)
    ),
}


def exponent(costs: Sequence[Cost]) -> float:
    """Returns the power of the size as which the cost grows, by least squares."""
    slope, _ = np.polyfit(np.log([each.size for each in costs]), np.log([each.cost for each in costs]), 1)
    return float(slope)


def measure(kind: Kind, folder: Path, share: float = 1.0) -> list[Cost]:
    """Returns the cost at each size, a ``share`` of the full ones, without what earlier runs kept."""
    with tempfile.TemporaryDirectory() as kept, mock.patch.dict("os.environ", {"PARQUETRY_CACHE_DIR": kept}):
        return [kind.measure(folder, max(1, int(size * share))) for size in kind.sizes]


def main() -> None:
    """Prints a line for each kind and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the datasets are, or will be, written")
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    for name in arguments.kinds:
        kind = KINDS[name]
        costs = measure(kind, arguments.folder, arguments.share)
        for each in costs:
            ratio = each.cost / each.other
            print(
                f"{name}: {each.size:9,} {kind.size}: {each.cost:.6g} and {each.other:.6g} ({kind.cost}): {ratio:.2f}"
            )
        print(f"{name}: exponent {exponent(costs):.2f}", flush=True)


if __name__ == "__main__":
    main()
