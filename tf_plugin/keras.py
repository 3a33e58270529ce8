"""Keras callbacks: `StatsCallback` logs which side is slow. `ResumeTraining` saves the position in the data with the
model, and resumes exactly there.

A saved position is always the one after the last batch that the saved weights have seen, no matter how far tf.data had
read ahead.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from parquetry.common.base.errors import PipelineError, needs_framework
from parquetry.common.base.metrics.stats_log import log_stats
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.plan.state import read_state, state_of

with needs_framework("parquetry.tf_plugin.keras", "tensorflow", extra="tensorflow"):
    import tensorflow as tf

    from .dataset import ParquetDataset
    from .rank_stats import gather_stats


class StatsCallback(tf.keras.callbacks.Callback):  # Keras has no types
    """Logs a dataset's statistics, and which side is slow, to TensorBoard, Weights & Biases or MLflow while you train.

    ::

        rows = ParquetDataset(url).shuffle(10_000, seed=7).batch(64)
        model.fit(rows.map(to_xy).prefetch(2), epochs=10, shuffle=False, callbacks=[StatsCallback(rows, "logs")])

    Scalars are named ``parquetry/rows_per_s``, ``parquetry/wait_share`` and so on. The reason for the verdict is logged
    as text. The step counts batches over all epochs. With a ``MultiWorkerMirroredStrategy``, every worker needs the
    callback, and each logs the shares of all workers and of the slowest one; see `gather_stats`.

    Args:
        dataset: the `ParquetDataset` at the head of the training data, before ``map`` and ``prefetch``.
        target: the directory that TensorBoard reads, or a ``target`` of `parquetry.log_stats`, such as ``wandb.run`` or
            ``mlflow``; ``None`` for workers without a log.
        every: number of batches between two points; ``None`` = one point at the end of each epoch.

    Raises:
        PipelineError: invalid arguments.
    """

    def __init__(self, dataset: ParquetDataset, target: object, *, every: int | None = None) -> None:
        super().__init__()
        _check("StatsCallback", dataset, every=every)
        self._dataset = dataset
        self._every = every
        self._target = _Summaries(target) if isinstance(target, str | os.PathLike) else target
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Writes a point after every ``every`` batches."""
        self._batches += 1
        if self._every is not None and self._batches % self._every == 0:
            self._write()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Writes a point for the whole epoch."""
        self._write()

    def on_train_end(self, logs: object = None) -> None:
        """Closes the log."""
        if isinstance(self._target, _Summaries):
            self._target.close()

    def _write(self) -> None:
        gathered = gather_stats(self._dataset, self.model.distribute_strategy)
        log_stats(self._target, gathered if len(gathered.ranks) > 1 else gathered.own, self._batches)


class _Summaries:
    """A `parquetry.log_stats` target that writes what TensorBoard reads, without having TensorBoard installed."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.fspath(directory)
        self._writer: tf.summary.SummaryWriter | None = None

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._write(tag, tf.constant(value, tf.float32), step, _metadata("scalars", 1))

    def add_text(self, tag: str, text: str, step: int) -> None:
        self._write(tag, tf.constant([text]), step, _metadata("text", 2))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, tag: str, value: tf.Tensor, step: int, metadata: tf.compat.v1.SummaryMetadata) -> None:
        self._writer = self._writer or tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step=step):
            tf.summary.write(tag, value, metadata=metadata)


