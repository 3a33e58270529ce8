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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .workloads import IMAGE_QUALITY, IMAGE_SHAPE, LIDAR_SHAPE, NUMBERS, RARE, ROW_GROUP_ROWS, SEED

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


def photographs(rows: int) -> Iterator[np.ndarray]:
    """Yields crops of two photographs, all different."""
    sources = _sources()
    random = np.random.default_rng(SEED)
    for number in range(rows):
        source = sources[number % len(sources)]
        top = random.integers(source.shape[0] - IMAGE_SHAPE[0] + 1)
        left = random.integers(source.shape[1] - IMAGE_SHAPE[1] + 1)
        yield np.ascontiguousarray(source[top : top + IMAGE_SHAPE[0], left : left + IMAGE_SHAPE[1]])


def _sources() -> list[np.ndarray]:
    """Returns scikit-learn's two photographs, or without scikit-learn, two pictures with about as much detail."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return [_picture(np.random.default_rng(number)) for number in range(2)]
    images: list[np.ndarray] = load_sample_images().images
    return images


def _picture(random: np.random.Generator) -> np.ndarray:
    """Returns noise at every scale, weaker at finer scales: its JPEG is about as large as a photograph's."""
    height, width = 427, 640
    pixels = np.full((height, width, 3), 128.0)
    for cell in (128, 64, 32, 16, 8, 4, 2):
        coarse = random.standard_normal((height // cell + 2, width // cell + 2, 3))
        pixels += 4.0 * cell**0.5 * coarse.repeat(cell, 0).repeat(cell, 1)[:height, :width]
    return pixels.clip(0, 255).astype(np.uint8)


def events(rows: int) -> np.ndarray:
    """Returns a mask of the rare images: one in a hundred, at random positions."""
    chosen = np.random.default_rng(SEED).choice(rows, max(1, rows // RARE), replace=False)
    return np.isin(np.arange(rows), chosen)


def _image_schema() -> Any:
    from parquetry.common import CompressedImageCodec, Unischema, UnischemaField

    image = UnischemaField("image", np.uint8, IMAGE_SHAPE, CompressedImageCodec("jpeg", IMAGE_QUALITY))
    return Unischema("images", [UnischemaField("id", np.int64), UnischemaField("event", np.int64), image])


def _write_images(folder: Path, rows: int) -> None:
    import simplejpeg

    from parquetry.common import DatasetWriter

    rare = events(rows)
    (folder / "files").mkdir()
    options = {"row_group_rows": ROW_GROUP_ROWS["images"], "files": 4, "petastorm_compatible": True}
    with DatasetWriter(str(folder / "parquet"), _image_schema(), **options) as writer, _Tars(folder / "tars") as tars:
        writer.expect_rows(rows)
        for number, pixels in enumerate(photographs(rows)):
            writer.write({"id": number, "event": int(rare[number]), "image": pixels})
            encoded = simplejpeg.encode_jpeg(pixels, IMAGE_QUALITY, "RGB", "420")
            (folder / "files" / f"{number:08d}.jpg").write_bytes(encoded)
            tars.add(number, {"jpg": encoded, "event": str(int(rare[number])).encode()})


def _write_rare(folder: Path, rows: int) -> None:
    """Writes more images, one in a hundred of them an event; pictures repeat, because most are never looked at."""
    import simplejpeg

    from parquetry.common import DatasetWriter

    encoded = [simplejpeg.encode_jpeg(pixels, IMAGE_QUALITY, "RGB", "420") for pixels in photographs(min(rows, 256))]
    rare = events(rows).astype(np.int64)
    options = {"row_group_rows": ROW_GROUP_ROWS["rare"], "files": 4, "petastorm_compatible": True}
    with DatasetWriter(str(folder / "parquet"), _image_schema(), **options) as writer, _Tars(folder / "tars") as tars:
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
    columns |= {name: random.standard_normal(rows, np.float32) for name in NUMBERS}
    _write_parquet(folder / "parquet", pa.table(columns), ROW_GROUP_ROWS["table"])


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
    from parquetry.common.layout.index_writer import write_index

    target = folder / "parquet"
    target.mkdir()
    each = min(rows, 1_000)
    pq.write_table(pa.table({"id": np.arange(each)}), target / "part-00000.parquet", row_group_size=1)
    for number in range(1, rows // each):
        os.link(target / "part-00000.parquet", target / f"part-{number:05d}.parquet")
    write_index(target)


class _Tars:
    """Tar files of 64 rows each, as WebDataset expects them."""

    _ROWS = 64

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._tar: tarfile.TarFile | None = None

    def __enter__(self) -> _Tars:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tar is not None:
            self._tar.close()

    def add(self, number: int, members: dict[str, bytes]) -> None:
        """Adds one row."""
        if number % self._ROWS == 0:
            if self._tar is not None:
                self._tar.close()
            self._tar = tarfile.open(self._folder / f"part-{number // self._ROWS:05d}.tar", "w")  # noqa: SIM115
        assert self._tar is not None
        for suffix, content in members.items():
            info = tarfile.TarInfo(f"{number:08d}.{suffix}")
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))


_WRITERS = {
    "images": _write_images,
    "rare": _write_rare,
    "lidar": _write_lidar,
    "table": _write_table,
    "texts": _write_texts,
    "documents": _write_documents,
    "groups": _write_groups,
}
