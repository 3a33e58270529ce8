"""Random datasets and random chains of stages: the engine against a list comprehension, and the order guarantees."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from builders import TOKEN_FIELDS, Built
from chains import KEPT, VERBS, chains, dataset, drawn_case, layouts, mixings
from faces import SIDECAR, THREADS, NumpyFace, outcome, plain, run_on_faces
from hypothesis import assume, given
from hypothesis import strategies as st
from mishaps import run_changed, run_failing, run_limited, run_refilling, run_skipping, run_unmeasured
from oracle import Call, apply, call, check, check_mixed, examples

from parquetry.common import UnischemaField, mix
from parquetry.common.base.errors import EmptySelectionError
from parquetry.common.pipeline.pipeline_iterator import batch_to_numpy, rows_to_numpy
from parquetry.common.pipeline.step_iterator import StepIterator

pytestmark = [pytest.mark.slow, pytest.mark.versions]


@examples(125)
@given(st.data())
def test_any_chain_over_any_dataset_gives_what_a_list_comprehension_gives(cache: Path, data: st.DataObject) -> None:
    with drawn_case(data, cache) as (built, calls):
        memory_limit = data.draw(st.sampled_from([None, 1]), "memory_limit")
        iteration = data.draw(st.integers(0, 1), "iteration")
        check(built, calls, THREADS.elements, iteration=iteration, memory_limit=memory_limit)


@examples(10)
@given(st.data())
def test_the_sidecar_gives_any_chain_as_threads_do(cache: Path, data: st.DataObject) -> None:
    run_on_faces(data, cache, [NumpyFace("sidecar", workers) for workers in (1, 2, 3)])


def _ids(elements: Sequence[Any]) -> list[int]:
    return [row["id"] for element in elements for row in (element if isinstance(element, list) else [element])]


@examples(30)
@given(layouts, st.data())
def test_every_row_comes_once_in_an_epoch_and_epochs_differ(files: list[list[int]], data: st.DataObject) -> None:
    with dataset(files) as built:
        assume(len(built.rows) >= 8)
        pipeline = built.pipeline("id").shuffle(data.draw(st.integers(8, 40)), seed=data.draw(st.integers(0, 2**63)))
        first, second = (_ids(THREADS.elements(pipeline, k)) for k in (0, 1))
        assert sorted(first) == sorted(second) == list(range(len(built.rows)))
        assert first != second


@examples(30)
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


@examples(30)
@given(st.data())
def test_no_number_of_threads_or_loader_workers_changes_the_order(data: st.DataObject) -> None:
    names = ("label", "points", *TOKEN_FIELDS)
    with dataset(data.draw(layouts, "files"), names) as built:
        calls = data.draw(chains([*KEPT, *names], "x", [verb for verb in VERBS if verb != "cache"]), "calls")
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


@examples(30)
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


ROWS = ("where", "shuffle", "weigh", "balance", "take", "skip")
BEHIND = ("shard", "take", "skip", "repeat", "batch", "select", "rename", "cast", "transform", "as_tuple")


@examples(12)
@given(st.data())
def test_any_chain_on_a_mix_of_any_chains_gives_what_a_list_comprehension_gives(data: st.DataObject) -> None:
    with dataset(data.draw(layouts, "files"), ("vector",)) as built:
        iteration, options = data.draw(st.integers(0, 1), "iteration"), data.draw(mixings, "mix")
        pipelines, sources = [], []
        seeds: list[tuple[str, int]] = []
        for rest in range(2):
            own = call(
                "where", [("id", "in", [*range(rest, 400, 2)])], model=lambda row, rest=rest: row["id"] % 2 == rest
            )
            calls = [own, *data.draw(chains(KEPT, "x", ROWS), f"calls of source {rest}")]
            seeds += {_seed_of(each) for each in calls if each.verb in ("shuffle", "weigh", "balance")}
            assume(len(set(seeds)) == len(seeds))  # in a mix, the second source would not come as alone
            assume(check(built, calls, THREADS.elements, iteration=iteration))
            pipelines.append(apply(built.pipeline(), calls))
            sources.append(partial(THREADS.elements, pipelines[-1]))
        behind = data.draw(chains([*KEPT, "vector"], "x", BEHIND, on_a_mix=True), "calls on the mix")
        assume(all(each.options.get("canonical_shards") is None for each in behind if each.verb == "shard"))
        mixed = mix(pipelines, **options)
        expected = check_mixed(
            partial(THREADS.elements, mixed), sources, lambda row: row["id"] % 2, options["stop"], behind, iteration
        )
        found = outcome(lambda: THREADS.elements(apply(mixed, behind), iteration))
        assert found == expected or (not expected and found == "empty")


def _seed_of(drawn: Call) -> tuple[str, int]:
    """Returns what must differ in the sources of a mix: the seed, and whether rows are ordered or drawn with it."""
    return ("shuffle", drawn.args[1]) if drawn.verb == "shuffle" else ("weigh", drawn.options["seed"])


def _negative(built: Built) -> Any:
    return built.pipeline("id").transform(_negated, [UnischemaField("id", np.int64)])


def _negated(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": -1 - row["id"]}


# --- failing elements, changing files ---

EXECUTORS = [*[THREADS] * 6, SIDECAR]  # a sidecar is slow to start


@examples(15)
@given(st.data())
def test_an_element_that_fails_is_one_element_and_the_others_are_given(data: st.DataObject) -> None:
    run_failing(data, EXECUTORS)


@examples(15)
@given(st.data())
def test_rows_that_fail_are_left_out_and_the_others_fill_their_places(data: st.DataObject) -> None:
    run_skipping(data, EXECUTORS)


@examples(15)
@given(st.data())
def test_all_elements_before_one_error_too_many_come(data: st.DataObject) -> None:
    run_limited(data, EXECUTORS)


@examples(15)
@given(st.data())
def test_batches_of_a_bucket_are_refilled_without_rows_that_fail(data: st.DataObject) -> None:
    run_refilling(data, EXECUTORS)


@examples(15)
@given(st.data())
def test_rows_without_a_length_are_as_if_they_were_not_stored(data: st.DataObject) -> None:
    run_unmeasured(data, EXECUTORS)


@examples(20)
@given(st.data())
def test_files_that_change_between_epochs_are_noticed_and_a_new_equal_pipeline_reads_them(
    data: st.DataObject,
) -> None:
    run_changed(data, EXECUTORS)


# --- shards ---


@examples(45)
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


@examples(45)
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
    """Returns the rows of each global batch across all ranks."""
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


RESUMED = ("where", "select", "rename", "shuffle", "weigh", "balance", "concat", "pack_rows", "bucket")


@examples(20)
@given(layouts, st.data())
def test_any_chain_resumes_with_another_number_of_ranks(files: list[list[int]], data: st.DataObject) -> None:
    with dataset(files, TOKEN_FIELDS) as built:
        calls = data.draw(chains([*KEPT, *TOKEN_FIELDS], "x", RESUMED), "calls")
        before, after = (data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]), name) for name in ("before", "after"))
        even, passes = data.draw(st.sampled_from(["pad", "drop"]), "even"), data.draw(st.integers(1, 2), "passes")

        def part(ranks: int, rank: int) -> Any:
            shard = call("shard", ranks, rank, even=even, canonical_shards=12)
            return apply(built.pipeline(), [*calls, shard, call("repeat", passes)])

        whole = outcome(lambda: list(map(plain, part(1, 0))))
        assume(whole and whole != "empty")
        steps = data.draw(st.integers(0, len(whole) // 12), "rounds") * 12 // before
        stopped = iter(part(before, 0))
        deque(itertools.islice(stopped, steps), maxlen=0)
        state = stopped.state_dict()
        rest = [list(map(plain, iter(part(after, rank)).load_state_dict(state))) for rank in range(after)]
        left = [element for turn in itertools.zip_longest(*rest) for element in turn if element is not None]
        assert left == whole[steps * before :]


@examples(40)
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