def _metadata(plugin: str, data_class: int) -> tf.compat.v1.SummaryMetadata:
    """Returns how TensorBoard shows a value. ``tf.summary.scalar`` does the same, but needs TensorBoard installed."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    return tf.compat.v1.SummaryMetadata(plugin_data=data, data_class=data_class)


class ResumeTraining(tf.keras.callbacks.Callback):  # Keras has no types
    """Saves weights, optimizer and data position together, and restores them when training starts again.

    Run the same program the first time and after every interruption::

        rows = ParquetDataset(url).shuffle(10_000, seed=7).batch(64)
        resume = ResumeTraining(rows, "checkpoints", save_every=500)
        batches = rows.map(to_xy).prefetch(2)
        model.fit(batches, epochs=10, shuffle=False, callbacks=[resume], initial_epoch=resume.initial_epoch)

    An interrupted epoch continues with its remaining batches. Keras then warns that the epoch ran out of data, because
    it is shorter than the others. With an endless dataset and ``steps_per_epoch``, the batches continue as well, but
    Keras counts the steps of that epoch from 0 again. The running averages of metrics are not saved.

    Args:
        dataset: the `ParquetDataset` at the head of the training data. Stages after it must map elements one to one
            (``map`` or ``prefetch``, not ``batch`` or ``unbatch``). Nothing else may read this object during training:
            use a separate dataset for ``validation_data``. Give its shuffle a seed.
        directory: the directory for checkpoints; with several processes, one per process.
        save_every: number of batches between two saves; ``None`` = only at the end of each epoch.
        max_to_keep: number of checkpoints to keep.

    Raises:
        PipelineError: invalid arguments; when training begins, the model is not built.
        tf.errors.InvalidArgumentError: when training begins, the position belongs to another dataset or pipeline.
    """

    def __init__(
        self, dataset: ParquetDataset, directory: str | Path, *, save_every: int | None = None, max_to_keep: int = 1
    ) -> None:
        super().__init__()
        _check("ResumeTraining", dataset, save_every=save_every)
        self._dataset = dataset
        self._directory = str(directory)
        self._save_every = save_every
        self._max_to_keep = max_to_keep
        self._position = _Position()
        self._manager: tf.train.CheckpointManager | None = None
        self._elements = 0  # elements used since the dataset's iterator began
        self._remaining: int | None = None  # elements the iterator had left at its start; -1 endless, -2 unknown
        self._batch = -1  # Keras's number of the latest batch of the epoch
        self._unsaved = 0
        latest = tf.train.latest_checkpoint(self._directory)
        if latest is not None:
            tf.train.Checkpoint(position=self._position).restore(latest).expect_partial()

    @property
    def initial_epoch(self) -> int:
        """The epoch to start with, for ``model.fit``: 0, or the epoch of the latest checkpoint."""
        return self._position.epoch

    def on_train_begin(self, logs: object = None) -> None:
        """Restores the latest checkpoint, if there is one, and moves the dataset to its position."""
        if not self.model.built:
            raise PipelineError(
                "ResumeTraining: expected a model that is built, got one without weights. Give it an Input layer, or "
                "call model.build(...)."
            )
        if hasattr(self.model.optimizer, "build"):
            self.model.optimizer.build(self.model.trainable_variables)
        checkpoint = tf.train.Checkpoint(position=self._position, variables=_variables(self.model))
        self._manager = tf.train.CheckpointManager(checkpoint, self._directory, max_to_keep=self._max_to_keep)
        if self._manager.latest_checkpoint is not None:
            checkpoint.restore(self._manager.latest_checkpoint).assert_existing_objects_matched()
        if not self._position.state:
            self._position.state = state_of(self._dataset.pipeline.plan(), Cursor()).to_json()
        # Also on a first start: Keras reads a batch to build a model, which must not count as an epoch.
        self._dataset.start_next_at(self._position.state)
        self._elements = self._unsaved = 0
        self._remaining = None

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Notes the epoch."""
        self._position.epoch = epoch
        self._batch = -1

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Ends an epoch that is shorter than Keras expects, because it began before the restart.

        Otherwise Keras would run another training step to find out. Steps that find no data still advance the counts of
        the optimizer and the random generators.
        """
        if self._remaining is not None and 0 <= self._remaining <= self._elements:
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Counts the batch, and saves if a save is due."""
        self._elements += batch - self._batch
        if self._remaining is None:
            self._remaining = self._dataset._progress(0)[1]
        self._unsaved += batch - self._batch
        self._batch = batch
        if self._save_every is not None and self._unsaved >= self._save_every:
            state, left = self._now()
            if left != 0:  # at the end of the data, the end of the epoch saves
                self._save(state)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Saves. If the data has ended, the saved position is the beginning of the next epoch."""
        self._position.epoch = epoch + 1
        state, left = self._now()
        ended = left == 0 or (left is None and self.params.get("steps") is None)
        if ended:
            state = json.loads(read_state(state).at_next_iteration().to_json())
            self._dataset.start_next_at(state)
            self._elements = 0
            self._remaining = None
        self._save(state)

    def _now(self) -> tuple[dict[str, Any], int | None]:
        """Returns the state after the used batches, and how many are left: ``None`` = unknown, -1 = endless."""
        state, remaining = self._dataset._progress(self._elements)
        if remaining < 0:
            return state, -1 if remaining == tf.data.INFINITE_CARDINALITY else None
        return state, max(0, remaining - self._elements)

    def _save(self, state: dict[str, Any]) -> None:
        assert self._manager is not None
        self._position.state = json.dumps(state)
        self._manager.save()
        self._unsaved = 0


class _Position(tf.train.experimental.PythonState):  # TensorFlow has no types
    """The epoch and state, stored inside the checkpoint so that they always match the weights."""

    def __init__(self) -> None:
        self.epoch = 0
        self.state = ""

    def serialize(self) -> str:
        """Returns the position as JSON."""
        return json.dumps({"epoch": self.epoch, "state": self.state})

    def deserialize(self, string_value: bytes | str) -> None:
        """The inverse of `serialize`."""
        value = json.loads(string_value)
        self.epoch, self.state = value["epoch"], value["state"]


def _variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the variables that training changes: weights, optimizer, random generators, but not metrics."""
    metrics = {id(variable) for variable in getattr(model, "metrics_variables", ())}
    variables = {id(variable): variable for variable in (*model.variables, *model.optimizer.variables)}
    own = [variable for number, variable in variables.items() if number not in metrics]
    return [variable if callable(variable.value) else variable.value for variable in own]


def _check(callback: str, dataset: object, **every: int | None) -> None:
    if not isinstance(dataset, ParquetDataset):
        raise PipelineError(
            f"{callback}: expected the ParquetDataset itself, before map and prefetch, got {type(dataset).__name__}."
        )
    for name, value in every.items():
        if value is not None and value < 1:
            raise PipelineError(f"{callback}: expected {name} to be >= 1 or None, got {value!r}.")
