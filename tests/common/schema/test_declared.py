"""Fields given in place of names define how stored columns are decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, ScalarCodec, UnischemaField, mix
from parquetry.common.base.errors import DecodeError, ParquetryError, PipelineError, SchemaError, StateError

pytestmark = pytest.mark.versions

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
    with pytest.raises(StateError, match="saved for a different pipeline"):
        iter(Pipeline(url, fields=["image"])).load_state_dict(state)


def test_a_codec_that_cannot_have_stored_the_column_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"field 'id': expected a binary column for NdarrayCodec\(\), got int64"):
        _ = Pipeline(url, fields=[UnischemaField("id", np.int64, (2,), NdarrayCodec())]).element
    with pytest.raises(Exception, match="image"):
        list(Pipeline(url, fields=[UnischemaField("image", np.int64, (2,), NdarrayCodec())]))


PLAIN = pa.table({"id": [0, 1, 2], "text": ["a", "b", "c"], "list": [[1], [2, 3], []], "bytes": [b"\xff\xd8\xff"] * 3})


@pytest.fixture(scope="module")
def plain_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_table(tmp_path_factory.mktemp("declared"), PLAIN)


def test_a_field_without_a_codec_converts_its_column(plain_url: str) -> None:
    pipeline = Pipeline(plain_url, fields=[UnischemaField("id", np.int8), UnischemaField("list", np.float32, (None,))])
    rows = list(pipeline)
    assert [row["id"].dtype for row in rows] == [np.int8] * 3
    assert [row["list"].tolist() for row in rows] == [[1.0], [2.0, 3.0], []]
    assert {row["list"].dtype for row in rows} == {np.dtype(np.float32)}
    assert [row["id"] for row in pipeline.where([("id", ">", 1)])] == [2]
    assert [row["text"] for row in Pipeline(plain_url, fields=[UnischemaField("text", bytes)])] == [b"a", b"b", b"c"]


def test_the_dtype_is_part_of_the_pipeline_s_name(plain_url: str) -> None:
    state = iter(Pipeline(plain_url, fields=[UnischemaField("id", np.int8)])).state_dict()
    with pytest.raises(StateError, match="saved for a different pipeline"):
        iter(Pipeline(plain_url, fields=[UnischemaField("id", np.int16)])).load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (UnischemaField("id", np.int64, (2,)), SchemaError, r"expected int64 of shape \(\), as it is stored, got int64 of"),
        (UnischemaField("list", np.int64), SchemaError, r"expected int64 of shape \(None,\), as it is stored"),
        (UnischemaField("list", np.int64, (2,)), DecodeError, "a list whose length is not 2"),
        (UnischemaField("bytes", np.uint8, (3,)), SchemaError, r"or give the codec that decodes it, such as TensorCodec"),
        (UnischemaField("bytes", np.uint8, (None, None, 3)), DecodeError, "give the field a CompressedImageCodec"),
        (UnischemaField("bytes", np.uint8, (2, 2)), DecodeError, r"expected 4 bytes of uint8 \(2, 2\), got 3"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_describe_its_column_is_refused(
    plain_url: str, given: UnischemaField, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"field '{given.name}'.*{message}"):
        list(Pipeline(plain_url, fields=[given]))


def test_after_other_stages_a_field_is_compared_with_what_they_make(plain_url: str) -> None:
    cast = Pipeline(plain_url).cast("float32", "id")
    assert next(iter(cast.select(UnischemaField("id", np.float32))))["id"].dtype == np.float32
    padded = Pipeline(plain_url).pad("list", shape=(4,))
    assert next(iter(padded.select(UnischemaField("list", np.int64, (4,)))))["list"].tolist() == [1, 0, 0, 0]
    pair = mix([Pipeline(plain_url), Pipeline(plain_url)], [1, 1])
    for pipeline in (cast, Pipeline(plain_url).rename({"text": "id", "id": "text"}), pair):
        with pytest.raises(PipelineError, match=r"select: field 'id': expected int16 of shape \(\), got"):
            _ = pipeline.select(UnischemaField("id", np.int16)).element
        with pytest.raises(PipelineError, match=r"select\(\) must come before \w+\(\): it says how stored"):
            pipeline.select(UnischemaField("id", np.int16, (), ScalarCodec()))


def test_two_declarations_of_one_field_are_refused(plain_url: str) -> None:
    with pytest.raises(ParquetryError, match="select: field 'id': expected one declaration"):
        Pipeline(plain_url, fields=[UnischemaField("id", np.int8)]).select(UnischemaField("id", np.int16))
