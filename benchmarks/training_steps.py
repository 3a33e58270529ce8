"""Training steps on processors that replace touching a batch: a small convolutional network, and a small MLP.

Each exists in PyTorch and in TensorFlow, with the same layers. `start_training` makes this process train on the batches
of its contender; the seconds in the step are counted, and the rest of the time is waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .touch import train_instead
from .workloads import NUMBERS, Case

CLASSES = 100
CONVOLUTIONS = ((16, 7, 4), (32, 3, 2), (64, 3, 2))  # channels, size, stride
HIDDEN = (512, 512)
RATE = 1e-3

Batch = Mapping[str, Any]


class TimedStep:
    """A training step that counts its seconds and returns its rows.

    Attributes:
        seconds: time in all steps so far.
    """

    def __init__(self, train: Callable[[Any, Any], object], values: Callable[[Batch], tuple[Any, Any]]) -> None:
        self._train = train
        self._values = values
        self.seconds = 0.0

    def __call__(self, batch: Batch) -> int:
        begin = time.perf_counter()
        x, y = self._values(batch)
        self._train(x, y)
        self.seconds += time.perf_counter() - begin
        return len(y)


def start_training(case: Case) -> None:
    """Makes this process train on the batches of a case, which are images, or rows of numbers."""
    make = {"torch": _in_torch, "tensorflow": _in_tensorflow}[case.trains]
    train_instead(make(case.workload.data in NUMBERS))


def _in_torch(of_numbers: bool) -> TimedStep:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    width = len(NUMBERS["table"]) if of_numbers else 3
    if of_numbers:
        for hidden in HIDDEN:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
    else:
        for channels, size, stride in CONVOLUTIONS:
            layers += [nn.Conv2d(width, channels, size, stride, padding=size // 2), nn.ReLU()]
            width = channels
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(width, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def train(x: Any, y: Any) -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()

    def values(batch: Batch) -> tuple[Any, Any]:
        if not of_numbers:
            return torch.as_tensor(batch["image"]).permute(0, 3, 1, 2), torch.as_tensor(batch["id"]).long() % CLASSES
        x = batch["x"] if "x" in batch else torch.stack([torch.as_tensor(batch[name]) for name in NUMBERS["table"]], 1)
        return torch.as_tensor(x).float(), torch.as_tensor(batch["label"]).long() % CLASSES

    return TimedStep(train, values)


def _in_tensorflow(of_numbers: bool) -> TimedStep:
    import tensorflow as tf

    tf.random.set_seed(0)
    layers = tf.keras.layers
    if of_numbers:
        body = [layers.Dense(hidden, "relu") for hidden in HIDDEN]
    else:
        body = [layers.Conv2D(n, size, stride, "same", activation="relu") for n, size, stride in CONVOLUTIONS]
        body.append(layers.GlobalAveragePooling2D())
    model = tf.keras.Sequential([*body, layers.Dense(CLASSES)])
    optimizer = tf.keras.optimizers.SGD(RATE)

    @tf.function(reduce_retracing=True)
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def values(batch: Batch) -> tuple[Any, Any]:
        fields = batch if isinstance(batch, Mapping) else batch._asdict()  # a named tuple of Petastorm
        if not of_numbers:
            return fields["image"], fields["id"] % CLASSES
        x = fields["x"] if "x" in fields else tf.stack([fields[name] for name in NUMBERS["table"]], 1)
        return tf.cast(x, tf.float32), tf.cast(fields["label"], tf.int64) % CLASSES

    return TimedStep(lambda x, y: float(train(x, y)), values)
