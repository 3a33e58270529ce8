"""``model.fit`` over a `ParquetDataset`: epochs, steps, validation, and interrupted training."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parquetry.common import Pipeline, TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError
from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.keras import ResumeTraining, StatsCallback

ROWS, BATCH = 40, 4
STEPS = ROWS // BATCH
RAN_OUT = "ignore:.*input ran out of data"


class Recorder(tf.keras.callbacks.Callback):
    """Stops training abruptly with an exception after some batches, like a power cut."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.batches = 0
        self.stop_after = stop_after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    schema = Unischema("rows", [UnischemaField("x", np.float32, (3,), TensorCodec()), UnischemaField("y", np.float32)])
    rows = [{"x": np.array([n, n % 7, 1], np.float32) / ROWS, "y": float(n) / ROWS} for n in range(ROWS)]
    target = tmp_path_factory.mktemp("data") / "rows"
    write_dataset(str(target), schema, rows, row_group_rows=5)
    return str(target)


def rows(url: str) -> ParquetDataset:
    return ParquetDataset.from_pipeline(Pipeline(url, workers=1).shuffle(20, seed=4).batch(BATCH))


def to_xy(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return batch["x"], batch["y"]


def new_model(*, built: bool = True) -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(2, activation="tanh"), keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((3,)), *layers] if built else layers)
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(0.05))
    return model


