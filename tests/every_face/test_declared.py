"""Fields that are given are converted to their own dtype and shape, or decoded by their codec, in every face."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table
from faces import Face, TorchFace, installed_faces
from PIL import Image

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField

LOADERS = [TorchFace(2), TorchFace(kind="ParquetPipe"), TorchFace(2, kind="ParquetPipe")]
FACES = [*installed_faces(), *(LOADERS if importlib.util.find_spec("torch") is not None else [])]


@pytest.mark.parametrize("face", installed_faces(), ids=lambda face: face.name)
def test_values_have_the_dtype_and_shape_of_the_given_field(tmp_path: Path, face: Any) -> None:
    table = pa.table({"id": [0, 1, 2], "pair": [[1, 2], [3, 4], [5, 6]], "raw": [bytes([n] * 4) for n in range(3)]})
    fields = [
        UnischemaField("id", np.float32),
        UnischemaField("pair", np.int16, (2,)),
        UnischemaField("raw", np.uint8, (2, 2)),
    ]
    pipeline = Pipeline(write_table(tmp_path, table), fields=fields).batch(3)
    assert [(output.dtype, output.shape) for output in pipeline.element.outputs] == [
        (np.float32, ()),
        (np.int16, (2,)),
        (np.uint8, (2, 2)),
    ]
    (rows,) = face.elements(pipeline)
    assert rows == [{"id": float(n), "pair": [2 * n + 1, 2 * n + 2], "raw": [[n, n], [n, n]]} for n in range(3)]


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_image_files_in_plain_parquet_are_decoded_by_the_codec_of_the_given_field(tmp_path: Path, face: Face) -> None:
    grays, files = [0, 40, 80, 120, 160, 200], []
    for gray in grays:
        files.append(io.BytesIO())
        Image.new("RGB", (8, 8), (gray, gray, gray)).save(files[-1], "JPEG")
    table = pa.table({"image": [file.getvalue() for file in files], "id": list(range(len(grays)))})
    image = UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg"))
    pipeline = Pipeline(write_table(tmp_path, table, row_group_size=4), fields=[image, "id"]).batch(2)
    rows = [row for batch in face.elements(pipeline) for row in batch]
    assert [row["id"] for row in rows] == list(range(len(grays)))
    assert [np.shape(row["image"]) for row in rows] == [(8, 8, 3)] * len(grays)
    assert [round(np.mean(row["image"])) for row in rows] == pytest.approx(grays, abs=2)
