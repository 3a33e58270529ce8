"""A field given with a codec decodes plain Parquet in tf.data."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table
from PIL import Image

from parquetry.common import CompressedImageCodec, UnischemaField
from parquetry.tf_plugin import ParquetDataset

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


def test_jpeg_bytes_in_plain_parquet_are_images(url: str) -> None:
    dataset = ParquetDataset(url, [IMAGE, "id"]).batch(2)
    assert dataset.element_spec["image"].shape.as_list()[1:] == [8, 8, 3]
    batches = list(dataset.as_numpy_iterator())
    assert [number for batch in batches for number in batch["id"].tolist()] == list(range(len(GRAYS)))
    found = [int(image.mean().round()) for batch in batches for image in batch["image"]]
    assert found == pytest.approx(GRAYS, abs=2)
