"""Fields given with a codec define how stored columns are decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, UnischemaField
from parquetry.common.errors import SchemaError, StateError

IMAGE = UnischemaField("image", np.uint8, (4, 6, 3), CompressedImageCodec("png"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    images = [IMAGE.storage.encode(IMAGE, np.full(IMAGE.shape, number, np.uint8)) for number in range(5)]  # type: ignore[arg-type]  # a fixed shape
    return write_table(tmp_path_factory.mktemp("plain"), pa.table({"image": images, "id": list(range(5))}))


def _first_pixels(pipeline: Any) -> list[int]:
    return [int(row["image"][0, 0, 0]) for row in pipeline]


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_plain_bytes_are_decoded_by_the_codec_of_the_given_field(url: str, executor: str) -> None:
    pipeline = Pipeline(url, fields=[IMAGE, "id"], executor=executor)
    assert _first_pixels(pipeline) == list(range(5))
    assert next(iter(pipeline.batch(3)))["image"].shape == (3, 4, 6, 3)
    assert _first_pixels(Pipeline.from_json(json.loads(json.dumps(pipeline.to_json())))) == list(range(5))
    assert _first_pixels(Pipeline(Pipeline(url), fields=[IMAGE])) == list(range(5))


def test_a_filter_reads_the_given_field_too(url: str) -> None:
    pipeline = Pipeline(url, fields=[IMAGE, "id"], executor="threads")
    assert _first_pixels(pipeline.where(lambda row: row["image"].max() > 2, fields=["image"])) == [3, 4]


def test_the_codec_is_part_of_the_pipeline_s_name(url: str) -> None:
    state = iter(Pipeline(url, fields=[IMAGE])).state_dict()
    with pytest.raises(StateError, match="it belongs to another pipeline"):
        iter(Pipeline(url, fields=["image"])).load_state_dict(state)


def test_a_codec_that_cannot_have_stored_the_column_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"field 'id': expected a binary column for NdarrayCodec\(\), got int64"):
        _ = Pipeline(url, fields=[UnischemaField("id", np.int64, (2,), NdarrayCodec())]).element
    with pytest.raises(Exception, match="image"):
        list(Pipeline(url, fields=[UnischemaField("image", np.int64, (2,), NdarrayCodec())]))
