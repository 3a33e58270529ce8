"""Keras callbacks: `StatsCallback` logs which side is slow; `ResumeTraining` saves the position in the data with the
model, to go on exactly there.

In: the `ParquetDataset` that ``model.fit`` reads, and a directory. Always holds: a saved position is that after the
last batch which the saved weights have seen, however far tf.data had read ahead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parquetry.common.errors import PipelineError, needs_framework
from parquetry.common.order.cursor import Cursor
from parquetry.common.plan.state import state_of

with needs_framework("parquetry.tf_plugin.keras", "tensorflow", extra="tensorflow"):
    import tensorflow as tf

    from .dataset import ParquetDataset


class StatsCallback(tf.keras.callbacks.Callback):  # Keras comes without types
    """Writes what a dataset does, and which side is slow, into TensorBoard logs while a model trains.

    ::

        rows = ParquetDataset(url).shuffle(10_000, seed=7).batch(64)
        model.fit(rows.map(to_xy).prefetch(2), epochs=10, callbacks=[StatsCallback(rows, "logs")])

    Scalars are named ``parquetry/rows_per_s``, ``parquetry/wait_share`` and so on, and the reason for the verdict is a
    text. The step counts batches over all epochs.

    Args:
        dataset: the `ParquetDataset` at the head of the training data, before ``map`` and ``prefetch``.
        log_dir: where TensorBoard looks.
        every: batches between two points; ``None`` = one at the end of each epoch.

    Raises:
        PipelineError: arguments that make no sense.
    """

    def __init__(self, dataset: ParquetDataset, log_dir: str | Path, *, every: int | None = None) -> None:
        super().__init__()
        if not isinstance(dataset, ParquetDataset):
            raise PipelineError(
                f"StatsCallback: expected the ParquetDataset itself, before map and prefetch, got "
                f"{type(dataset).__name__}."
            )
        if every is not None and every < 1:
            raise PipelineError(f"StatsCallback: expected every to be >= 1 or None, got {every!r}.")
        self._dataset = dataset
        self._every = every
        self._log_dir = str(log_dir)
        self._writer: tf.summary.SummaryWriter | None = None
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Writes a point after every so many batches."""
        self._batches += 1
        if self._every is not None and self._batches % self._every == 0:
            self._write()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Writes a point for the whole epoch."""
        self._write()

    def on_train_end(self, logs: object = None) -> None:
        """Closes the log."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self) -> None:
        stats = self._dataset.stats()
        self._writer = self._writer or tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default(step=self._batches):
            for name, value in stats.scalars().items():
                tf.summary.write(f"parquetry/{name}", tf.constant(value, tf.float32), metadata=_metadata("scalars", 1))
            text = tf.constant([f"{stats.verdict}: {stats.why}"])
            tf.summary.write("parquetry/verdict", text, metadata=_metadata("text", 2))


