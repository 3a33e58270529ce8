"""One rank of a distributed training run for test_ranks.py: prints the ids of each step's batches, and all waits, as JSON.

Run as ``python rank_program.py mirrored URL SECONDS`` (two replicas on two virtual processors) or, with TF_CONFIG set,
``python rank_program.py workers URL SECONDS``. After that many seconds it prints where each thread is, and ends.
Instead of ``workers``, ``policies`` lets TensorFlow shard the dataset by each ``AutoShardPolicy`` but ``FILE``, whose
error ``FILE`` prints; a number stops each worker after as many steps, and prints a state, too; and a state resumes from there.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import sys
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf

from parquetry.tf_plugin import ParquetDataset, gather_stats

POLICIES = ("AUTO", "DATA", "HINT", "OFF", "own shard")


def make_strategy(kind: str) -> Any:
    """Returns this rank's strategy."""
    if kind != "mirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    processors = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def rows_of(url: str) -> ParquetDataset:
    return ParquetDataset(url, ["id"], workers=1).where([("id", "<", 33)]).shuffle(10, seed=7)


def sharded_by_tensorflow(policy: str, url: str) -> tf.data.Dataset:
    """Returns the dataset for ``experimental_distribute_dataset``."""
    if policy == "own shard":
        worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        return rows_of(url).shard(2, worker).map(lambda row: row).batch(8)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, policy)
    if policy != "HINT":
        return rows_of(url).batch(8).with_options(options)
    hint = tf.data.experimental.SHARD_HINT
    return rows_of(url).map(lambda row: row).shard(hint, hint).batch(8).with_options(options)


def main(kind: str, url: str) -> None:
    """Runs two epochs; each step sums over all ranks, which hangs or fails if their numbers of steps differ."""
    strategy = make_strategy(kind)
    made: list[ParquetDataset] = []

    def dataset_of(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = rows_of(url).shard(context.num_input_pipelines, context.input_pipeline_id, even="drop")
        made.append(rows.batch(context.get_per_replica_batch_size(8)))
        if kind.startswith("{"):
            made[-1].load_state_dict(kind)
        return made[-1].prefetch(2)

    @tf.function
    def step(batch: Any) -> Any:
        sums = strategy.run(lambda ids: tf.reduce_sum(ids), args=(batch["id"],))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    def train(batches: Any) -> list[Any]:
        steps = []
        for batch in batches:
            replicas = [ids.numpy().tolist() for ids in strategy.experimental_local_results(batch["id"])]
            steps.append({"replicas": replicas, "sum": int(step(batch))})
        return steps

    if kind == "policies":
        found: Any = {
            policy: train(strategy.experimental_distribute_dataset(sharded_by_tensorflow(policy, url)))
            for policy in POLICIES
        }
    elif kind == "FILE":
        try:
            found = train(strategy.experimental_distribute_dataset(sharded_by_tensorflow(kind, url)))
        except tf.errors.OpError as error:
            found = f"{type(error).__name__}: {error.message}"
    else:
        dataset = strategy.distribute_datasets_from_function(dataset_of)
        if kind.isdigit():
            found = [train(itertools.islice(dataset, int(kind))), made[0].state_dict(int(kind))]
        else:
            found = [train(dataset) for _ in range(2)]
            gathered = gather_stats(made[0], strategy)
            found.append([gathered.rank, gathered.own.wait_share, gathered.wait_shares])
    print(json.dumps(found))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[3]), exit=True)
    main(*sys.argv[1:3])
