"""Random datasets times random chains of stages: the engine against a list comprehension, and the promises about order."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from builders import ALL_FIELDS, Built, build
from faces import THREADS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import Call, apply, call, check

from parquetry.common import UnischemaField, mix
from parquetry.common.errors import EmptySelectionError, PipelineError
from parquetry.common.iteration import StepIterator, batch_to_numpy, rows_to_numpy

KEPT = ("id", "drive", "ts")
ZEROS: dict[str, Any] = {"speed": 0.0, "flag": False, "label": "", "when": 0, "codes": [], "pair": [0, 0], "packed": []}
FILLS: dict[str, Any] = {"speed": -1.5, "flag": True, "label": "none", "when": 7}


# --- datasets ---

row_groups = st.sampled_from([4, 1, 3, 1, 5, 2, 7, 0, 11])
layouts = st.lists(st.lists(row_groups, min_size=1, max_size=5) | st.just([]), min_size=1, max_size=4)
fields = st.sets(st.sampled_from([name for name in ALL_FIELDS if name not in KEPT]), max_size=5).map(sorted)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all examples: what one of them leaves behind must not change another."""
    return tmp_path_factory.mktemp("cache")


@contextmanager
def dataset(
    files: Sequence[Sequence[int]], names: Sequence[str] = (), *, partition: str | None = None
) -> Iterator[Built]:
    """A dataset in a directory of its own; hypothesis runs many examples in one test."""
    directory = Path(tempfile.mkdtemp())
    try:
        ordered = [name for name in ALL_FIELDS if name in (*KEPT, *names)]
        yield build(directory / "data", files, names=ordered, partition=partition)
    finally:
        shutil.rmtree(directory)


# --- chains of stages ---


def _double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": np.asarray(row["id"]) * 2}


def _double_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": [2 * v for v in row["id"]] if isinstance(row["id"], list) else 2 * row["id"]}


def _span(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": np.asarray(row[-1]["id"]) * 2}


def _span_plain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "double": 2 * row[-1]["id"]}