def _metadata(plugin: str, data_class: int) -> tf.compat.v1.SummaryMetadata:
    """How TensorBoard shows a value. ``tf.summary.scalar`` does it as well, where TensorBoard is installed."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    return tf.compat.v1.SummaryMetadata(plugin_data=data, data_class=data_class)


class ResumeTraining(tf.keras.callbacks.Callback):  # Keras comes without types
    """Saves weights, optimizer and data position together, and restores them when training begins again.

    The same program runs at first and after every interruption::

        rows = ParquetDataset(url).shuffle(10_000, seed=7).batch(64)
        resume = ResumeTraining(rows, "checkpoints", save_every=500)
        model.fit(rows.map(to_xy).prefetch(2), epochs=10, callbacks=[resume], initial_epoch=resume.initial_epoch)

    An interrupted epoch goes on with the batches that were left of it; Keras then warns that the epoch ran out of data,
    because it is shorter than the others. With an endless dataset and ``steps_per_epoch`` the batches go on all the
    same, and Keras counts that epoch's steps from 0 again. Averages that metrics had gathered are not saved.

    Args:
        dataset: the `ParquetDataset` at the head of the training data. What follows it must keep one element for each
            of its own (``map``, ``prefetch``, not ``batch`` or ``unbatch``), and nothing else may read this very object
            meanwhile: give ``validation_data`` one of its own. Give its shuffle a seed.
        directory: where checkpoints are kept; with several processes, one directory for each.
        save_every: batches between two saves; ``None`` = at the end of each epoch only.
        max_to_keep: checkpoints that stay.

    Raises:
        PipelineError: arguments that make no sense; while training begins, for a model that is not built.
        tf.errors.InvalidArgumentError: while training begins, for a position in another dataset or pipeline.
    """

    def __init__(
        self, dataset: ParquetDataset, directory: str | Path, *, save_every: int | None = None, max_to_keep: int = 1
    ) -> None:
        super().__init__()
        if not isinstance(dataset, ParquetDataset):
            raise PipelineError(
                f"ResumeTraining: expected the ParquetDataset itself, before map and prefetch, got "
                f"{type(dataset).__name__}."
            )
        if save_every is not None and save_every < 1:
            raise PipelineError(f"ResumeTraining: expected save_every to be >= 1 or None, got {save_every!r}.")
        self._dataset = dataset
        self._directory = str(directory)
        self._save_every = save_every
        self._max_to_keep = max_to_keep
        self._position = _Position()
        self._manager: tf.train.CheckpointManager | None = None
        self._elements = 0  # used, since the dataset's iterator began
        self._remaining: int | None = None  # elements that the iterator had when it began; -1 endless, -2 unknown
        self._batch = -1  # Keras's number of the latest batch of the epoch
        self._unsaved = 0
        latest = tf.train.latest_checkpoint(self._directory)
        if latest is not None:
            tf.train.Checkpoint(position=self._position).restore(latest).expect_partial()

    @property
    def initial_epoch(self) -> int:
        """The epoch to begin with, for ``model.fit``: 0, or that of the latest checkpoint."""
        return self._position.epoch

    def on_train_begin(self, logs: object = None) -> None:
        """Restores the latest checkpoint, if there is one, and has the dataset go on at its position."""
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
        # Also at the start: to build a model Keras reads a batch, and that reading is no epoch.
        self._dataset.start_next_at(self._position.state)
        self._elements = self._unsaved = 0
        self._remaining = None

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Notes the epoch."""
        self._position.epoch = epoch
        self._batch = -1

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Ends an epoch that is shorter than Keras believes, because it was begun before the restart.

        Else Keras would run the training step once more to find out, and steps that find no data still advance the
        optimizer's and the random generators' counts.
        """
        if self._remaining is not None and 0 <= self._remaining <= self._elements:
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Counts the batch, and saves if it is time to."""
        self._elements += batch - self._batch
        if self._remaining is None:
            self._remaining = self._dataset._progress(0, since_restart=True)[1]
        self._unsaved += batch - self._batch
        self._batch = batch
        if self._save_every is not None and self._unsaved >= self._save_every:
            state, left = self._now()
            if left != 0:  # the end of the data is the end of the epoch, which saves
                self._save(state)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Saves, at the beginning of the next epoch if the data came to an end."""
        self._position.epoch = epoch + 1
        state, left = self._now()
        ended = left == 0 or (left is None and self.params.get("steps") is None)
        if ended:
            state = {**state, "iteration": state["iteration"] + 1, "consumed": 0, "origin": [0, 0]}
            self._dataset.start_next_at(state)
            self._elements = 0
            self._remaining = None
        self._save(state)

    def _now(self) -> tuple[dict[str, Any], int | None]:
        """The state after the batches used, and how many are left; ``None`` = nobody knows, or endless (then -1)."""
        state, remaining = self._dataset._progress(self._elements, since_restart=True)
        if remaining < 0:
            return state, -1 if remaining == tf.data.INFINITE_CARDINALITY else None
        return state, max(0, remaining - self._elements)

    def _save(self, state: dict[str, Any]) -> None:
        assert self._manager is not None
        self._position.state = json.dumps(state)
        self._manager.save()
        self._unsaved = 0


class _Position(tf.train.experimental.PythonState):  # TensorFlow comes without types
    """Epoch and state, kept inside the checkpoint, so that they are never those of other weights."""

    def __init__(self) -> None:
        self.epoch = 0
        self.state = ""

    def serialize(self) -> str:
        """As JSON."""
        return json.dumps({"epoch": self.epoch, "state": self.state})

    def deserialize(self, string_value: bytes | str) -> None:
        """The inverse of `serialize`."""
        value = json.loads(string_value)
        self.epoch, self.state = value["epoch"], value["state"]


def _variables(model: tf.keras.Model) -> list[tf.Variable]:
    """What training changes: weights, optimizer, random generators; not what metrics gather."""
    metrics = {id(variable) for variable in getattr(model, "metrics_variables", ())}
    found = {id(variable): variable for variable in (*model.variables, *model.optimizer.variables)}
    own = [variable for number, variable in found.items() if number not in metrics]
    return [variable if callable(variable.value) else variable.value for variable in own]
