"""Writes the small data of the programs beside it into the current folder; run it first."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from parquetry import CompressedImageCodec, NdarrayCodec, ScalarCodec, Unischema, UnischemaField, write_dataset

CITIES = np.array(["Lima", "Oslo", "Pune", None])


def main() -> None:
    """Writes tables, pictures, drives, texts and a dataset of Petastorm."""
    rng = np.random.default_rng(7)
    city, age = rng.integers(0, 4, 4_000), rng.integers(18, 80, 4_000)
    clicks = {
        "user": [f"u{n}" for n in rng.integers(0, 900, 4_000)],
        "city": CITIES[city].tolist(),
        "age": age.tolist(),
        "price": [None if n % 50 == 0 else price for n, price in enumerate(rng.lognormal(3, 1, 4_000).tolist())],
        "clicked": ((city == 1) | (age < 30)).astype(np.int64),
    }
    pq.write_table(pa.table(clicks), "clicks.parquet", row_group_size=500)

    users, films = rng.integers(0, 200, 6_000), rng.integers(0, 100, 6_000)
    liked = (users % 2 == films % 2).astype(np.int64)
    ratings = {"user": [f"user-{n}" for n in users], "film": [f"film-{n}" for n in films], "liked": liked}
    pq.write_table(pa.table(ratings), "ratings.parquet", row_group_size=1_000)

    texts = [f"Document {n} says hello. " * (1 + n % 5) for n in range(400)]
    pq.write_table(pa.table({"text": texts}), "texts.parquet", row_group_size=100)

    for label, name in enumerate(("cat", "dog")):
        Path("photos", name).mkdir(parents=True, exist_ok=True)
        for n in range(60):
            pixels = rng.integers(0, 100, (60, 80, 3), np.uint8)
            pixels[..., label] += 150  # cats are red, dogs are green
            Image.fromarray(pixels).save(f"photos/{name}/{n}.jpg")

    frame = UnischemaField("frame", np.uint8, (48, 64, 3), CompressedImageCodec("jpeg"))
    numbers = [UnischemaField("time_ms", np.int64), UnischemaField("speed", np.float32)]
    drives = [
        {
            "drive": drive,
            "time_ms": 100 * n + (5_000 if n >= 30 else 0),  # five seconds are missing after frame 29
            "speed": n / 60,
            "frame": np.full((48, 64, 3), 4 * n, np.uint8),
        }
        for drive in ("monday", "tuesday", "wednesday")
        for n in range(60)
    ]
    schema = Unischema("drives", [UnischemaField("drive", str), *numbers, frame])
    write_dataset("drives", schema, drives, row_group_rows=20)

    fields = [
        UnischemaField("id", np.int64, (), ScalarCodec()),
        UnischemaField("points", np.float32, (16, 3), NdarrayCodec()),
    ]
    points = ({"id": n, "points": rng.normal(n % 2, 1, (16, 3)).astype(np.float32)} for n in range(600))
    old = Unischema("sweeps", [*fields, UnischemaField("label", np.int64, (), ScalarCodec())])
    sweeps = ({**row, "label": row["id"] % 2} for row in points)
    write_dataset("sweeps", old, sweeps, row_group_rows=100, petastorm_compatible=True)


if __name__ == "__main__":
    main()
