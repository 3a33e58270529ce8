"""Verbs that tf.data lacks, as methods and as functions for ``apply``: their specs and values."""

from __future__ import annotations

import decimal
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ids import ids

from parquetry import tf_plugin
from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, contains, hash_split, write_dataset
from parquetry.common import mix as mix_pipelines
from parquetry.common.apps.testing import assert_same
from parquetry.common.base.errors import PipelineError, SchemaError
from parquetry.tf_plugin import ParquetDataset

ROWS = 24


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    schema = Unischema(
        "rows",
        [
            UnischemaField("id", np.int64),
            UnischemaField("speed", np.float32, nullable=True),
            UnischemaField("image", np.uint8, (2, 3, 1), NdarrayCodec(), dims=("H", "W", "C")),
            UnischemaField("points", np.float32, (None, 2), NdarrayCodec()),
            UnischemaField("tags", np.str_, (None,)),
            UnischemaField("price", decimal.Decimal),
        ],
    )
    rows = [
        {
            "id": n,
            "speed": None if n % 3 == 0 else float(n),
            "image": np.arange(6, dtype=np.uint8).reshape(2, 3, 1) + n,
            "points": np.full((n % 4, 2), n, np.float32),
            "tags": ["even"] if n % 2 == 0 else ["odd", f"n{n}"],
            "price": decimal.Decimal(n) / 4,
        }
        for n in range(ROWS)
    ]
    target = tmp_path_factory.mktemp("data") / "rows"
    write_dataset(str(target), schema, rows, row_group_rows=6, files=2)
    return str(target)


VERBS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "select": ("select", ("id", "speed"), {}),
    "where": ("where", ([("id", "<", 30)],), {}),
    "where contains": ("where", (contains("tags", "odd"),), {}),
    "hash split": ("hash_split", ("id", [0.5, 0.5], 1), {"seed": 3}),
    "nulls filled": ("nulls", ("fill", "speed"), {"value": -1.0}),
    "nulls masked": ("nulls", ("mask",), {}),
    "nulls dropped": ("nulls", ("drop", "speed"), {}),
    "padded": ("pad", ("points",), {}),
    "padded to a shape": ("pad", ("points", "tags"), {"shape": None}),
    "padded with a value": ("pad", ("points",), {"shape": (5, 2), "value": -1}),
    "permuted": ("permute", ("image",), {"dims": ("C", "H", "W")}),
    "decimals": ("decimals", ("float64", "price"), {}),
    "cached": ("cache", ("cache",), {}),
    "windows": ("ngram", (["id"],), {"length": 2}),
    "shuffled": ("shuffle", (10,), {"seed": 7}),
    "dealt": ("shard", (2, 0), {"even": "none"}),
    "transformed": (
        "transform",
        (lambda row: {"twice": row["id"] * 2},),
        {"adds": [UnischemaField("twice", np.int64)]},
    ),
}


