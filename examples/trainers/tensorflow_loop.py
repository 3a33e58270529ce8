"""A custom TensorFlow training loop, compiled with `tf.function`, that resumes where it stopped."""

import json
import tempfile

import tensorflow as tf
from tiles import write_tiles

from parquetry import ParquetDataset

url = write_tiles(tempfile.mkdtemp())
dataset = ParquetDataset(url).shuffle(200, seed=7).batch(50)
model = tf.keras.Sequential([tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.Adam()
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = loss_of(batch["label"], model(batch["image"], training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


for batch in dataset:
    loss = step(batch)
print(f"epoch 0: loss {loss:.3f}")

# Stop in the middle of the second epoch. The state is a few hundred bytes of JSON.
iterator = iter(dataset)
for _ in range(7):
    step(next(iterator))
state = json.dumps(dataset.state_dict(7))

# Later, in another process: first the remaining 13 batches of that epoch, then the next epoch.
resumed = ParquetDataset(url).shuffle(200, seed=7).batch(50).load_state_dict(state)
for epoch in (1, 2):
    losses = [step(batch) for batch in resumed]
    print(f"epoch {epoch}: {len(losses)} batches, loss {losses[-1]:.3f}")
