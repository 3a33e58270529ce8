"""Small versions of the files in the docs pages: photos, drives, tables, token lists, image folders, archives."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lerobot_sets import write_lerobot
from PIL import Image
from tfrecords import example, feature, framed

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset

DATA = Path(__file__).resolve().parent / "data"
JPEG = CompressedImageCodec("jpeg")


def write_all(directory: Path) -> None:
    """Writes all the files under ``directory``, in a second or less."""
    rng = np.random.default_rng(7)
    _tables(directory, rng)
    _pictures(directory, rng)
    _datasets(directory, rng)
    _archives(directory)
    write_lerobot(directory / "robot", lengths=(20, 20, 20), front=find_spec("av") is not None)
    shutil.copytree(DATA / "petastorm" / "0.12.1", directory / "data" / "petastorm")


def _jpeg(rng: np.random.Generator, height: int = 48, width: int = 64) -> bytes:
    file = io.BytesIO()
    smooth = rng.integers(0, 255, (3, 4, 3), np.uint8)
    Image.fromarray(smooth).resize((width, height)).save(file, "jpeg")
    return file.getvalue()


def _tables(directory: Path, rng: np.random.Generator) -> None:
    rows = 600
    events = pa.table(
        {
            "user": [f"user{n % 50}" for n in range(rows)],
            "city": [["Oslo", "Lima", "Pune"][n % 3] for n in range(rows)],
            "clicks": rng.integers(0, 30, rows),
            "price": rng.normal(20, 15, rows),
            "label": rng.integers(0, 2, rows),
        }
    )
    pq.write_table(events, directory / "events.parquet", row_group_size=100)
    parts = pa.table(
        {
            "label": [("good", "good", "scratch", "crack")[n % 4] for n in range(rows)],
            "quality": rng.random(rows),
            "clicks": rng.integers(0, 30, rows),
        }
    )
    pq.write_table(parts, directory / "parts.parquet", row_group_size=100)
    lengths = rng.integers(20, 600, 300)
    tokens = [rng.integers(1, 50, length).tolist() for length in lengths]
    corpus = pa.table(
        {
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
            "loss_mask": pa.array([[1] * length for length in lengths], pa.list_(pa.int32())),
            "label": rng.integers(0, 2, len(lengths)),
        }
    )
    for name in ("corpus", "web", "code", "maths"):
        (directory / name).mkdir()
        pq.write_table(corpus, directory / name / "part-0.parquet", row_group_size=30)


def _pictures(directory: Path, rng: np.random.Generator) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog", "zebra"):
            (directory / "pictures" / part / name).mkdir(parents=True)
            for number in range(20):
                (directory / "pictures" / part / name / f"{number}.jpg").write_bytes(_jpeg(rng))


def _datasets(directory: Path, rng: np.random.Generator) -> None:
    photos = Unischema(
        "photos",
        [
            UnischemaField("image", np.uint8, (None, None, 3), JPEG),
            UnischemaField("mask", np.uint8, (None, None), CompressedImageCodec("png")),
            UnischemaField("label", np.int64),
            UnischemaField("split", str),
            UnischemaField("id", np.int64),
            UnischemaField("speed", np.float32),
            UnischemaField("stamp", np.int64),
        ],
    )

    def photo_rows() -> Iterator[dict[str, Any]]:
        for number in range(160):
            yield {
                "image": _jpeg(rng),
                "mask": np.full((48, 64), number % 4, np.uint8),
                "label": number % 3,
                "split": "valid" if number % 5 == 0 else "train",
                "id": number,
                "speed": number / 10,
                "stamp": 100 * number,
            }

    write_dataset(str(directory / "photos"), photos, photo_rows(), row_group_rows=20)
    tiles = Unischema(
        "tiles",
        [
            UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("png")),
            UnischemaField("label", np.int64),
            UnischemaField("split", str),
        ],
    )
    tile = np.zeros((8, 8, 3), np.uint8)
    tile_rows = ({"image": tile + n, "label": n % 3, "split": "valid" if n % 5 == 0 else "train"} for n in range(240))
    write_dataset(str(directory / "tiles"), tiles, tile_rows, row_group_rows=60, files=2)
    for copy in ("train", "raw", "drive"):
        shutil.copytree(directory / "photos", directory / "data" / copy)
    state = iter(Pipeline(directory / "data" / "train").shuffle(1000, seed=7).batch(64)).state_dict()
    (directory / "state.json").write_text(json.dumps(state))
    (directory / "data" / "plain").mkdir()
    shutil.copy(directory / "events.parquet", directory / "data" / "plain")
    drives = Unischema(
        "drives",
        [
            UnischemaField("drive", str),
            UnischemaField("time_ms", np.int64),
            UnischemaField("speed", np.float32),
            UnischemaField("image", np.uint8, (None, None, 3), JPEG),
        ],
    )
    frames = (
        {"drive": drive, "time_ms": 100 * n + (3_000 if n >= 20 else 0), "speed": n / 2, "image": _jpeg(rng)}
        for drive in ("a", "b")
        for n in range(40)
    )
    write_dataset(str(directory / "drives"), drives, frames, row_group_rows=15)


def _archives(directory: Path) -> None:
    (directory / "shards").mkdir()
    pictures = sorted((directory / "pictures" / "train").glob("*/*.jpg"))[:12]
    records = []
    for part in range(2):
        with tarfile.open(directory / "shards" / f"train-{part}.tar", "w") as tar:
            for number, path in enumerate(pictures[part::2]):
                for suffix, content in (("jpg", path.read_bytes()), ("cls", b"%d" % (number % 3))):
                    member = tarfile.TarInfo(f"{part}{number:03}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    for number, path in enumerate(pictures[:4]):
        features = {
            "image/encoded": feature([path.read_bytes()]),
            "image/class/label": feature([number % 3]),
            "box": feature([0.0, 0.0, 1.0, 1.0]),
            "depth": feature([bytes(480 * 640 * 2)]),
        }
        records.append(example(features))
    for part in range(2):
        (directory / f"train.tfrecord-{part}").write_bytes(framed(*records[part::2]))