@pytest.mark.parametrize(("verb", "arguments", "options"), VERBS.values(), ids=VERBS.keys())
def test_a_verb_is_the_pipelines(url: str, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    dataset = getattr(ParquetDataset(url), verb)(*arguments, **options)
    applied = ParquetDataset(url).apply(getattr(tf_plugin, verb)(*arguments, **options))
    pipeline = getattr(Pipeline(url), verb)(*arguments, **options)
    assert dataset.pipeline == applied.pipeline == pipeline
    with pytest.raises(
        PipelineError, match=rf"{verb}: expected a ParquetDataset, got .*MapDataset\. Apply it before map"
    ):
        ParquetDataset(url).map(lambda row: row).apply(getattr(tf_plugin, verb)(*arguments, **options))


def test_companions_and_padded_fields_are_dense(url: str) -> None:
    dataset = ParquetDataset(url).nulls("mask", "speed").pad("points", "tags").select("s.*", "p.*", "t.*").batch(4)
    spec = dataset.element_spec
    assert spec["speed__valid"] == tf.TensorSpec((None,), tf.bool)
    assert spec["points__length"] == tf.TensorSpec((None,), tf.int64)
    assert spec["points"] == tf.TensorSpec((None, None, 2), tf.float32)
    assert spec["tags"] == tf.TensorSpec((None, None), tf.string)
    batch = next(iter(dataset))
    assert batch["points"].shape == (4, 3, 2)
    assert batch["points__length"].numpy().tolist() == [0, 1, 2, 3]
    assert batch["speed__valid"].numpy().tolist() == [False, True, True, False]
    assert batch["tags"].numpy().tolist() == [[b"even", b""], [b"odd", b"n1"], [b"even", b""], [b"odd", b"n3"]]


def test_fixed_shapes_are_static(url: str) -> None:
    dataset = ParquetDataset(url, ["id", "points"]).where([("id", "in", [2, 6, 10])]).fixed("points", shape=(2, 2))
    assert dataset.element_spec["points"] == tf.TensorSpec((2, 2), tf.float32)
    assert [row["points"].numpy()[0, 0] for row in dataset] == [2, 6, 10]


def test_predicates_on_columns_go_into_the_plan_through_filter(url: str) -> None:
    assert ids(ParquetDataset(url, ["id", "tags"]).filter(contains("tags", "n5"))) == [5]
    dataset = ParquetDataset(url, ["id"]).filter(hash_split("id", [0.5, 0.5], 0, 7))
    assert dataset.pipeline == Pipeline(url, ["id"]).hash_split("id", [0.5, 0.5], 0, 7)


def test_options_of_the_pipeline_and_of_tf_data_have_one_verb(url: str) -> None:
    dataset = ParquetDataset(url, ["id"]).with_options(workers=1, memory_limit=1 << 20)
    assert isinstance(dataset, ParquetDataset)
    assert (dataset.pipeline.workers, dataset.pipeline.memory_limit) == (1, 1 << 20)
    options = tf.data.Options()
    options.deterministic = True
    both = dataset.with_options(options, workers=2)
    assert both.options().deterministic
    assert ids(both) == list(range(ROWS))


def test_verbs_behind_options_are_still_part_of_the_plan(url: str) -> None:
    first, second = tf.data.Options(), tf.data.Options()
    first.deterministic = False
    second.threading.private_threadpool_size = 2
    dataset = ParquetDataset(url, ["id"]).with_options(first).shuffle(4, seed=1).with_options(second).batch(ROWS)
    assert dataset.pipeline == Pipeline(url, ["id"]).shuffle(4, seed=1).batch(ROWS)
    for same in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.map(lambda batch: batch)):
        assert same.options().deterministic is False
        assert same.options().threading.private_threadpool_size == 2
    assert sorted(ids(dataset)) == list(range(ROWS))


def test_a_shard_that_tf_data_is_to_fill_in_is_tf_datas(url: str) -> None:
    hint = tf.data.experimental.SHARD_HINT
    dataset = ParquetDataset(url, ["id"]).shard(hint, hint)
    assert not isinstance(dataset, ParquetDataset)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.HINT
    parts = [tf.raw_ops.AutoShardDataset(**auto_shard(dataset.with_options(options), part)) for part in range(2)]
    found = [ids(tf.data.experimental.from_variant(part, dataset.element_spec)) for part in parts]
    assert found == [list(range(0, ROWS, 2)), list(range(1, ROWS, 2))]
    with pytest.raises(PipelineError, match=r"shard: expected numbers that are known now with \['even'\], got -1"):
        ParquetDataset(url).shard(hint, hint, even="drop")


def test_sharding_by_files_says_what_to_use(url: str) -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    dataset = ParquetDataset(url, ["id"]).map(lambda row: row).with_options(options)
    with pytest.raises(
        tf.errors.NotFoundError, match=r"(?s)cannot be sharded by files.*Use dataset\.shard\(num_shards"
    ):
        tf.raw_ops.AutoShardDataset(**auto_shard(dataset, 0))