class Chain:
    """A chain in the making: draws calls that make sense for the fields that are left."""

    def __init__(self, draw: st.DrawFn, built_names: Sequence[str], cache: str) -> None:
        self.draw = draw
        self.names = [name for name in ALL_FIELDS if name in built_names]
        self.stored = list(self.names)
        self.window: int | str | None = None
        self.cache_directory = cache

    def where(self) -> Call:
        number = self.draw(st.sampled_from([3, 7, 12, 0, 24]))
        options = [
            call("where", pc.field("id") > number, model=lambda row: row["id"] > number),
            call("where", pc.field("drive") != "d1", model=lambda row: row["drive"] != "d1"),
            call("where", (pc.bit_wise_and(pc.field("id"), 3) == 0) | (pc.field("ts") < number), model=lambda row: row["id"] & 3 == 0 or row["ts"] < number),
            call("where", lambda row: row["id"] % 3 != 1, fields=["id"], model=lambda row: row["id"] % 3 != 1),
            call("where", lambda batch: batch["id"] % 2 == 0, fields=["id"], batched=True, model=lambda row: row["id"] % 2 == 0),
        ]  # fmt: skip
        if "speed" in self.stored:
            options.append(
                call("where", pc.field("speed") < 8, model=lambda row: row["speed"] is not None and row["speed"] < 8)
            )
            options.append(
                call(
                    "where",
                    lambda batch: batch["speed"] < 8,
                    fields=["speed"],
                    batched=True,
                    model=lambda row: row["speed"] is not None and row["speed"] < 8,
                )
            )
        if "odd" in self.stored:
            options.append(
                call("where", ~(pc.field("odd") > 3), model=lambda row: not (row["odd"] != "nan" and row["odd"] > 3))
            )
        if "label" in self.stored:
            options.append(call("where", pc.field("label").is_null(), model=lambda row: row["label"] is None))
        return self.draw(st.sampled_from(options))

    def select(self) -> Call:
        kept = self.draw(st.lists(st.sampled_from(self.names), max_size=4))
        keep = [name for name in self.names if name in ("id", *kept)]
        self.names = keep
        return call("select", *self.draw(st.permutations(keep)))

    def ngram(self) -> Call:
        options: dict[str, Any] = {
            "timestamp": self.draw(st.sampled_from([None, "ts"])),
            "group_by": self.draw(st.sampled_from([None, "drive", ["drive"]])),
            "stride": self.draw(st.integers(1, 3)),
            "overlap": self.draw(st.booleans()),
            "span_row_groups": self.draw(st.booleans()),
        }
        if options["timestamp"] == "ts":
            options["max_gap"] = self.draw(st.sampled_from([100, None, 600, 700, 600, 99]))
        if self.draw(st.booleans()):
            length = self.draw(st.integers(1, 4))
            self.window = length
            return call("ngram", length=length, **options)
        self.window = "offsets"
        more = {o: [self.draw(st.sampled_from(self.names))] for o in self.draw(st.sets(st.integers(0, 3), max_size=3))}
        first = ["id", *self.draw(st.lists(st.sampled_from(self.names), max_size=2))]
        chosen = {name for patterns in ({-1: first} | more).values() for name in patterns}
        self.names = [name for name in self.names if name in chosen]
        return call("ngram", {-1: first, **more}, **options)

    def transform(self) -> Call:
        assume("double" not in self.names)
        self.names = [*self.names, "double"]
        if self.window == "offsets":
            return call("transform", _span, [UnischemaField("double", np.int64)], model=_span_plain)
        shape = () if self.window is None else (self.window,)
        batched = self.draw(st.booleans())
        output = [UnischemaField("double", np.int64, shape)]  # type: ignore[arg-type]  # shape of a number
        return call("transform", _double, output, batched=batched, model=_double_plain)

    def nulls(self) -> Call:
        assume(self.window is None)
        nullable = [name for name in self.names if name in ZEROS]
        assume(nullable)
        name = self.draw(st.sampled_from(nullable))
        policy = self.draw(st.sampled_from(["drop", "mask", *(["fill"] if name in FILLS else [])]))
        assume(policy != "mask" or f"{name}__valid" not in self.names)
        if policy == "mask":
            self.names = [*self.names, f"{name}__valid"]
        options = {"fill": {"value": FILLS.get(name)}, "mask": {"model_zero": ZEROS[name]}, "drop": {}}[policy]
        return call("nulls", policy, name, **options)

    def shard(self) -> Call:
        ranks = self.draw(st.integers(1, 4))
        canonical = self.draw(st.sampled_from([None, None, 1, 2, 6]))
        even = self.draw(st.sampled_from(["pad", "drop", "none"]))
        return call("shard", ranks, self.draw(st.integers(0, ranks - 1)), even=even, canonical_shards=canonical)

    def shuffle(self) -> Call:
        reshuffle = self.draw(st.booleans())
        return call(
            "shuffle", self.draw(st.integers(1, 12)), self.draw(st.integers(0, 3)), reshuffle_each_iteration=reshuffle
        )

    def take(self) -> Call:
        return call("take", self.draw(st.sampled_from([9, 1, 2, 4, 14, 20, 30, 12, 0])))

    def skip(self) -> Call:
        return call("skip", self.draw(st.sampled_from([1, 2, 3, 5, 8, 1, 2, 0])))

    def repeat(self) -> Call:
        return call("repeat", self.draw(st.sampled_from([2, 3, 1, 2, 2, 3, 0])))

    def batch(self) -> Call:
        return call("batch", self.draw(st.integers(1, 7)), drop_remainder=self.draw(st.booleans()))

    def cache(self) -> Call:
        return call("cache", self.cache_directory)


VERBS = (
    "where",
    "select",
    "ngram",
    "transform",
    "nulls",
    "shard",
    "shuffle",
    "take",
    "skip",
    "repeat",
    "batch",
    "cache",
)


@st.composite
def chains(draw: st.DrawFn, built_names: Sequence[str], cache: str, verbs: Sequence[str] = VERBS) -> list[Call]:
    """Calls that a pipeline accepts, in any order."""
    chain = Chain(draw, built_names, cache)
    calls: list[Call] = []
    from parquetry.common import Pipeline

    pipeline = Pipeline("nowhere")
    for verb in draw(st.lists(st.sampled_from(verbs), min_size=draw(st.sampled_from([0, 2, 4, 6, 8])), max_size=10)):
        cuts = sum(each.verb in ("take", "skip", "cache") for each in calls)
        if not pipeline.accepts("filter" if verb == "where" else verb) or (
            verb in ("take", "skip", "cache") and cuts >= 2
        ):
            continue
        names, window = chain.names, chain.window
        made = getattr(chain, verb)()
        try:
            pipeline = made.on(pipeline)
        except PipelineError:  # a second window, or a filter on a field that was changed
            chain.names, chain.window = names, window
            continue
        calls.append(made)
    return calls


