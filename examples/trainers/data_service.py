"""The tf.data service: worker processes read and decode, and the trainer gets their batches over the network.

The script starts a dispatcher and two workers on this machine. On a cluster, each worker's host runs `data_service.py
DISPATCHER`, as in `data_service.py dispatcher:5050`.
"""

import subprocess
import sys
import tempfile

import tensorflow as tf
from tiles import write_numbered_tiles

from parquetry import ParquetDataset
from parquetry.tf_plugin import load_ops

service = tf.data.experimental.service


def work(dispatcher: str) -> None:
    """Serves until it is stopped. The workers run parquetry's op, so they must know it before the first dataset."""
    load_ops()
    server = service.WorkerServer(service.WorkerConfig(dispatcher))
    print("a worker serves", flush=True)
    server.join()


def train(url: str, target: str) -> None:
    """Trains for one epoch, in which DYNAMIC sharding gives each tile to one worker."""
    tiles = ParquetDataset(url).shuffle(200, seed=7).batch(50)
    served = tiles.apply(service.distribute(service.ShardingPolicy.DYNAMIC, target))
    model = tf.keras.Sequential(
        [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    numbers: list[int] = []
    for batch in served:
        loss = model.train_on_batch(batch["image"], batch["label"])
        numbers += batch["number"].numpy().tolist()
    print(f"{len(numbers)} tiles, {len(set(numbers))} of them distinct, loss {loss:.3f}")


def main() -> None:
    """Starts the service, and trains from it."""
    url = write_numbered_tiles(tempfile.mkdtemp())
    # On a cluster: with DispatcherConfig(port=5050), in a process of its own, which calls load_ops().
    dispatcher = service.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    workers = [
        subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for worker in workers:
            print(worker.stdout.readline(), end="")
        train(url, dispatcher.target)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    work(sys.argv[1]) if sys.argv[1:] else main()