def auto_shard(dataset: tf.data.Dataset, index: int) -> dict[str, Any]:
    """Returns the arguments of `tf.distribute`'s sharding on the ``index``-th of two workers."""
    flat = tf.nest.flatten(dataset.element_spec)
    return {
        "input_dataset": dataset._variant_tensor,
        "num_workers": 2,
        "index": index,
        "auto_shard_policy": int(dataset.options().experimental_distribute.auto_shard_policy),
        "output_types": [spec.dtype for spec in flat],
        "output_shapes": [spec.shape for spec in flat],
    }


def test_a_shard_without_arguments_is_the_launchers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    assert ParquetDataset(url).shard().pipeline == Pipeline(url).shard(3, 2)
    assert ParquetDataset(url).apply(tf_plugin.shard(even="drop")).pipeline == Pipeline(url).shard(3, 2, even="drop")
    monkeypatch.delenv("RANK")
    with pytest.raises(PipelineError, match="expected num_shards and index, or a launcher's variables"):
        ParquetDataset(url).shard()


def test_mixes_equal_the_pipelines(url: str) -> None:
    def sources(make: Callable[..., Any]) -> list[Any]:
        return [make(url, ["id"]).where([("id", "<", 12)]), make(url, ["id"]).where([("id", ">=", 12)]).shuffle(5, 1)]

    dataset = tf_plugin.mix(sources(ParquetDataset), weights=[2, 1], seed=5, stop="all").batch(4)
    pipeline = mix_pipelines(sources(Pipeline), weights=[2, 1], seed=5, stop="all").batch(4)
    assert_same([batch["id"].numpy() for batch in dataset], [batch["id"] for batch in pipeline])
    assert sorted(ids(dataset)) == list(range(ROWS))
    assert ids(ParquetDataset.from_pipeline(pipeline.take(3))) == ids(pipeline.take(3))


def test_the_state_of_a_mix_brings_back_the_seeds_that_were_drawn(url: str) -> None:
    def make() -> ParquetDataset:
        return tf_plugin.mix([ParquetDataset(url, ["id"]).shuffle(5), ParquetDataset(url, ["id"])], stop="all").batch(4)

    first = make()
    batches = [batch["id"].numpy().tolist() for batch in first]
    assert [batch["id"].numpy().tolist() for batch in make().load_state_dict(first.state_dict(2))] == batches[2:]


def test_a_field_beside_the_offsets_of_windows_is_refused_by_name(url: str) -> None:
    windows = ParquetDataset(url, ["id"]).ngram({0: ["id"], 1: ["id"]})
    wrong = windows.transform(
        lambda row: {**row, "sum": row[0]["id"] + row[1]["id"]}, [UnischemaField("sum", np.int64)]
    )
    with pytest.raises(SchemaError, match=r"field 'sum': expected no field beside the offsets \[0, 1\] of windows"):
        _ = wrong.element_spec


def test_the_seed_of_a_mix_follows_set_seed(url: str) -> None:
    def seed() -> int:
        mixture = tf_plugin.mix([ParquetDataset(url), ParquetDataset(url)]).pipeline.source.mixture
        assert mixture is not None
        return mixture.seed

    assert seed() != seed()
    try:
        tf.random.set_seed(5)
        first = seed()
        tf.random.set_seed(5)
        assert seed() == first
    finally:
        tf.compat.v1.set_random_seed(None)


def test_no_source_or_verb_is_converted_by_autograph(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It would convert everything that they call, and warn of each function that it cannot."""

    def part(index: tf.Tensor) -> tf.data.Dataset:
        return ParquetDataset.from_huggingface_parquet(url, fields=["id"]).shuffle(5, seed=1).shard(2, index)

    assert len(list(tf.data.Dataset.range(2).interleave(part))) == len(ParquetDataset(url))
    assert "AutoGraph" not in caplog.text