def seen_by(dataset: tf.data.Dataset, seen: list[float]) -> tf.data.Dataset:
    """The same, but records the first target of each passing batch, read ahead or not."""

    def note(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tf.numpy_function(lambda value: seen.append(float(value)), [y[0]], [])
        return x, y

    return dataset.map(note)


def test_epochs_and_validation_read_every_row_once_each(url: str) -> None:
    seen: list[float] = []
    validated: list[float] = []
    train, validation = seen_by(rows(url).map(to_xy), seen), seen_by(rows(url).map(to_xy), validated)
    new_model().fit(train, epochs=3, validation_data=validation, verbose=0, shuffle=False)
    pipeline = rows(url).pipeline
    assert seen == validated == [float(batch["y"][0]) for _ in range(3) for batch in pipeline]


@pytest.mark.parametrize("repeat_last", [True, False])
def test_steps_per_epoch_go_through_an_endless_dataset_without_a_gap(url: str, repeat_last: bool) -> None:
    seen: list[float] = []
    dataset = rows(url).map(to_xy).repeat() if repeat_last else rows(url).repeat().map(to_xy)
    new_model().fit(seen_by(dataset, seen), epochs=4, steps_per_epoch=6, verbose=0, shuffle=False)
    pipeline = Pipeline(url).shuffle(20, seed=4).batch(BATCH).repeat(3)
    expected = [float(batch["y"][0]) for batch in pipeline]
    assert seen[:24] == expected[:24]


def fit(
    url: str,
    directory: Path,
    *,
    stop_after: int | None,
    save_every: int | None = 3,
    **options: Any,
) -> tuple[Any, int]:
    """Runs a training program once; returns the model's weights and the batches it was trained on."""
    data = rows(url)
    data = data.repeat() if "steps_per_epoch" in options else data
    resume = ResumeTraining(data, directory, save_every=save_every)
    model, recorder = new_model(), Recorder(stop_after)
    with contextlib.suppress(KeyboardInterrupt):
        model.fit(
            data.map(to_xy).prefetch(3),
            callbacks=[resume, recorder],
            initial_epoch=resume.initial_epoch,
            verbose=0,
            shuffle=False,
            **options,
        )
    return model.get_weights(), recorder.batches


@pytest.mark.slow
@pytest.mark.filterwarnings(RAN_OUT)
def test_interrupted_training_ends_with_the_same_weights(url: str, tmp_path: Path) -> None:
    whole, batches = fit(url, tmp_path / "whole", stop_after=None, epochs=3)
    assert batches == 3 * STEPS
    cut = tmp_path / "cut"
    assert fit(url, cut, stop_after=14, epochs=3)[1] == 14  # saved after 13, three batches into the second epoch
    assert fit(url, cut, stop_after=9, epochs=3)[1] == 9  # saved after 7, where the second epoch ended
    weights, left = fit(url, cut, stop_after=None, epochs=3)
    assert left == STEPS
    for found, expected in zip(weights, whole, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_model_without_weights_is_refused(url: str, tmp_path: Path) -> None:
    data = rows(url)
    model = new_model(built=False)
    with pytest.raises(PipelineError, match="expected a model that is built"):
        model.fit(data.map(to_xy), callbacks=[ResumeTraining(data, tmp_path)], verbose=0, shuffle=False)


@pytest.mark.slow
@pytest.mark.filterwarnings(RAN_OUT)
def test_a_save_at_the_end_of_an_epoch_resumes_with_the_next(url: str, tmp_path: Path) -> None:
    whole, _ = fit(url, tmp_path / "whole", stop_after=None, save_every=None, epochs=2)
    fit(url, tmp_path / "cut", stop_after=None, save_every=None, epochs=1)
    weights, left = fit(url, tmp_path / "cut", stop_after=None, save_every=None, epochs=2)
    assert left == STEPS
    for found, expected in zip(weights, whole, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_an_endless_dataset_resumes_with_its_next_batch(url: str, tmp_path: Path) -> None:
    whole, _ = fit(url, tmp_path / "whole", stop_after=None, epochs=3, steps_per_epoch=6)
    fit(url, tmp_path / "cut", stop_after=None, epochs=1, steps_per_epoch=6)
    weights, left = fit(url, tmp_path / "cut", stop_after=None, epochs=3, steps_per_epoch=6)
    assert left == 12
    for found, expected in zip(weights, whole, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_position_in_another_pipeline_is_refused(url: str, tmp_path: Path) -> None:
    fit(url, tmp_path, stop_after=5, epochs=1)
    data = ParquetDataset(url).shuffle(20, seed=5).batch(BATCH)
    resume = ResumeTraining(data, tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="saved for a different shuffle seed"):
        new_model().fit(data.map(to_xy), callbacks=[resume], verbose=0, shuffle=False)


def test_the_callback_wants_the_dataset_itself(url: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="expected the ParquetDataset itself, before map and prefetch, got "):
        ResumeTraining(rows(url).map(to_xy), tmp_path)
    with pytest.raises(PipelineError, match="expected save_every to be >= 1 or None, got 0"):
        ResumeTraining(rows(url), tmp_path, save_every=0)


@pytest.mark.slow
def test_tuples_are_what_fit_takes(url: str) -> None:
    def losses(data: Any) -> Any:
        return new_model().fit(data, epochs=1, verbose=0, shuffle=False).history["loss"]

    wanted = losses(rows(url).map(to_xy))
    assert losses(rows(url).as_tuple("x", "y")) == wanted
    assert losses(rows(url).as_tuple("x", "y", "y")) != wanted  # the third is the weight


@pytest.mark.slow
def test_stats_go_into_tensorboard_logs(url: str, tmp_path: Path) -> None:
    data = rows(url)
    callback = StatsCallback(data, tmp_path / "logs", every=2)
    new_model().fit(data.map(to_xy), epochs=2, verbose=0, shuffle=False, callbacks=[callback])
    (log,) = (tmp_path / "logs").iterdir()
    points = [
        (value.tag, event.step)
        for record in tf.data.TFRecordDataset(str(log)).as_numpy_iterator()
        for event in [tf.compat.v1.Event.FromString(record)]
        for value in event.summary.value
    ]
    steps = [step for tag, step in points if tag == "parquetry/rows_per_s"]
    assert steps[0] == 2
    assert steps == sorted(steps)
    assert ("parquetry/verdict", steps[-1]) in points
    runs: list[tuple[float, int]] = []

    class Run:
        def log(self, data: dict[str, Any], step: int) -> None:
            runs.append((data["parquetry/wait_share"], step))

    new_model().fit(data.map(to_xy), epochs=1, verbose=0, shuffle=False, callbacks=[StatsCallback(data, Run())])
    ((share, step),) = runs
    assert 0 < share <= 1
    assert step == steps[-1] // 2
    with pytest.raises(PipelineError, match="StatsCallback: expected the ParquetDataset itself"):
        StatsCallback(data.map(to_xy), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="expected every to be >= 1 or None, got 0"):
        StatsCallback(data, tmp_path, every=0)
