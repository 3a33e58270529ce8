"""`gather_stats`: a dataset's statistics on all workers of a ``tf.distribute`` strategy."""

from __future__ import annotations

import tensorflow as tf

from parquetry.common.base.metrics.stats_log import RankStats

from .dataset import ParquetDataset


def gather_stats(dataset: ParquetDataset, strategy: tf.distribute.Strategy | None = None) -> RankStats:
    """Returns a dataset's stats in the running or latest epoch on each worker, and which one waits the most.

    ::

        gathered = gather_stats(rows)  # in strategy.scope(), on every worker
        print(gathered.slowest, gathered.wait_shares)

    Collective: with a ``MultiWorkerMirroredStrategy``, each worker must call this at the same step. Otherwise the
    result has this worker only.

    Args:
        dataset: the `ParquetDataset` at the head of the training data, before ``map`` and ``prefetch``.
        strategy: the strategy; ``None`` = the one of the current scope.

    Raises:
        PipelineError: the dataset was not iterated in this process.
    """
    own = dataset.stats()
    strategy = strategy or tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return RankStats(own=own, rank=0, ranks=(own.scalars(),))
    names, values = zip(*own.scalars().items(), strict=True)
    row = tf.constant([values], tf.float64)
    rows = strategy.run(tf.identity, args=(row,))  # one for each replica
    gathered = strategy.gather(rows, axis=0).numpy()
    replicas = len(strategy.experimental_local_results(rows))
    ranks = [dict(zip(names, numbers, strict=True)) for numbers in gathered[::replicas].tolist()]
    return RankStats(own=own, rank=_rank_of(strategy), ranks=tuple(ranks))


def _rank_of(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> int:
    """Returns this worker's number. A chief comes first."""
    resolver = strategy.cluster_resolver
    chiefs = len(resolver.cluster_spec().as_dict().get("chief", []))
    return int(resolver.task_id) + (chiefs if resolver.task_type == "worker" else 0)
