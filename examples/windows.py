"""N-gram windows over a drive with a gap: stacked, with fields per offset, and without overlap."""

import tempfile

import numpy as np

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset

schema = Unischema(
    "drives",
    [
        UnischemaField("drive", str),
        UnischemaField("time_ms", np.int64),
        UnischemaField("speed", np.float32),
        UnischemaField("lidar", np.float32, (None, 3)),
    ],
)
# Two drives of eight rows, 100 ms apart, with a three-second gap after the fourth.
rows = [
    {
        "drive": drive,
        "time_ms": 100 * n + (3_000 if n >= 4 else 0),
        "speed": n / 2,
        "lidar": np.full((n, 3), n, np.float32),
    }
    for drive in ("a", "b")
    for n in range(8)
]
url = tempfile.mkdtemp()
write_dataset(url, schema, rows, row_group_rows=3)  # windows may span row groups

rule = {"timestamp": "time_ms", "max_gap": 150, "group_by": "drive"}

print("stacked: every field gets an axis of three steps, and none crosses the silence or a drive")
for window in Pipeline(url, ["drive", "time_ms", "speed"]).ngram(length=3, **rule):
    print(" ", window["drive"].tolist(), window["time_ms"].tolist(), window["speed"].tolist())

print("fields per offset: the past's speed, and the present's lidar")
for window in Pipeline(url).ngram({-1: ["speed"], 0: ["lidar"]}, **rule).take(3):
    print(" ", window[-1]["speed"], window[0]["lidar"].shape)

print("without overlap, shuffled, in batches [B, T, ...]")
for batch in Pipeline(url, ["time_ms"]).ngram(length=2, overlap=False, **rule).shuffle(8, seed=1).batch(4):
    print(" ", batch["time_ms"].shape, batch["time_ms"].tolist())
