"""MultiWorkerMirroredStrategy: two workers train, stop in the middle of an epoch, and one worker continues.

The script starts the workers on this machine, each with its own `TF_CONFIG`. On a cluster, the launcher sets it, and
every host runs `multi_worker.py TILES CHECKPOINT [LAST_STEP]`. The checkpoint holds one position for all workers.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

import tensorflow as tf
from tiles import write_numbered_tiles

from parquetry import ParquetDataset

BATCH = 60  # rows of a step, over all workers
TILES = 960


class Training:
    """A model, and the tiles that this worker trains on."""

    def __init__(self, url: str, checkpoint: str) -> None:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG
        with self.strategy.scope():
            self.model = tf.keras.Sequential(
                [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)]
            )
            self.model.build((None, 16, 16, 3))
            self.optimizer = tf.keras.optimizers.Adam()
            self.optimizer.build(self.model.trainable_variables)
        self.steps = tf.Variable(0, dtype=tf.int64)
        self.seen = tf.Variable(tf.zeros(TILES, tf.int64))  # how often the workers trained on each tile, together
        self.position = tf.Variable("", dtype=tf.string)
        parts = {name: getattr(self, name) for name in ("model", "optimizer", "steps", "seen", "position")}
        self.checkpoint, self.path = tf.train.Checkpoint(**parts), checkpoint
        if os.path.exists(f"{checkpoint}.index"):
            self.checkpoint.read(checkpoint).assert_consumed()
        self.begin = int(self.steps)
        self.batches = self.strategy.distribute_datasets_from_function(lambda context: self.tiles_of(context, url))

    def tiles_of(self, context: tf.distribute.InputContext, url: str) -> tf.data.Dataset:
        """Returns this worker's batches."""
        tiles = ParquetDataset(url).shuffle(200, seed=7).shard(context.num_input_pipelines, context.input_pipeline_id)
        self.tiles = tiles.batch(context.get_per_replica_batch_size(BATCH))
        if state := self.position.numpy().decode():
            self.tiles.load_state_dict(state)
        return self.tiles.prefetch(2)

    @tf.function
    def step(self, batch: dict[str, tf.Tensor]) -> None:
        """Trains on one batch of all workers, which wait for each other."""

        def train(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            with tf.GradientTape() as tape:
                logits = self.model(batch["image"], training=True)
                losses = tf.keras.losses.sparse_categorical_crossentropy(batch["label"], logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            return tf.math.bincount(tf.cast(batch["number"], tf.int32), minlength=TILES, dtype=tf.int64)

        seen = self.strategy.run(train, args=(batch,))
        self.seen.assign_add(self.strategy.reduce(tf.distribute.ReduceOp.SUM, seen, axis=None))
        self.steps.assign_add(1)

    def save(self, taken: int) -> None:
        """Saves the position after so many batches of this pass. All workers must save; the chief's files count."""
        self.position.assign(json.dumps(self.tiles.state_dict(taken)))
        own = self.path if worker() == 0 else f"{self.path}-worker-{worker()}"
        self.checkpoint.write(own)


def worker() -> int:
    """Returns the number of this worker."""
    return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])


def train(url: str, checkpoint: str, last_step: int | None) -> None:
    """Trains to the end of the epoch, or stops after a step as if the job's time were over."""
    training = Training(url, checkpoint)
    for taken, batch in enumerate(training.batches, 1):
        training.step(batch)
        if int(training.steps) == last_step:
            training.save(taken)
            break
    times = sorted({*training.seen.numpy().tolist()})
    print(
        f"worker {worker()}: steps {training.begin + 1} to {int(training.steps)}, tiles seen {times} times", flush=True
    )


def start(workers: int, *arguments: str) -> None:
    """Runs workers on this machine, to their end."""
    addresses = [f"localhost:{free_port()}" for _ in range(workers)]
    running: list[Any] = []
    for index in range(workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        running.append(subprocess.Popen([sys.executable, __file__, *arguments], env=environment))
    statuses = [process.wait() for process in running]
    print(f"{workers} workers ended with {statuses}", flush=True)


def free_port() -> int:
    """Returns a port for a worker to listen on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    if sys.argv[1:]:
        train(*sys.argv[1:3], last_step=int(sys.argv[3]) if sys.argv[3:] else None)
    else:
        url, checkpoint = write_numbered_tiles(tempfile.mkdtemp()), f"{tempfile.mkdtemp()}/checkpoint"
        start(2, url, checkpoint, "6")
        start(1, url, checkpoint)
