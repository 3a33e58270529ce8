"""Chains that hold nothing to tune run without tf.data's autotuner; it tunes all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import debug_mode  # the public function cannot be undone

from parquetry.common import NdarrayCodec, TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset, iterator
from parquetry.tf_plugin.iterator import EagerIterator

ROWS, BATCH = 24, 4
Chain = Callable[[ParquetDataset], tf.data.Dataset]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = [
        UnischemaField("x", np.float32, (3,), TensorCodec()),
        UnischemaField("y", np.float32),
        UnischemaField("ragged", np.int64, (None,), NdarrayCodec()),
    ]
    rows = [{"x": np.full(3, n, np.float32), "y": float(n), "ragged": np.arange(n % 4)} for n in range(ROWS)]
    target = tmp_path_factory.mktemp("data") / "rows"
    write_dataset(str(target), Unischema("rows", fields), rows, row_group_rows=6)
    return str(target)


def rows(url: str) -> ParquetDataset:
    return ParquetDataset(url, ["x", "y"], workers=1).shuffle(12, seed=4).batch(BATCH)


def chosen(**autotune: Any) -> tf.data.Options:
    options = tf.data.Options()
    for name, value in autotune.items():
        setattr(options.autotune, name, value)
    return options


def in_force(dataset: tf.data.Dataset) -> bool | None:
    """Whether the autotuner is switched on (``None``: as tf.data has it) for a new iterator of a dataset."""
    return iter(dataset)._dataset.options().autotune.enabled


def buffers(dataset: tf.data.Dataset) -> int:
    """The number of ``prefetch`` ops that a new iterator of a dataset reads through, without tf.data's rewrites."""
    found, chain = 0, [iter(dataset)._dataset]
    while chain:
        found += "Prefetch" in type(chain[0]).__name__
        chain = chain[0]._inputs()
    return found


def fewer_threads() -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return options


NOTHING_TO_TUNE: dict[str, Chain] = {
    "the dataset": lambda data: data,
    "verbs of the plan": lambda data: data.as_tuple("x", "y").repeat(2).take(5).skip(1),
    "prefetch": lambda data: data.prefetch(2),
    "prefetch of numpy's integer": lambda data: data.prefetch(np.int64(2)),
    "options before prefetch": lambda data: data.with_options(fewer_threads()).prefetch(2),
    "options after prefetch": lambda data: data.prefetch(2).with_options(fewer_threads()),
}


@pytest.mark.parametrize("chain", NOTHING_TO_TUNE.values(), ids=NOTHING_TO_TUNE)
def test_a_chain_with_nothing_to_tune_runs_without_the_autotuner(url: str, chain: Chain) -> None:
    dataset = chain(rows(url))
    assert in_force(dataset) is False
    assert dataset.options().autotune.enabled is None
    assert buffers(dataset) == 1


SOMETHING_TO_TUNE: dict[str, Chain] = {
    "map": lambda data: data.map(lambda row: row),
    "map, then prefetch": lambda data: data.map(lambda row: row, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2),
    "prefetch, then map": lambda data: data.prefetch(2).map(lambda row: row, num_parallel_calls=tf.data.AUTOTUNE),
    "prefetch(AUTOTUNE)": lambda data: data.prefetch(tf.data.AUTOTUNE),
    "prefetch without a size": lambda data: data.prefetch(None),
    "interleave": lambda data: tf.data.Dataset.range(2).interleave(lambda _: data.prefetch(2)),
}


@pytest.mark.parametrize("chain", SOMETHING_TO_TUNE.values(), ids=SOMETHING_TO_TUNE)
def test_a_chain_with_something_to_tune_is_tuned(url: str, chain: Chain) -> None:
    data = rows(url)
    list(data)  # an iteration of the dataset itself changes nothing for chains over it
    assert in_force(chain(data)) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [(chosen(enabled=True), True), (chosen(enabled=False), False), (chosen(cpu_budget=3), None)],
    ids=["on", "off", "a budget"],
)
def test_autotune_options_of_the_user_win(url: str, options: tf.data.Options, expected: bool | None) -> None:
    for dataset in (
        rows(url).with_options(options),
        rows(url).with_options(options).prefetch(2),
        rows(url).prefetch(2).with_options(options),
    ):
        assert in_force(dataset) is expected
        assert len(list(dataset)) == ROWS // BATCH


def test_other_options_stay_in_force(url: str) -> None:
    for dataset in (rows(url).with_options(fewer_threads()), rows(url).with_options(fewer_threads()).prefetch(2)):
        assert iter(dataset)._dataset.options().threading.private_threadpool_size == 1


def test_no_buffer_is_added_if_the_user_wants_none(url: str) -> None:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = rows(url).with_options(options)
    assert (in_force(dataset), buffers(dataset)) == (False, 0)


@pytest.mark.parametrize("fields", [["x", "y"], ["ragged"]], ids=["dense", "ragged"])
def test_elements_are_those_that_tf_data_delivers(url: str, fields: list[str]) -> None:
    data = ParquetDataset(url, fields, workers=1).shuffle(12, seed=4, reshuffle_each_iteration=False).batch(BATCH)
    expected = list(data.with_options(chosen(enabled=True)))
    for dataset in (data, data.prefetch(2)):
        found = list(dataset)
        assert dataset.element_spec == data.element_spec
        assert len(dataset) == len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, *(_flat(element) for element in (one, other)))


def _flat(element: dict[str, Any]) -> list[Any]:
    return [part.numpy() for part in tf.nest.flatten(element, expand_composites=True)]


@pytest.mark.parametrize("chain", [lambda data: data, lambda data: data.prefetch(3)], ids=["the dataset", "prefetch"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["stored", "symbolic"])
def test_checkpoints_of_a_tuned_iterator_fit_and_the_other_way_round(
    url: str, tmp_path: Path, chain: Chain, symbolic: bool
) -> None:
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    dataset = chain(rows(url)).with_options(options)
    tuned = dataset.with_options(chosen(enabled=True))
    for number, (saved, restored) in enumerate([(dataset, tuned), (tuned, dataset)]):
        iterator, other = iter(saved), iter(restored)
        next(iterator)
        path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / str(number)))
        tf.train.Checkpoint(iterator=other).restore(path).assert_consumed()
        assert [element["y"].numpy().tolist() for element in other] == [
            element["y"].numpy().tolist() for element in iterator
        ]


def test_debug_mode_adds_no_second_dataset(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows(url)
    monkeypatch.setattr(debug_mode, "DEBUG_MODE", True)
    assert data.prefetch(2) is data


@pytest.mark.slow
def test_fit_reads_without_the_autotuner(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool | None] = []

    class Noted(EagerIterator):
        def __init__(self, dataset: tf.data.Dataset, *more: Any, **options: Any) -> None:
            super().__init__(dataset, *more, **options)
            found.append(dataset.options().autotune.enabled)

    monkeypatch.setattr(iterator, "EagerIterator", Noted)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.fit(rows(url).as_tuple("x", "y").prefetch(2), epochs=2, verbose=0, shuffle=False)
    model.fit(rows(url).as_tuple("x", "y"), epochs=2, verbose=0, shuffle=False)
    assert set(found) == {False}
