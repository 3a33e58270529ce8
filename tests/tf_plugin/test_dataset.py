"""`ParquetDataset` over real files: verbs pushed into the plan, verbs left to tf.data, and the results of both."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import tensorflow as tf
from builders import build
from ids import ids
from processes import run_python

from parquetry.common import (
    NdarrayCodec,
    ParquetryError,
    Pipeline,
    TensorCodec,
    Unischema,
    UnischemaField,
    write_dataset,
)
from parquetry.common.base.errors import DatasetError, FieldNotFoundError, PipelineError, StateError
from parquetry.tf_plugin import ParquetDataset

ROWS = 40


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes forty rows in eight row groups of two files."""
    schema = Unischema(
        "rows",
        [
            UnischemaField("id", np.int64),
            UnischemaField("name", np.str_),
            UnischemaField("vector", np.float32, (300,), TensorCodec()),
            UnischemaField("points", np.float32, (None, 3), NdarrayCodec()),
            UnischemaField("flag", np.bool_),
        ],
    )
    rows = [
        {
            "id": number,
            "name": f"row {number}",
            "vector": np.full(300, number, np.float32),
            "points": np.full((number % 3, 3), number, np.float32),
            "flag": number % 2 == 0,
        }
        for number in range(ROWS)
    ]
    target = tmp_path_factory.mktemp("data") / "rows"
    write_dataset(str(target), schema, rows, row_group_rows=5, files=2)
    return str(target)


def test_verbs_with_tf_datas_names_go_into_the_plan(url: str, tmp_path: Path) -> None:
    dataset = (
        ParquetDataset(url, workers=1)
        .filter(pc.field("id") > 3)
        .filter([("id", "<", 30)])
        .cache(str(tmp_path / "cache"))
        .shuffle(10, 7, False, name="named")
        .shard(num_shards=4, index=np.int64(1))
        .repeat(-1)
        .batch(tf.constant(5), drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
        .skip(1)
        .take(3)
    )
    expected = (
        Pipeline(url, workers=1)
        .where(pc.field("id") > 3)
        .where([("id", "<", 30)])
        .cache(str(tmp_path / "cache"))
        .shuffle(10, seed=7, reshuffle_each_iteration=False)
        .shard(4, 1)
        .repeat()
        .batch(5, drop_remainder=True)
        .skip(1)
        .take(3)
    )
    assert dataset.pipeline == expected
    assert dataset.element_spec["id"] == tf.TensorSpec((5,), tf.int64)


def test_shard_passes_on_what_only_the_pipeline_has(url: str) -> None:
    for options in ({"even": "drop", "canonical_shards": 8}, {"policy": "rowgroup_modulo"}):
        assert ParquetDataset(url).shard(4, 1, **options).pipeline == Pipeline(url).shard(4, 1, **options)
    with pytest.raises(PipelineError, match=r"shard\(\) must come before batch"):
        ParquetDataset(url).batch(2).shard(4, 1, even="drop")


def test_tf_data_does_what_the_plan_cannot(url: str) -> None:
    batches = ParquetDataset(url, ["id"]).batch(10)
    assert ids(batches.shard(2, 1)) == [*range(10, 20), *range(30, 40)]
    assert sorted(ids(batches.shuffle(4))) == list(range(ROWS))
    assert [batch["id"].shape for batch in batches.batch(2)] == [(2, 10), (2, 10)]
    assert not isinstance(batches.batch(2), ParquetDataset)


@pytest.mark.slow
def test_functions_in_filter_are_tf_datas(url: str) -> None:
    even = ParquetDataset(url, ["id", "flag"]).filter(lambda row: row["flag"])
    assert not isinstance(even, ParquetDataset)
    assert ids(even) == list(range(0, ROWS, 2))


def test_cache_without_a_directory_is_tf_datas(url: str) -> None:
    cached = ParquetDataset(url, ["id"]).shuffle(ROWS, seed=1).cache()
    assert not isinstance(cached, ParquetDataset)
    assert ids(cached) == ids(cached)


@pytest.mark.slow
def test_negative_counts_mean_what_tf_data_says(url: str) -> None:
    dataset = ParquetDataset(url, ["id"])
    assert ids(dataset.take(-1)) == list(range(ROWS))
    assert ids(dataset.skip(-1)) == []
    assert dataset.repeat(-1).cardinality() == tf.data.INFINITE_CARDINALITY


def test_counts_that_only_the_graph_knows_are_left_to_tf_data(url: str) -> None:
    dataset = ParquetDataset(url, ["id"]).batch(10)

    @tf.function
    def total(count: tf.Tensor) -> tf.Tensor:
        return dataset.take(count).reduce(
            tf.constant(0, tf.int64), lambda seen, batch: seen + tf.reduce_sum(batch["id"])
        )

    assert total(tf.constant(1, tf.int64)) == sum(range(10))
    assert total(tf.constant(2, tf.int64)) == sum(range(20))


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("batch", "batch_size"),
        ("take", "count"),
        ("skip", "count"),
        ("repeat", "count"),
        ("shuffle", "buffer_size"),
        ("prefetch", "buffer_size"),
    ],
)
@pytest.mark.parametrize("value", ["three", True, np.bool_(True), 1.5, tf.constant(True)])
def test_arguments_that_are_not_integers_are_refused(url: str, verb: str, name: str, value: Any) -> None:
    with pytest.raises(PipelineError, match=f"{verb}: expected {name} to be an integer, got"):
        getattr(ParquetDataset(url), verb)(value)


