"""Camera frames in videos: a policy in PyTorch and one in Keras learn to follow a mark, from windows of two frames."""

import os
import tempfile
from collections.abc import Iterator

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import torch
from torch.utils.data import DataLoader

from parquetry import ParquetDataset, ParquetIterable, Pipeline, Unischema, UnischemaField, VideoCodec, write_dataset

EPISODES, LENGTH, HEIGHT, WIDTH = 8, 60, 64, 96


def demonstrations() -> Iterator[dict[str, object]]:
    """Yields rows of a mark that moves, and of the action that follows it: where it is, from -1 to 1."""
    for episode in range(EPISODES):
        places = np.random.default_rng(episode).normal(0, 4, LENGTH).cumsum().clip(-40, 40) + WIDTH // 2
        for place in places.astype(int).tolist():
            frame = np.full((HEIGHT, WIDTH, 3), 60, np.uint8)
            frame[20:44, place - 6 : place + 6] = 220
            yield {"episode": episode, "front": frame, "action": (place - WIDTH / 2) / 40}


with tempfile.TemporaryDirectory() as directory:
    fields = [
        UnischemaField("episode", np.int64),
        UnischemaField("front", np.uint8, (HEIGHT, WIDTH, 3), VideoCodec("h264", gop=4)),
        UnischemaField("action", np.float32),
    ]
    write_dataset(f"{directory}/robot", Unischema("robot", fields), demonstrations(), row_group_rows=LENGTH)
    windows = Pipeline(f"{directory}/robot").ngram(
        offsets={"front": [-1, 0], "action": 0}, group_by="episode", edges="clamp"
    )
    train = windows.select(["front", "action"]).normalize("front").shuffle(200, seed=7).batch(32)

    policy = torch.nn.Sequential(torch.nn.AvgPool3d((1, 8, 8)), torch.nn.Flatten(), torch.nn.Linear(576, 1))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    frames = ParquetIterable(train.permute("front", dims=("C", "H", "W")))
    for _ in range(6):
        for batch in DataLoader(frames, batch_size=None):
            loss = torch.nn.functional.mse_loss(policy(batch["front"])[:, 0], batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"PyTorch: loss {loss.item():.3f}")

    same = keras.Sequential(
        [
            keras.layers.AveragePooling3D((1, 8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    same.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
    history = same.fit(ParquetDataset(train.as_tuple("front", "action")), epochs=6, shuffle=False, verbose=0)
    print(f"Keras: loss {history.history['loss'][-1]:.3f}")