@settings(max_examples=150)
@given(st.data())
def test_any_chain_over_any_dataset_gives_what_a_list_comprehension_gives(cache: Path, data: st.DataObject) -> None:
    files = data.draw(layouts, "files")
    names = data.draw(fields, "fields")
    partition = data.draw(st.sampled_from([None, None, "drive"]), "partition")
    if partition:
        files = [[10, 0] for _ in files]
    calls = data.draw(chains([*KEPT, *names], str(cache)), "calls")
    # The contract suite has each stage alone, and a few tests with hardly any rows are enough.
    assume(len(calls) >= 3 and (sum(map(sum, files)) > 5 or data.draw(st.integers(0, 3)) == 0))
    with dataset(files, names, partition=partition) as built:
        memory_limit = data.draw(st.sampled_from([None, 1]), "memory_limit")
        iteration = data.draw(st.integers(0, 1), "iteration")
        check(built, calls, THREADS.elements, iteration=iteration, memory_limit=memory_limit)


def _ids(elements: Sequence[Any]) -> list[int]:
    return [row["id"] for element in elements for row in (element if isinstance(element, list) else [element])]


@settings(max_examples=40)
@given(layouts, st.data())
def test_every_row_comes_once_in_an_epoch_and_epochs_differ(files: list[list[int]], data: st.DataObject) -> None:
    with dataset(files) as built:
        assume(len(built.rows) >= 8)
        pipeline = built.pipeline("id").shuffle(data.draw(st.integers(8, 40)), seed=data.draw(st.integers(0, 2**63)))
        first, second = (_ids(THREADS.elements(pipeline, k)) for k in (0, 1))
        assert sorted(first) == sorted(second) == list(range(len(built.rows)))
        assert first != second


@settings(max_examples=40)
@given(layouts, st.data())
def test_epoch_k_is_the_same_alone_and_after_others(files: list[list[int]], data: st.DataObject) -> None:
    with dataset(files) as built:
        assume(built.rows)
        views = data.draw(chains(KEPT, "x", ("shuffle", "shard", "batch", "where", "take")), "calls")
        pipeline = apply(built.pipeline("id"), views)
        try:
            in_a_row = [_ids([_plain(value) for value in pipeline]) for _ in range(3)]
        except EmptySelectionError:
            assume(False)
        alone = [_ids(THREADS.elements(apply(built.pipeline("id"), views), k)) for k in range(3)]
        assert in_a_row == alone


def _plain(value: dict[str, Any]) -> Any:
    ids = np.asarray(value["id"])
    return [{"id": number} for number in ids.tolist()] if ids.ndim else {"id": int(ids)}


@settings(max_examples=40)
@given(st.data())
def test_no_number_of_threads_or_loader_workers_changes_the_order(data: st.DataObject) -> None:
    with dataset(data.draw(layouts, "files"), ("label", "points")) as built:
        calls = data.draw(chains([*KEPT, "label", "points"], "x", [verb for verb in VERBS if verb != "cache"]), "calls")
        pipeline = apply(built.pipeline(), calls)
        try:
            expected = list(pipeline)
        except EmptySelectionError:
            assume(False)
        again = list(apply(built.pipeline(workers=3), calls))
        assert repr(again) == repr(expected)
        workers = data.draw(st.integers(1, 4), "loader workers")
        parts = [_worker_part(pipeline, worker, workers) for worker in range(workers)]
        merged = [part[k] for k in range(len(expected)) for part in parts if k < len(part)]
        assert repr(merged) == repr(expected)


def _worker_part(pipeline: Any, worker: int, workers: int) -> list[Any]:
    steps = StepIterator(pipeline, 0, strict_nulls=False, worker=worker, workers=workers)
    if steps.element.batched:
        return [batch_to_numpy(steps.element, columns) for _, columns in steps]
    return [row for _, columns in steps for row in rows_to_numpy(steps.element, columns)]