def test_a_flag_is_true_or_false(url: str) -> None:
    with pytest.raises(PipelineError, match="batch: expected drop_remainder to be True or False, got 'yes'"):
        ParquetDataset(url).batch(4, drop_remainder="yes")
    for flag in (True, np.bool_(True), tf.constant(True), 1):
        assert ParquetDataset(url).batch(4, drop_remainder=flag).pipeline == Pipeline(url).batch(4, drop_remainder=True)


def test_a_filter_that_is_no_predicate_says_what_one_is(url: str) -> None:
    with pytest.raises(PipelineError, match=r"where: expected an expression such as pc.field\('id'\) > 3, or tuples"):
        ParquetDataset(url).filter("id > 3")


def test_a_seed_is_drawn_once_and_follows_set_seed(url: str) -> None:
    def seed_of(dataset: Any) -> int:
        return dataset.pipeline.stages[-1].seed

    free = ParquetDataset(url).shuffle(10), ParquetDataset(url).shuffle(10)
    assert seed_of(free[0]) != seed_of(free[1])
    try:
        tf.random.set_seed(5)
        first = [seed_of(ParquetDataset(url).shuffle(10)) for _ in range(2)]
        tf.random.set_seed(5)
        again = [seed_of(ParquetDataset(url).shuffle(10)) for _ in range(2)]
    finally:
        tf.compat.v1.set_random_seed(None)
    assert first == again
    assert first[0] != first[1]


def test_an_error_of_a_user_function_arrives(url: str) -> None:
    def broken(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"no {row['id']}")

    with pytest.raises(
        tf.errors.InternalError, match=r"^transform .*broken failed for file .*ValueError\('no 0'\)"
    ) as caught:
        next(iter(ParquetDataset(url, ["id"]).transform(broken).batch(4)))
    assert "[Op:" not in caught.value.message  # no text from the runtime around it
    assert len(caught.traceback) == 2


@pytest.mark.parametrize("character", ["错", "\0"])
def test_a_long_error_in_any_alphabet_arrives_with_its_cause(url: str, character: str) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(character * 20_000 + "\ud800 is the cause")

    with pytest.raises(tf.errors.InternalError, match=r"(?s)transform .*fails failed for file .*is the cause"):
        next(iter(ParquetDataset(url, ["id"], workers=1).transform(fails)))


