"""Ragged tensors that the op makes, against those that a `map` of tf.data makes of their parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from parquetry.common import NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset, source
from parquetry.tf_plugin.elements import Leaf, in_one_tensor

ROWS = 37
Chain = Callable[[Any], tf.data.Dataset]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schema = Unischema(
        "lists",
        [
            UnischemaField("id", np.int64),
            UnischemaField("tokens", np.int32, (None,)),
            UnischemaField("words", str, (None,)),
            UnischemaField("points", np.float32, (None, 3, 2), NdarrayCodec()),
            UnischemaField("empty", np.int64, (None,)),
            UnischemaField("flags", np.bool_, (None,)),
        ],
    )
    rows = [
        {
            "id": row,
            "tokens": np.arange(row % 5, dtype=np.int32) + row,
            "words": [f"word {row}", "x" * 40][: row % 3],
            "points": np.full((row % 4, 3, 2), row, np.float32),
            "empty": np.zeros(0, np.int64),
            "flags": np.arange(row % 3) > 0,
        }
        for row in range(ROWS)
    ]
    folder = tmp_path_factory.mktemp("ragged") / "data"
    write_dataset(folder, schema, rows, row_group_rows=8)
    return folder


def flat(value: Any) -> Any:
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def elements(dataset: tf.data.Dataset) -> list[Any]:
    return [tf.nest.map_structure(flat, element) for element in dataset]


CHAINS: dict[str, Chain] = {
    "iterated": lambda data: data.batch(8),
    "full batches": lambda data: data.batch(8, drop_remainder=True),
    "shuffled": lambda data: data.shuffle(20, seed=1).batch(5),
    "tuples": lambda data: data.as_tuple("tokens", "id").batch(8),
    "nothing but lists": lambda data: data.select("tokens", "words").batch(8),
    "map": lambda data: data.batch(8).map(lambda row: {**row, "tokens": row["tokens"] * 2}),
    "batches of batches": lambda data: data.batch(4, drop_remainder=True).batch(2),
    "taken apart": lambda data: data.batch(8).unbatch().batch(3),
    "buffered": lambda data: data.batch(8).prefetch(2),
    "cached": lambda data: tf.data.Dataset.cache(data.batch(8)).repeat(2),
    "interleaved": lambda data: tf.data.Dataset.range(2).interleave(lambda _: data.batch(8), num_parallel_calls=2),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_they_are_those_that_tf_data_makes(url: Path, chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = CHAINS[chain](ParquetDataset(url, workers=1))

    def in_parts(leaf: Leaf) -> Any:
        return None if leaf.ragged else in_one_tensor(leaf)

    monkeypatch.setattr(source, "in_one_tensor", in_parts)
    wanted = CHAINS[chain](ParquetDataset(url, workers=1))
    assert found.element_spec == wanted.element_spec
    assert elements(found) == elements(wanted)


def test_no_op_of_tf_data_makes_them(url: Path) -> None:
    batches = ParquetDataset(url, workers=1).batch(8)
    assert isinstance(batches._dataset(), source._Source)


def test_they_are_kept_in_a_file(url: Path, tmp_path: Path) -> None:
    batches = ParquetDataset(url, workers=1).batch(8)
    batches.save(str(tmp_path / "saved"))
    assert elements(tf.data.Dataset.load(str(tmp_path / "saved"))) == elements(batches)


def test_a_checkpoint_in_mid_epoch_holds_what_was_read_ahead(url: Path, tmp_path: Path) -> None:
    batches = ParquetDataset(url, workers=1).batch(8)
    wanted, iterator = elements(batches), iter(batches)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "at"))
    again = iter(batches)
    tf.train.Checkpoint(iterator=again).restore(path)
    assert elements(again) == wanted[1:]


def test_values_outlive_their_batch(url: Path) -> None:
    batches = list(ParquetDataset(url, workers=1).batch(8).repeat(3))
    assert [flat(batch["tokens"]) for batch in batches[:5]] == [flat(batch["tokens"]) for batch in batches[5:10]]


def test_a_function_with_a_signature_takes_the_iterator(url: Path) -> None:
    batches = ParquetDataset(url, workers=1).batch(8)

    @tf.function(input_signature=[tf.data.IteratorSpec(batches.element_spec)])
    def total(iterator: Any) -> tf.Tensor:
        return tf.reduce_sum(next(iterator)["tokens"].flat_values)

    assert int(total(iter(batches))) == sum(value for row in elements(batches)[0]["tokens"] for value in row)


def test_lists_next_to_lists_of_lists(tmp_path: Path) -> None:
    table = pa.table({"flat": [[1], [], [2, 3]], "deep": [[[1], []], [], [[2, 3]]]})
    pq.write_table(table, tmp_path / "x.parquet")
    (element,) = ParquetDataset(tmp_path, workers=1).nested("deep").batch(3)
    assert element["flat"].to_list() == table["flat"].to_pylist()
    assert element["deep"].to_list() == table["deep"].to_pylist()
