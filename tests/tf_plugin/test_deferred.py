"""Shards and URLs known only to the running graph, and when an epoch advances."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from builders import Built, built_once
from ids import ids

from parquetry.common.base.errors import PipelineError
from parquetry.tf_plugin import ParquetDataset, mix

ROWS = 17
PARTS = tf.data.Dataset.range(2)
built = built_once([[4, 1, 5], [3, 4]], names=("id",))


def shuffled(built: Built) -> ParquetDataset:
    return ParquetDataset(built.url, workers=1).shuffle(6, seed=3)


@pytest.mark.parametrize(
    "together",
    [
        lambda part: PARTS.flat_map(part),
        lambda part: PARTS.interleave(part, cycle_length=2, num_parallel_calls=2),
        lambda part: PARTS.interleave(part, cycle_length=2, num_parallel_calls=2, deterministic=False),
        lambda part: PARTS.repeat(2).interleave(part, cycle_length=1).take(ROWS),
    ],
    ids=["flat_map", "parallel", "in any order", "repeated"],
)
def test_shards_by_a_tensor_part_the_rows_in_every_epoch(built: Built, together: Callable[..., Any]) -> None:
    dataset = together(lambda part: shuffled(built).shard(2, part))
    first, second = ids(dataset), ids(dataset)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != sorted(first)


@pytest.mark.slow
def test_a_dataset_from_outside_continues_with_the_next_epoch_and_one_from_inside_begins_again(built: Built) -> None:
    outside = shuffled(built)
    again = ids(PARTS.flat_map(lambda _: shuffled(built)))
    later = ids(PARTS.flat_map(lambda _: outside))
    assert again[:ROWS] == again[ROWS:] == later[:ROWS] != later[ROWS:]
    assert sorted(later[ROWS:]) == list(range(ROWS))


def test_verbs_in_the_function_make_another_dataset(built: Built) -> None:
    outside = shuffled(built)
    assert sorted(ids(PARTS.flat_map(lambda part: outside.shard(2, part)))) == list(range(ROWS))


@pytest.mark.slow
def test_a_function_that_autograph_rewrites_is_refused(built: Built) -> None:
    def part(number: tf.Tensor) -> tf.data.Dataset:
        def same(row: dict[str, Any]) -> dict[str, Any]:
            return row

        return shuffled(built).transform(same).shard(2, number)

    with pytest.raises(PipelineError, match=r"user function .*same: TensorFlow's AutoGraph has rewritten it.*outside"):
        PARTS.interleave(part)
    assert sorted(ids(PARTS.interleave(lambda k: shuffled(built).transform(_same).shard(2, k)))) == list(range(ROWS))


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def test_each_call_of_a_function_begins_at_the_first_epoch(built: Built) -> None:
    @tf.function
    def two_epochs(index: tf.Tensor) -> tf.Tensor:
        made = shuffled(built).shard(tf.constant(2, tf.int32), index)
        return next(iter(made.map(lambda row: row["id"]).repeat(2).batch(ROWS + 1)))

    found, again = two_epochs(tf.constant(0)).numpy().tolist(), two_epochs(tf.constant(0)).numpy().tolist()
    assert found == again
    assert len(found) == ROWS + 1
    assert sorted(found[:9]) != sorted(found[9:])  # shuffle().shard() reshards every epoch


def test_the_graph_knows_the_length_and_the_elements_of_a_shard(built: Built) -> None:
    @tf.function
    def lengths(count: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = ParquetDataset(built.url).shard(count, index)
        assert part.element_spec == {"id": tf.TensorSpec((), tf.int64)}
        assert part.batch(4, drop_remainder=True).element_spec == {"id": tf.TensorSpec((4,), tf.int64)}
        return part.cardinality(), part.shard(2, 0).cardinality()

    found = lengths(tf.constant(4, tf.int64), tf.constant(0, tf.int64))
    assert [int(length) for length in found] == [5, 3]


@pytest.mark.parametrize(
    ("options", "rows"), [({"even": "pad"}, 18), ({"even": "drop"}, 16), ({"policy": "rowgroup_modulo"}, 17)]
)
def test_what_the_pipeline_alone_has_holds_for_such_shards(built: Built, options: dict[str, str], rows: int) -> None:
    assert len(ids(PARTS.flat_map(lambda part: ParquetDataset(built.url).shard(2, part, **options)))) == rows


@pytest.mark.slow
def test_a_shard_that_is_not_there_is_an_error(built: Built) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shard: expected index from 0 to num_shards - 1 = 0"):
        ids(PARTS.skip(1).flat_map(lambda part: ParquetDataset(built.url).shard(1, part)))


@pytest.mark.slow
def test_an_interleave_of_shards_resumes_from_a_checkpoint(built: Built, tmp_path: Path) -> None:
    dataset = PARTS.interleave(lambda part: shuffled(built).shard(2, part), cycle_length=2)
    iterator = iter(dataset)
    taken = [int(next(iterator)["id"]) for _ in range(5)]
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "state"))
    rest = [int(row["id"]) for row in iterator]
    other = iter(dataset)
    tf.train.Checkpoint(iterator=other).read(path).assert_consumed()
    assert [int(row["id"]) for row in other] == rest
    assert sorted(taken + rest) == list(range(ROWS))


def test_calls_that_need_the_shard_now_are_refused(built: Built) -> None:
    refused = r"expected a pipeline without tensors, got one whose shard is known only when the graph runs"
    kept = r"state_dict: expected a dataset created outside of functions"

    def part(index: tf.Tensor) -> tf.data.Dataset:
        dataset = shuffled(built).shard(2, index)
        with pytest.raises(PipelineError, match=refused):
            dataset.explain()
        with pytest.raises(PipelineError, match=refused):
            mix([dataset, dataset])
        with pytest.raises(PipelineError, match=kept):
            dataset.state_dict(0)
        return dataset

    assert PARTS.flat_map(part).element_spec == {"id": tf.TensorSpec((), tf.int64)}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Writes three files of two rows, the last with another dtype, under names that JSON must escape."""
    folder = tmp_path_factory.mktemp("urls")
    paths = [str(folder / name) for name in ('a "quoted" ä.parquet', "b\\c.parquet", "floats.parquet")]
    for number, (path, dtype) in enumerate(zip(paths, ("int64", "int64", "float64"), strict=True)):
        pq.write_table(pa.table({"id": pa.array([2 * number, 2 * number + 1], dtype)}), path)
    return paths


