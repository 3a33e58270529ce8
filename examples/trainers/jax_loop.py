"""A hand-written JAX loop: a `Pipeline` yields numpy batches, which `jax.jit` accepts as they are."""

import tempfile

import jax
import jax.numpy as jnp
from tiles import write_tiles

from parquetry import Pipeline

data = Pipeline(write_tiles(tempfile.mkdtemp())).shuffle(200, seed=7).batch(50, drop_remainder=True)


@jax.jit
def step(weights: jax.Array, image: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss_of(weights: jax.Array) -> jax.Array:
        logits = image.reshape(len(image), -1) / 255 @ weights
        return -jax.nn.log_softmax(logits)[jnp.arange(len(label)), label].mean()

    loss, slope = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * slope, loss


weights = jnp.zeros((16 * 16 * 3, 2))
for epoch in range(3):
    for batch in data:
        weights, loss = step(weights, batch["image"], batch["label"])
    print(f"epoch {epoch}: {len(data)} batches, loss {loss:.3f}")