def test_a_filter_that_leaves_nothing_is_an_error(url: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected at least one item, got none from 2 files"):
        next(iter(ParquetDataset(url).where(pc.field("id") > 1000)))


def test_missing_datasets_and_fields_raise_their_own_classes(url: str) -> None:
    with pytest.raises(DatasetError, match="found nothing there"):
        _ = ParquetDataset(url + "-elsewhere").element_spec
    with pytest.raises(FieldNotFoundError, match="nowhere"):
        _ = ParquetDataset(url).select("nowhere").element_spec
    assert issubclass(DatasetError, ParquetryError)


@pytest.mark.slow
def test_a_length_that_cannot_be_found_is_an_error_with_its_cause_and_is_looked_for_again(
    url: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"

    def fails(row: dict[str, Any]) -> bool:
        if broken.exists():
            raise KeyError("the cause")
        return bool(row["id"] < 3)

    dataset = ParquetDataset(url, ["id"]).where(fails, fields=["id"])
    broken.touch()
    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match="the cause"):
            len(dataset)
    with pytest.raises(TypeError, match="unknown"):  # tf.data's own datasets cannot say more
        len(dataset.map(lambda row: row))
    broken.unlink()
    assert len(dataset.map(lambda row: row)) == len(dataset) == 3


@pytest.mark.parametrize("used", [False, True], ids=["new", "in use"])
def test_a_state_is_loaded_in_place_and_holds_for_what_was_made_of_the_dataset(url: str, used: bool) -> None:
    dataset = ParquetDataset(url, ["id"]).shuffle(15, seed=4).batch(8)
    derived = dataset.map(lambda batch: batch["id"])
    first = ids(ParquetDataset.from_pipeline(dataset.pipeline))
    steps = iter(dataset.pipeline)
    next(steps)
    if used:
        list(derived)
    dataset.load_state_dict(steps.state_dict())
    assert [number for batch in derived for number in batch.numpy().tolist()] == first[8:]
    assert ids(dataset) != first
    dataset.load_state_dict(steps.state_dict())
    assert ids(dataset) == first[8:]


def test_a_shard_of_tf_data_keeps_states_and_epochs(url: str) -> None:
    """It deals by position, as workers of tf.data service do. But here, all iterators share one count."""
    dataset = ParquetDataset(url, ["id"]).shuffle(15, seed=4)
    dealt = dataset.map(lambda row: row).shard(2, 1).batch(4)
    iterator = iter(dealt)
    next(iterator)
    state = dataset.state_dict(elements=8)
    rest = ids(iterator)
    assert ids(dealt) != ids(dealt)
    dataset.load_state_dict(state)
    assert ids(dealt) == rest

    @tf.function
    def total(batches: tf.data.Dataset) -> tf.Tensor:
        found = tf.constant(0, tf.int64)
        for batch in batches:
            found = found * 3 + batch["id"][0]
        return found

    assert len({int(total(dealt)) for _ in range(4)}) == 4


@pytest.mark.slow
def test_epochs_inside_a_function_have_their_own_orders_where_tf_data_deals_the_rows(url: str) -> None:
    """In a process that made no dataset outside of functions."""
    program = f"""
import tensorflow as tf
from parquetry.tf_plugin import ParquetDataset

@tf.function
def orders():
    rows = ParquetDataset({url!r}, ["id"]).shuffle(15, seed=4).map(lambda row: row["id"]).shard(2, 1)
    total = lambda found, number: found * 3 + number
    return tf.stack([rows.reduce(tf.constant(0, tf.int64), total) for _ in range(3)])

print(len(set(orders().numpy().tolist())))
"""
    assert run_python("-c", program).stdout.split() == ["3"]


@pytest.mark.slow
def test_a_state_of_another_pipeline_is_refused(url: str) -> None:
    dataset = ParquetDataset(url, ["id"]).shuffle(5, seed=1)
    next(iter(dataset))
    other = ParquetDataset(url, ["id"]).shuffle(5, seed=2).load_state_dict(dataset.state_dict(1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="saved for a different shuffle seed: this pipeline has 2"):
        next(iter(other))


def test_copies_and_pickles_carry_the_pipeline(url: str) -> None:
    dataset = ParquetDataset(url, ["id"]).shuffle(5, seed=1).batch(8)
    expected = ids(dataset)
    for twin in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert isinstance(twin, ParquetDataset)
        assert twin.pipeline == dataset.pipeline
    assert ids(copy.deepcopy(dataset)) == expected
    assert ids(ParquetDataset.from_pipeline(dataset.pipeline)) == expected


def test_an_unreadable_field_may_be_deselected_later(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = pa.array([[{"a": 1}], [{"a": 2}]], pa.list_(pa.struct([("a", pa.int64())])))
    pq.write_table(pa.table({"id": pa.array([1, 2]), "nested": kinds}), tmp_path / "x.parquet")
    dataset = ParquetDataset(str(tmp_path / "x.parquet"))
    with pytest.raises(ParquetryError, match="field 'nested'"):
        _ = dataset.element_spec
    assert ids(dataset.select("id")) == [1, 2]


def test_a_dataset_made_inside_a_function_is_read_there(url: str) -> None:
    @tf.function
    def total() -> tf.Tensor:
        dataset = ParquetDataset(url, ["id"]).batch(10)
        return dataset.reduce(tf.constant(0, tf.int64), lambda seen, batch: seen + tf.reduce_sum(batch["id"]))

    assert total() == total() == sum(range(ROWS))


def test_the_schema_is_the_pipelines(url: str) -> None:
    dataset = ParquetDataset(url, ["id"])
    assert dataset.schema == dataset.pipeline.schema


def test_what_only_a_pipeline_has_says_where_it_is(url: str) -> None:
    for name in ("to_json", "fit"):  # close to `filter`
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'. Its pipeline has it: .pipeline.{name}.$"):
            getattr(ParquetDataset(url), name)


def test_explain_tells_the_plan(url: str) -> None:
    assert "40 rows" in ParquetDataset(url).batch(4).explain()


@pytest.mark.parametrize("used", [False, True], ids=["new", "in use"])
def test_values_that_are_not_states_are_refused_where_they_are_loaded(url: str, used: bool) -> None:
    dataset = ParquetDataset(url, ["id"]).batch(8)
    if used:
        next(iter(dataset))
    with pytest.raises(StateError, match="expected a number of elements >= 0, got -1"):
        dataset.state_dict(-1)
    state = dataset.state_dict(0)
    wrong: list[Any] = [
        {**state, "consumed": -1},
        {**state, "shards": [1, 1]},
        json.dumps(state)[:-5],
        b"\xff",
        {},
        None,
    ]
    for value in wrong:
        with pytest.raises(StateError, match="state: expected"):
            dataset.load_state_dict(value)
        with pytest.raises(StateError, match="state: expected"):
            dataset.start_next_at(value)
    assert ids(dataset.load_state_dict(state)) == list(range(ROWS))


@pytest.mark.slow
def test_an_epoch_is_counted_through_ops_of_tf_data_and_without_batches(url: str) -> None:
    data = ParquetDataset(url, ["id"]).where(pc.field("id") >= 0).shuffle(10, seed=1).batch(7)
    with pytest.raises(PipelineError, match="expected a dataset that was iterated in this process"):
        data.stats()
    rows = sum(len(batch["id"]) for batch in data.map(lambda row: row).prefetch(1))
    assert (data.stats().rows, data.stats().elements) == (rows, -(-rows // 7))
    unbatched = ParquetDataset(url, ["id"]).take(5)
    assert len(list(unbatched)) == 5
    assert unbatched.stats().rows == unbatched.stats().elements == 5


def failing(numbers: set[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function that is pickled by value, so the sidecar does not import this module and TensorFlow."""

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] in numbers:
            raise KeyError("seven")
        return row

    return fails


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 4])
def test_a_row_that_fails_is_left_out_where_errors_are_ignored(url: str, batch: int | None) -> None:
    rows = ParquetDataset(url, ["id"], workers=1).where([("id", "<", 20)]).transform(failing({7}))
    dataset = rows if batch is None else rows.batch(batch)
    lost = {7} if batch is None else {4, 5, 6, 7}
    kept = [number for number in range(20) if number not in lost]
    assert ids(dataset.ignore_errors()) == kept
    assert dataset.state_dict(len(kept) if batch is None else 4)["consumed"] == int(dataset.cardinality())


@pytest.mark.slow
def test_a_consumer_that_keeps_everything_does_not_stall_on_elements_that_fail(tmp_path: Path) -> None:
    many = build(tmp_path, [[300]], names=("id",))
    fails = failing(set(range(0, 300, 3)))

    def wide(row: dict[str, Any]) -> dict[str, Any]:
        return {**fails(row), "x": np.zeros(300)}

    dataset = ParquetDataset(many.url, workers=1).transform(wide, [UnischemaField("x", np.float64, (300,))])
    kept = list(dataset.ignore_errors())
    assert [int(row["id"]) for row in kept] == [number for number in range(300) if number % 3]
    batches = list(dataset.batch(2).ignore_errors())
    assert [batch["id"].numpy().tolist() for batch in batches] == [[n, n + 1] for n in range(4, 300, 6)]
