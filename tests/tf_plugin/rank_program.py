"""One rank of a distributed training run for test_ranks.py: prints the ids of each step's batches as JSON.

Run as ``python rank_program.py mirrored URL SECONDS`` (two replicas on two virtual processors) or, with TF_CONFIG set,
``python rank_program.py workers URL SECONDS``. After that many seconds it prints where each thread is, and ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf

from parquetry.tf_plugin import ParquetDataset


def make_strategy(kind: str) -> Any:
    """Returns this rank's strategy."""
    if kind == "workers":
        return tf.distribute.MultiWorkerMirroredStrategy()
    processors = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def main(kind: str, url: str) -> None:
    """Runs two epochs; each step sums over all ranks, which hangs or fails if their numbers of steps differ."""
    strategy = make_strategy(kind)

    def dataset_of(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = ParquetDataset(url, ["id"], workers=1).where([("id", "<", 33)]).shuffle(10, seed=7)
        rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id, even="drop")
        return rows.batch(context.get_per_replica_batch_size(8)).prefetch(2)

    dataset = strategy.distribute_datasets_from_function(dataset_of)

    @tf.function
    def step(batch: Any) -> Any:
        sums = strategy.run(lambda ids: tf.reduce_sum(ids), args=(batch["id"],))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    epochs = []
    for _ in range(2):
        steps = []
        for batch in dataset:
            replicas = [ids.numpy().tolist() for ids in strategy.experimental_local_results(batch["id"])]
            steps.append({"replicas": replicas, "sum": int(step(batch))})
        epochs.append(steps)
    print(json.dumps(epochs))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[3]), exit=True)
    main(*sys.argv[1:3])
