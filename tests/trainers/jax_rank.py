"""One process of ``jax.distributed``: ``jax_rank.py ADDRESS RANKS RANK URL STATE [STEPS]`` prints its steps.

It continues from the file ``STATE`` if there is one. With ``STEPS``, it stops after as many and saves its state there.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parquetry import Pipeline

BATCH = 4


def steps_of(url: str, state: Path, most: int | None) -> list[tuple[list[int], int]]:
    """Returns the rows of each step here, and their sum over all processes, which wait for each other to make it."""
    data = Pipeline(url, ["id"]).shuffle(10, seed=5).shard(jax.process_count(), jax.process_index()).batch(BATCH)
    dealt = NamedSharding(Mesh(np.array(jax.devices()), "rows"), PartitionSpec("rows"))
    batches = iter(data)
    if state.exists():
        batches.load_state_dict(json.loads(state.read_text()))
    steps = []
    for batch in islice(batches, most):
        whole = jax.make_array_from_process_local_data(dealt, batch["id"])
        steps.append((batch["id"].tolist(), int(jax.jit(jax.numpy.sum)(whole))))
    if most is not None and jax.process_index() == 0:
        state.write_text(json.dumps(batches.state_dict()))
    return steps


if __name__ == "__main__":
    address, ranks, rank, url, state, *most = sys.argv[1:]
    jax.distributed.initialize(address, int(ranks), int(rank))
    print(json.dumps(steps_of(url, Path(state), int(most[0]) if most else None)))
    jax.distributed.shutdown()
