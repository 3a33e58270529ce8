"""One process reads and decodes; a TensorFlow and a PyTorch trainer, each in its own process, take half the rows."""

import multiprocessing
import os
import tempfile

import numpy as np

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.server import serve
from parquetry.errors import PipelineError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def train_with_tensorflow(address: str) -> None:
    """Trains on the first half of every epoch."""
    import tensorflow as tf

    from parquetry.tf_plugin import ParquetDataset

    try:
        dataset = ParquetDataset(address=address, transport="arrow").shard(2, 0)
    except PipelineError:  # tensorflow-io works with TensorFlow 2.16 and 2.17 only; this works with any
        half = Pipeline(address=address).shard(2, 0)
        spec = {"image": tf.TensorSpec((None, 16, 16, 3), tf.uint8), "label": tf.TensorSpec((None,), tf.int64)}
        dataset = tf.data.Dataset.from_generator(lambda: half, output_signature=spec)
    model = tf.keras.Sequential(
        [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for epoch in range(3):
        losses = [model.train_on_batch(batch["image"], batch["label"]) for batch in dataset]
        print(f"TensorFlow: epoch {epoch}: {len(losses)} batches", flush=True)


def train_with_torch(address: str) -> None:
    """Trains on the second half of every epoch."""
    import torch
    from torch.utils.data import DataLoader

    from parquetry.torch_plugin import ParquetPipe

    loader = DataLoader(ParquetPipe(address=address).shard(2, 1), batch_size=None)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        batches = 0
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches += 1
        print(f"PyTorch: epoch {epoch}: {batches} batches", flush=True)


def main() -> None:
    """Writes a dataset, serves it, and trains."""
    schema = Unischema(
        "tiles",
        [
            UnischemaField("image", np.uint8, (16, 16, 3), CompressedImageCodec("png")),
            UnischemaField("label", np.int64),
        ],
    )
    # Tiles that are red (label 0) or green (label 1).
    rows = [{"image": np.full((16, 16, 3), np.eye(3)[n % 2] * 200, np.uint8), "label": n % 2} for n in range(1_000)]
    url = tempfile.mkdtemp()
    write_dataset(url, schema, rows, row_group_rows=100)

    pipeline = Pipeline(url).shuffle(200, seed=7).batch(50)
    with serve(pipeline, "tcp://127.0.0.1:0") as server:  # or: parquetry serve --listen ...
        print(f"serving at {server.address}", flush=True)
        context = multiprocessing.get_context("spawn")  # neither framework likes to be forked
        trainers = [
            context.Process(target=train, args=(server.address,)) for train in (train_with_tensorflow, train_with_torch)
        ]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
    print("exit statuses:", [trainer.exitcode for trainer in trainers])


if __name__ == "__main__":
    main()
