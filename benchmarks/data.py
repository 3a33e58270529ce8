"""Writes the data folders, the same bytes each time. Each holds the same rows in every format that a contender reads.

A folder contains ``parquet/`` (also readable by Petastorm), and ``files/`` and ``tars/`` where those formats make
sense. Complete folders are left alone. Formats that only a peer can write are written by the peer's module into its
own folder.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .pictures import photographs
from .robots import write_robot
from .workloads import IMAGE_QUALITY, IMAGE_SHAPES, LIDAR_SHAPE, NUMBERS, RARE, ROW_GROUP_ROWS, SEED

_FORMAT = 4  # change it to rewrite all folders


def prepare(folder: Path, name: str, rows: int) -> None:
    """Writes one data folder unless it exists."""
    done = folder / "complete.json"
    wanted = {"format": _FORMAT, "rows": rows}
    if done.exists() and json.loads(done.read_text()) == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _WRITERS[name](folder, rows)
    done.write_text(json.dumps(wanted))


def events(rows: int) -> np.ndarray:
    """Returns a mask of the rare images: one in a hundred, at random positions."""
    chosen = np.random.default_rng(SEED).choice(rows, max(1, rows // RARE), replace=False)
    return np.isin(np.arange(rows), chosen)


def _image_schema(name: str) -> Any:
    from parquetry.common import CompressedImageCodec, Unischema, UnischemaField

    image = UnischemaField("image", np.uint8, IMAGE_SHAPES[name], CompressedImageCodec("jpeg", IMAGE_QUALITY))
    return Unischema("images", [UnischemaField("id", np.int64), UnischemaField("event", np.int64), image])


def _write_images(folder: Path, rows: int) -> None:
    import simplejpeg

    from parquetry.common import DatasetWriter

    rare = events(rows)
    (folder / "files").mkdir()
    each = ROW_GROUP_ROWS[folder.name]
    options = {"row_group_rows": each, "files": 4, "petastorm_compatible": True}
    with (
        DatasetWriter(str(folder / "parquet"), _image_schema(folder.name), **options) as writer,
        _Tars(folder / "tars", each) as tars,
    ):
        writer.expect_rows(rows)
        for number, pixels in enumerate(photographs(rows, IMAGE_SHAPES[folder.name])):
            writer.write({"id": number, "event": int(rare[number]), "image": pixels})
            encoded = simplejpeg.encode_jpeg(pixels, IMAGE_QUALITY, "RGB", "420")
            (folder / "files" / f"{number:08d}.jpg").write_bytes(encoded)
            tars.add(number, {"jpg": encoded, "event": str(int(rare[number])).encode()})


def _write_rare(folder: Path, rows: int) -> None:
    """Writes more images, one in a hundred of them an event; pictures repeat, because most are never looked at."""
    import simplejpeg

    from parquetry.common import DatasetWriter

    pictures = photographs(min(rows, 256), IMAGE_SHAPES["rare"])
    encoded = [simplejpeg.encode_jpeg(pixels, IMAGE_QUALITY, "RGB", "420") for pixels in pictures]
    rare = events(rows).astype(np.int64)
    options = {"row_group_rows": ROW_GROUP_ROWS["rare"], "files": 4, "petastorm_compatible": True}
    with (
        DatasetWriter(str(folder / "parquet"), _image_schema("rare"), **options) as writer,
        _Tars(folder / "tars") as tars,
    ):
        writer.expect_rows(rows)
        for begin in range(0, rows, 512):
            numbers = np.arange(begin, min(rows, begin + 512))
            images = [encoded[number % len(encoded)] for number in numbers]
            columns = {
                "id": pa.array(numbers),
                "event": pa.array(rare[numbers]),
                "image": pa.array(images, pa.binary()),
            }
            writer.write_stored(pa.table(columns))
            for number, image in zip(numbers.tolist(), images, strict=True):
                tars.add(number, {"jpg": image, "event": str(rare[number]).encode()})


def _write_lidar(folder: Path, rows: int) -> None:
    from parquetry.common import DatasetWriter, NdarrayCodec, TensorCodec, Unischema, UnischemaField

    def sweep(number: int) -> np.ndarray:
        return np.random.default_rng(number).standard_normal(LIDAR_SHAPE, np.float32)

    for name, codec in (("ndarray", NdarrayCodec()), ("tensor", TensorCodec())):
        points = UnischemaField("points", np.float32, LIDAR_SHAPE, codec)
        schema = Unischema("lidar", [UnischemaField("id", np.int64), points])
        target = str(folder / f"parquet-{name}")
        options = {"row_group_rows": ROW_GROUP_ROWS["lidar"], "files": 4, "compression": None}
        with DatasetWriter(target, schema, petastorm_compatible=name == "ndarray", **options) as writer:
            writer.expect_rows(rows)
            for number in range(rows):
                writer.write({"id": number, "points": sweep(number)})
    (folder / "files").mkdir()
    with _Tars(folder / "tars") as tars:
        for number in range(rows):
            points_of = sweep(number)
            np.save(folder / "files" / f"{number:08d}.npy", points_of)
            stored = io.BytesIO()
            np.save(stored, points_of)
            tars.add(number, {"npy": stored.getvalue()})


def _write_table(folder: Path, rows: int) -> None:
    random = np.random.default_rng(SEED)
    columns: dict[str, np.ndarray] = {"label": np.arange(rows, dtype=np.int64)}
    columns |= {name: random.standard_normal(rows, np.float32) for name in NUMBERS[folder.name]}
    _write_parquet(folder / "parquet", pa.table(columns), ROW_GROUP_ROWS[folder.name])


def _write_texts(folder: Path, rows: int) -> None:
    random = np.random.default_rng(SEED)
    words = np.array(["".join(map(chr, random.integers(97, 123, 6))) for _ in range(1_000)])
    titles = [" ".join(words[random.integers(0, 1_000, 4)]) for _ in range(rows)]
    lengths = random.integers(1, 65, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = random.integers(0, 50_000, offsets[-1])
    scores = random.standard_normal(offsets[-1], np.float32)
    table = pa.table(
        {
            "id": np.arange(rows, dtype=np.int64),
            "title": pa.array(titles),
            "tokens": pa.ListArray.from_arrays(offsets, tokens),
            "scores": pa.ListArray.from_arrays(offsets, scores),
        }
    )
    _write_parquet(folder / "parquet", table, ROW_GROUP_ROWS["texts"])


def _write_documents(folder: Path, rows: int) -> None:
    """Returns token ids of documents with realistic, log-normal lengths."""
    random = np.random.default_rng(SEED)
    lengths = np.minimum(random.lognormal(6, 1, rows).astype(np.int64) + 1, 20_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = random.integers(0, 50_000, offsets[-1], dtype=np.int32)
    _write_parquet(
        folder / "parquet",
        pa.table({"tokens": pa.ListArray.from_arrays(offsets, tokens)}),
        ROW_GROUP_ROWS["documents"],
    )


def _write_parquet(folder: Path, table: pa.Table, row_group_rows: int) -> None:
    """Writes plain Parquet as a warehouse would: four files, snappy."""
    folder.mkdir()
    share = -(-len(table) // 4)
    for part in range(4):
        piece = table.slice(part * share, share)
        pq.write_table(piece, folder / f"part-{part}.parquet", row_group_size=row_group_rows, use_dictionary=False)


def _write_groups(folder: Path, rows: int) -> None:
    """Writes a dataset with one row per row group: one file, written once and hard-linked under many names."""
    from parquetry.common.dataset.index_writer import write_index

    target = folder / "parquet"
    target.mkdir()
    each = min(rows, 1_000)
    pq.write_table(pa.table({"id": np.arange(each)}), target / "part-00000.parquet", row_group_size=1)
    for number in range(1, rows // each):
        os.link(target / "part-00000.parquet", target / f"part-{number:05d}.parquet")
    write_index(target)


class _Tars:
    """Tar files of as many rows each, as WebDataset expects them."""

    def __init__(self, folder: Path, rows: int = 64) -> None:
        folder.mkdir()
        self._rows = rows
        self._folder = folder
        self._tar: tarfile.TarFile | None = None

    def __enter__(self) -> _Tars:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tar is not None:
            self._tar.close()

    def add(self, number: int, members: dict[str, bytes]) -> None:
        """Adds one row."""
        if number % self._rows == 0:
            if self._tar is not None:
                self._tar.close()
            self._tar = tarfile.open(self._folder / f"part-{number // self._rows:05d}.tar", "w")  # noqa: SIM115
        assert self._tar is not None
        for suffix, content in members.items():
            info = tarfile.TarInfo(f"{number:08d}.{suffix}")
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))


_WRITERS = {
    "images": _write_images,
    "rare": _write_rare,
    "large": _write_images,
    "lidar": _write_lidar,
    "table": _write_table,
    "wide": _write_table,
    "texts": _write_texts,
    "documents": _write_documents,
    "groups": _write_groups,
    "robot": write_robot,
}