@settings(max_examples=40)
@given(layouts, layouts, st.data())
def test_a_mix_keeps_the_order_and_the_rows_of_its_sources(
    files: list[list[int]], others: list[list[int]], data: st.DataObject
) -> None:
    with dataset(files) as one, dataset(others) as two:
        assume(one.rows and two.rows)
        sources = [one.pipeline("id").shuffle(3, seed=1), _negative(two)]
        whole = [_ids(THREADS.elements(source)) for source in sources]
        stop = data.draw(st.sampled_from(["first", "all"]), "stop")
        options: dict[str, Any] = {
            "weights": data.draw(st.sampled_from([[1, 1], [5, 1], [0.2, 3]])),
            "seed": 3,
            "stop": stop,
        }
        mixed = _ids(THREADS.elements(mix(sources, **options)))
        parts = [[number for number in mixed if number >= 0], [number for number in mixed if number < 0]]
        if stop == "all":
            assert parts == whole
        else:
            assert all(part == source[: len(part)] for part, source in zip(parts, whole, strict=True))
            assert any(len(part) == len(source) for part, source in zip(parts, whole, strict=True))
        assert _ids(THREADS.elements(mix(sources, **options).batch(4))) == mixed
        ranks = data.draw(st.integers(1, 3), "ranks")
        dealt = [
            _ids(THREADS.elements(mix(sources, **options).shard(ranks, rank, even="none"))) for rank in range(ranks)
        ]
        assert [dealt[k % ranks][k // ranks] for k in range(len(mixed))] == mixed


def _negative(built: Built) -> Any:
    return built.pipeline("id").transform(_negated, [UnischemaField("id", np.int64)])


def _negated(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": -1 - row["id"]}


# --- shards ---


@settings(max_examples=60)
@given(layouts, st.data())
def test_all_ranks_take_the_same_number_of_steps_whatever_a_filter_leaves(
    files: list[list[int]], data: st.DataObject
) -> None:
    with dataset(files) as built:
        ranks = data.draw(st.integers(1, 7), "ranks")
        even = data.draw(st.sampled_from(["pad", "drop"]), "even")
        left = data.draw(st.integers(0, len(built.rows)), "rows left by the filter")
        pipeline = built.pipeline("id").where(pc.field("id") < left).shuffle(3, seed=1)
        parts = [pipeline.shard(ranks, rank, even=even).batch(2) for rank in range(ranks)]
        if left == 0 or (even == "drop" and left < ranks):
            for part in parts:
                with pytest.raises(EmptySelectionError, match=r"expected at least one item|leaves nothing"):
                    next(iter(part))
            return
        found = [THREADS.elements(part) for part in parts]
        assert len({len(elements) for elements in found}) == 1
        assert len({tuple(map(len, elements)) for elements in found}) == 1
        together = Counter(itertools.chain.from_iterable(_ids(elements) for elements in found))
        if even == "pad":
            assert together.keys() == set(range(left))
            assert sum(together.values()) == -(-left // ranks) * ranks
        else:
            assert set(together.values()) == {1}
            assert len(together) == left // ranks * ranks


@settings(max_examples=60)
@given(layouts, st.data())
def test_a_global_batch_holds_the_same_rows_on_any_number_of_ranks_that_divides_the_canonical_shards(
    files: list[list[int]], data: st.DataObject
) -> None:
    with dataset(files) as built:
        assume(built.rows)
        canonical = data.draw(st.sampled_from([2, 4, 6, 12]), "canonical_shards")
        even = data.draw(st.sampled_from(["pad", "drop", "none"]), "even")
        first = data.draw(st.booleans(), "shard first")
        pipeline = built.pipeline("id")
        if data.draw(st.booleans(), "windows"):
            pipeline = pipeline.ngram({0: ["id"]}, stride=2).transform(
                _flat, [UnischemaField("id", np.int64)], remove=["id"]
            )
        reference: list[Counter[int]] | None = None
        for ranks in [r for r in range(1, canonical + 1) if canonical % r == 0]:
            batches = _global_batches(pipeline, ranks, canonical, even, shard_first=first, rows=12 // ranks)
            reference = batches if reference is None else reference
            assert batches == reference


def _flat(row: dict[Any, Any]) -> dict[str, Any]:
    return {"id": row[0]["id"]}


def _global_batches(
    pipeline: Any, ranks: int, canonical: int, even: str, *, shard_first: bool, rows: int
) -> list[Counter[int]]:
    """The rows of each global batch, all ranks together."""
    together: list[Counter[int]] = []
    for rank in range(ranks):
        shard = call("shard", ranks, rank, even=even, canonical_shards=canonical)
        order = [shard, call("shuffle", 4, 7)] if shard_first else [call("shuffle", 4, 7), shard]
        try:
            elements = THREADS.elements(
                apply(pipeline, [*order, call("batch", rows)]).with_options(executor="threads"), 1
            )
        except EmptySelectionError:
            elements = []
        together += [Counter() for _ in range(len(elements) - len(together))]
        for step, batch in enumerate(elements):
            together[step].update(_ids([batch]))
    return together


@settings(max_examples=40)
@given(layouts, st.data())
def test_any_other_number_of_ranks_is_exact_as_well(files: list[list[int]], data: st.DataObject) -> None:
    with dataset(files) as built:
        assume(built.rows)
        ranks, canonical = data.draw(st.integers(1, 7), "ranks"), data.draw(st.integers(1, 7), "canonical")
        pipeline = built.pipeline("id").shuffle(3, seed=2)
        parts = [
            _ids(THREADS.elements(pipeline.shard(ranks, rank, even="none", canonical_shards=canonical)))
            for rank in range(ranks)
        ]
        whole = _ids(THREADS.elements(pipeline.shard(1, 0, even="none", canonical_shards=canonical)))
        assert sorted(itertools.chain.from_iterable(parts)) == list(range(len(built.rows)))
        assert [parts[k % ranks][k // ranks] for k in range(len(whole))] == whole
