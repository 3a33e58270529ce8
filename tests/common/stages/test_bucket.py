"""``bucket``: which rows share a batch, how batches are padded, and that ranks and restarts do not change them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ids import ids_by_element as ids
from oracle import examples

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.base.errors import DecodeError, EmptySelectionError, NullValueError, PipelineError, TransformError
from parquetry.common.plan.order.epoch import equal_groups

RANKS = [1, 2, 3, 4, 6, 12]
LENGTHS = [3, 0, 9, 1, 5, 5, 2, 7, 12, 4, 4, 1, 8, 3, 6, 2, 10, 11, 1, 1, 9, 3, 5, 2, 6, 40]
GROUPS = [5, 1, 7, 4, 9]


def table_of(lengths: list[int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(len(lengths)), pa.int64()),
            "tokens": pa.array([[number] * length for number, length in enumerate(lengths)], pa.list_(pa.int32())),
            "mask": pa.array([[True] * length for length in lengths], pa.list_(pa.bool_())),
            "text": ["x" * length for length in lengths],
            "count": pa.array(lengths, pa.int16()),
        }
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("bucket")
    table = table_of(LENGTHS)
    with pq.ParquetWriter(directory / "a.parquet", table.schema) as writer:
        for start, count in zip(np.cumsum([0, *GROUPS]).tolist(), GROUPS, strict=False):
            writer.write_table(table.slice(start, count))
    return str(directory)


@pytest.fixture
def rows(url: str) -> Pipeline:
    return Pipeline(url, executor="threads", workers=1)


def groups_of(buffer_size: int, sizes: list[int]) -> list[list[int]]:
    """Groups the rows of neighboring row groups: enough for the buffer, and for four batches of each bucket."""
    ends = np.cumsum([0, *GROUPS])
    bounds = ends[equal_groups((ends, max(buffer_size, 4 * sum(sizes))))].tolist()
    return [list(range(first, end)) for first, end in itertools.pairwise(bounds)]


def bucket_of(length: int, boundaries: list[int]) -> int:
    return sum(length > boundary for boundary in boundaries)


@pytest.mark.slow
@examples(25)
@given(st.data())
def test_every_batch_is_of_one_bucket_and_group_and_every_row_comes_once(url: str, data: st.DataObject) -> None:
    boundaries = sorted(data.draw(st.sets(st.integers(1, 15), min_size=1, max_size=4), "boundaries"))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(boundaries) + 1, max_size=len(boundaries) + 1), "sizes")
    buffer_size = data.draw(st.sampled_from([1, 6, 12, 100]), "buffer_size")
    even = data.draw(st.sampled_from(["pad", "drop", "none"]), "even")
    ranks = data.draw(st.sampled_from(RANKS), "ranks")
    order = Pipeline(url, ["id", "tokens"], executor="threads", workers=1).shuffle(buffer_size, seed=3)
    pipeline = order.bucket("tokens", boundaries, batch_sizes=sizes)
    expected = Counter()
    for group in groups_of(buffer_size, sizes):
        held = Counter(bucket_of(LENGTHS[row], boundaries) for row in group)
        for bucket, count in held.items():
            expected.update((bucket, size) for size in [sizes[bucket]] * (count // sizes[bucket]))
            if count % sizes[bucket]:
                expected[bucket, count % sizes[bucket]] += 1
    for _ in range(2):
        found = ids(pipeline)
        assert sorted(itertools.chain.from_iterable(found)) == list(range(len(LENGTHS)))
        assert len(found) == len(pipeline)
        assert expected == Counter((bucket_of(LENGTHS[batch[0]], boundaries), len(batch)) for batch in found)
        for batch in found:
            assert len({bucket_of(LENGTHS[row], boundaries) for row in batch}) == 1
            assert sum(set(batch) <= set(group) for group in groups_of(buffer_size, sizes)) == 1
    assume(even != "drop" or len(pipeline) >= 12)
    parts = [ids(pipeline.shard(ranks, rank, even=even, canonical_shards=12)) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1 or even == "none"
    whole = ids(pipeline.shard(1, 0, even=even, canonical_shards=12))
    assert [parts[k % ranks][k // ranks] for k in range(len(whole))] == whole


def test_batches_come_bucket_by_bucket_without_a_shuffle(rows: Pipeline) -> None:
    found = ids(rows.bucket("tokens", [2, 5], batch_size=4))
    wanted: list[list[int]] = []
    for low, high in ((-1, 2), (2, 5), (5, 99)):
        members = [row for row, length in enumerate(LENGTHS) if low < length <= high]
        wanted += [members[at : at + 4] for at in range(0, len(members), 4)]
    assert found == wanted == ids(rows.bucket("tokens", [2, 5], batch_size=4))


def test_other_rows_share_a_batch_in_each_epoch_unless_the_shuffle_stays_the_same(rows: Pipeline) -> None:
    anew = rows.shuffle(100, seed=1).bucket("tokens", [4], batch_size=4)
    assert {frozenset(batch) for batch in ids(anew)} != {frozenset(batch) for batch in ids(anew)}
    same = rows.shuffle(100, seed=1, reshuffle_each_iteration=False).bucket("tokens", [4], batch_size=4)
    assert ids(same) == ids(same)
    again = rows.shuffle(100, seed=1).bucket("tokens", [4], batch_size=4)
    assert ids(again.repeat(2)) == [*ids(again), *ids(again)]


@pytest.mark.parametrize("field", ["tokens", "text", "count", UnischemaField("tokens", np.int32, (None,))])
def test_the_length_comes_from_a_list_a_text_or_an_integer(rows: Pipeline, field: Any) -> None:
    assert ids(rows.bucket(field, [3, 6], batch_size=4)) == ids(rows.bucket("tokens", [3, 6], batch_size=4))


def test_batches_are_padded_to_their_bucket_or_to_their_longest_row(rows: Pipeline) -> None:
    for batch in rows.shuffle(9, seed=1).bucket("tokens", [2, 6], batch_size=3, pad_value=-1):
        lengths = [LENGTHS[row] for row in batch["id"]]
        width = next((limit for limit in (2, 6) if limit >= max(lengths)), max(lengths))
        assert batch["tokens"].shape == (len(lengths), width)
        assert batch["tokens__length"].tolist() == lengths
        for row, values, length in zip(batch["id"], batch["tokens"], lengths, strict=True):
            assert values.tolist() == [row] * length + [-1] * (width - length)
    for batch in rows.bucket("tokens", [2, 6], batch_size=3, pad_to="longest"):
        assert batch["tokens"].shape[1] == max(LENGTHS[row] for row in batch["id"])


def test_other_fields_may_be_padded_and_those_that_are_not_stay_ragged(rows: Pipeline) -> None:
    pipeline = rows.bucket("count", [4, 8], batch_size=4, fields=["tokens", "mask"])
    shapes = {(batch["tokens"].shape, batch["mask"].shape, batch["mask__length"].shape) for batch in pipeline}
    assert all(tokens == mask and tokens[:1] == length for tokens, mask, length in shapes)
    ragged = next(iter(rows.bucket("tokens", [4, 8], batch_size=4)))["mask"]
    assert [len(values) for values in ragged] == [3, 0, 1, 2]
    names = [output.name for output in rows.bucket("count", [4], batch_size=4).element.outputs]
    assert names == ["id", "tokens", "mask", "text", "count"]


def test_max_tokens_bounds_what_a_batch_holds(rows: Pipeline) -> None:
    for batch in rows.bucket("tokens", [1, 2, 5, 10], max_tokens=40).take(100):
        count, width = batch["tokens"].shape
        assert count * width <= 40
    sizes = {batch["tokens"].shape for batch in rows.take(25).bucket("tokens", [1, 2, 5, 12], max_tokens=24)}
    assert sizes == {(5, 1), (3, 2), (4, 5), (2, 12), (1, 12)}
    with pytest.raises(
        DecodeError, match=r"a.parquet, row group 4, row 8: expected a length of at most max_tokens=20, got 40"
    ):
        next(iter(rows.bucket("tokens", [5], max_tokens=20)))


def test_buckets_of_equally_many_rows_are_found(rows: Pipeline) -> None:
    found = ids(rows.bucket("tokens", buckets=3, batch_size=100))
    assert len(found) == 3
    limits = np.quantile(LENGTHS, [1 / 3, 2 / 3], method="higher").tolist()
    assert found == [
        [row for row, length in enumerate(LENGTHS) if bucket_of(length, limits) == bucket] for bucket in range(3)
    ]
    assert len(ids(rows.bucket("tokens", buckets=1, batch_sizes=[30]))) == 1
    assert sorted(map(len, ids(rows.bucket("tokens", buckets=2, batch_sizes=[20, 7])))) != []


def test_views_after_it_count_batches(rows: Pipeline) -> None:
    whole = ids(rows.shuffle(9, seed=2).bucket("tokens", [3, 6], batch_size=4))
    pipeline = rows.shuffle(9, seed=2).bucket("tokens", [3, 6], batch_size=4)
    assert ids(pipeline.skip(1).take(3)) == whole[1:4]
    assert ids(rows.take(6).bucket("tokens", [3, 6], batch_size=4)) == [[0, 1, 3], [4, 5], [2]]
    assert len(pipeline.repeat(3)) == 3 * len(whole)
    assert [batch["id"].tolist() for batch in pipeline[[2, 0]]] == [whole[2], whole[0]]
    assert ids(rows.where(pc.field("id") < 6).bucket("tokens", [3, 6], batch_size=4)) == [[0, 1, 3], [4, 5], [2]]


def _sizes(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "size": np.full(len(batch["id"]), len(batch["id"]))}


def test_functions_see_batches(rows: Pipeline) -> None:
    pipeline = rows.bucket("tokens", [3, 6], batch_size=4).transform(
        _sizes, [UnischemaField("size", np.int64)], batched=True
    )
    assert all(batch["size"].tolist() == [len(batch["id"])] * len(batch["id"]) for batch in pipeline)
    assert ids(pipeline) == ids(rows.bucket("tokens", [3, 6], batch_size=4))


def test_a_batch_that_fails_is_one_element_and_the_others_are_given(rows: Pipeline) -> None:
    def refuse(batch: dict[str, Any]) -> dict[str, Any]:
        if 2 in batch["id"]:
            raise ValueError("no")
        return batch

    pipeline = rows.bucket("tokens", [3, 6], batch_size=4).transform(refuse, [], batched=True)
    iterator, found, failed = iter(pipeline.with_options(executor="threads")), [], 0
    while True:
        try:
            found.append(next(iterator)["id"].tolist())
        except TransformError:
            failed += 1
        except StopIteration:
            break
    assert failed == 1
    assert found == [batch for batch in ids(rows.bucket("tokens", [3, 6], batch_size=4)) if 2 not in batch]


def test_element_json_and_explain_say_what_comes(rows: Pipeline) -> None:
    pipeline = rows.select("id", "tokens").bucket("tokens", [np.int64(3), 6], max_tokens=np.int32(48))
    element = pipeline.element
    assert element.batched
    assert element.batch_size is None
    assert not element.static_batch
    assert Pipeline.from_json(json.loads(json.dumps(pipeline.to_json()))) == pipeline
    text = pipeline.explain()
    assert (
        "up to 16 of length <= 3 (11 rows), up to 8 of length <= 6 (7 rows), up to 1 of length <= 40 (8 rows); 41%"
        in text
    )
    assert f"gives: {len(pipeline)} batches of rows" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"expected boundaries=\[...\] or buckets=n"),
        ({"boundaries": [3], "buckets": 2}, "got both or neither"),
        ({"boundaries": [3]}, "expected one of batch_size=, batch_sizes= and max_tokens="),
        ({"boundaries": [3], "batch_size": 1, "max_tokens": 9}, "expected one of batch_size="),
        ({"boundaries": [5, 3], "batch_size": 1}, r"expected ascending boundaries, got \[5, 3\]"),
        ({"boundaries": [0], "batch_size": 1}, "each of boundaries to be an integer >= 1, got 0"),
        ({"boundaries": 3, "batch_size": 1}, "expected boundaries to be a list of integers, got 3"),
        ({"boundaries": [3], "batch_sizes": [1]}, "expected 2 batch_sizes, one for each bucket, the last for rows"),
        ({"buckets": 3, "batch_sizes": [1]}, "expected 3 batch_sizes, one for each bucket, got 1"),
        ({"boundaries": [30], "max_tokens": 20}, "boundaries of at most max_tokens=20, got 30"),
        ({"boundaries": [3], "batch_size": 1, "pad_to": "most"}, r"pad_to to be one of \('bucket', 'longest'\)"),
        ({"buckets": 3, "batch_size": 1, "pad_to": "bucket"}, "expected pad_to='longest' with buckets=n"),
        ({"boundaries": [3], "batch_size": 1.5}, "expected batch_size to be an integer"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(rows: Pipeline, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=f"bucket: .*{message}"):
        rows.bucket("tokens", **options)


@pytest.mark.parametrize(
    ("verbs", "message"),
    [
        (lambda p: p.batch(2), r"batch: expected rows, got the batches of bucket\(\)"),
        (lambda p: p.shuffle(2), r"shuffle\(\) must come before bucket\(\)"),
        (lambda p: p.where(pc.field("id") > 1), r"where\(\) must come before bucket\(\)"),
        (lambda p: p.ngram(length=2), r"ngram\(\) cannot be combined with bucket\(\)"),
        (lambda p: p.weigh("count"), r"weigh\(\) cannot be combined with bucket\(\)"),
        (lambda p: p.transform(lambda row: row, drops=True), r"transform\(\) cannot be combined with bucket\(\)"),
        (lambda p: mix([p, p]), "mix: expected pipelines of rows"),
    ],
)
def test_invalid_later_verbs_are_refused(rows: Pipeline, verbs: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        verbs(rows.bucket("tokens", [3], batch_size=4))


def test_lengths_have_no_place_in_a_tuple(rows: Pipeline) -> None:
    pairs = rows.as_tuple("tokens", "count")
    with pytest.raises(
        PipelineError,
        match=r"bucket\(\) must come before as_tuple\(\): the tuples have no place for 'tokens__length'",
    ):
        _ = pairs.bucket("tokens", [3], batch_size=4).element
    first = next(iter(pairs.bucket("count", [3], batch_size=4)))
    assert first[1].tolist() == [3, 0, 1, 2]


def test_rows_without_a_length_are_named(tmp_path: Path) -> None:
    table = {"words": [[1], None], "size": [1, -1], "share": [0.5, 1.0]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    pipeline = Pipeline(tmp_path)
    with pytest.raises(NullValueError, match=r"field 'words', .*a.parquet, row group 0, row 1"):
        next(iter(pipeline.bucket("words", [1], batch_size=1)))
    with pytest.raises(DecodeError, match=r"field 'size', .*row 1: expected a length >= 0, got -1"):
        next(iter(pipeline.bucket("size", [1], batch_size=1)))
    with pytest.raises(PipelineError, match=r"expected field 'share' to be a list, a string, .* got double"):
        next(iter(pipeline.bucket("share", [1], batch_size=1)))
    assert len(list(pipeline.nulls("drop", "words").bucket("words", [1], batch_size=1))) == 1


def test_no_rows_are_the_usual_error(rows: Pipeline) -> None:
    with pytest.raises(EmptySelectionError):
        next(iter(rows.where(pc.field("id") > 100).bucket("tokens", [3], batch_size=4)))
    for options in ({"boundaries": [3]}, {"buckets": 3}):
        assert list(rows.take(0).bucket("tokens", **options, batch_size=4)) == []