@pytest.mark.slow
def test_datasets_are_interleaved_over_urls(urls: list[str]) -> None:
    files = tf.data.Dataset.from_tensor_slices(urls[:2])
    assert ids(files.interleave(functools.partial(ParquetDataset, like=urls[0]), cycle_length=1)) == [0, 1, 2, 3]
    like = ParquetDataset(urls[0]).shuffle(2, seed=1)
    parts = files.interleave(lambda url: ParquetDataset(url, like=like).shard(2, tf.strings.length(url) * 0))
    assert len(ids(parts)) == 2


@pytest.mark.parametrize(
    ("verbs", "expected"),
    [
        (lambda data: data, [0, 1, 2, 3]),
        (lambda data: data.where([("id", ">", 1)]), [2, 3]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (lambda data: data.where([("id", "=", 3)]).shard(1, 0, even="drop").batch(2), [3]),
                (lambda data: data.where([("id", ">", 9)]).repeat(), []),
            ]
        ),
    ],
)
def test_a_file_among_several_may_have_no_rows(
    urls: list[str], tmp_path: Path, verbs: Any, expected: list[int]
) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    files = tf.data.Dataset.from_tensor_slices([urls[0], str(tmp_path / "none.parquet"), urls[1]])
    dataset = files.interleave(lambda url: verbs(ParquetDataset(url, like=urls[0])), cycle_length=1)
    assert ids(dataset) == ids(dataset) == expected


def test_urls_that_are_known_may_be_tensors(urls: list[str]) -> None:
    assert ids(ParquetDataset(tf.constant(urls[:2]))) == [0, 1, 2, 3]
    assert ids(ParquetDataset([tf.constant(urls[1])], like=ParquetDataset(urls[0]).take(1))) == [2]


def test_a_url_that_is_not_known_needs_something_that_it_is_like(urls: list[str]) -> None:
    files = tf.data.Dataset.from_tensor_slices(urls)
    with pytest.raises(PipelineError, match=r"Say what the files look like: interleave\(lambda url: "):
        files.interleave(ParquetDataset)
    mixed = mix([ParquetDataset(urls[0]), ParquetDataset(urls[1])], seed=0)
    with pytest.raises(PipelineError, match=r"expected a pipeline over files, got a mix"):
        files.interleave(functools.partial(ParquetDataset, like=mixed))


def test_files_that_are_not_alike_are_an_error(urls: list[str]) -> None:
    files = tf.data.Dataset.from_tensor_slices(urls[2:])
    message = r"field 'id': expected int64 of shape \(\), as in the dataset given as like=, got float64 of shape \(\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ids(files.flat_map(lambda url: ParquetDataset(url, like=urls[0])))
