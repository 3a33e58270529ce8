"""A field given with a codec decodes plain Parquet in every face for torch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table
from faces import import_framework
from PIL import Image

from parquetry.common import CompressedImageCodec, UnischemaField

import_framework("torch")
from torch.utils.data import DataLoader  # noqa: E402  # its import may warn

from parquetry.torch_plugin import ParquetIterable, ParquetPipe  # noqa: E402

IMAGE = UnischemaField("image", np.uint8, (8, 8, 3), CompressedImageCodec("jpeg"))
GRAYS = [0, 40, 80, 120, 160, 200]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes JPEG files of one gray level each, as any program would."""
    images = []
    for gray in GRAYS:
        image = io.BytesIO()
        Image.new("RGB", (8, 8), (gray, gray, gray)).save(image, "JPEG")
        images.append(image.getvalue())
    table = pa.table({"image": images, "id": list(range(len(GRAYS)))})
    return write_table(tmp_path_factory.mktemp("plain"), table, row_group_size=4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_jpeg_bytes_in_plain_parquet_are_images(url: str, face: Any, workers: int) -> None:
    loader = DataLoader(face(url, [IMAGE, "id"]).batch(2), batch_size=None, num_workers=workers)
    batches = list(loader)
    assert [batch["image"].shape for batch in batches] == [(2, 8, 8, 3)] * 3
    assert [number for batch in batches for number in batch["id"].tolist()] == list(range(len(GRAYS)))
    found = [int(image.float().mean().round()) for batch in batches for image in batch["image"]]
    assert found == pytest.approx(GRAYS, abs=2)
