"""Contact sheets and film strips: which image goes where, in which colors; tokens as text."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.reports import contact_sheet
from parquetry.common.apps.reports.pictures import decoded_tokens, load_tokenizer, save_png, token_fields
from parquetry.common.base.errors import CodecUnavailableError, DatasetError, PipelineError

FIELDS = [
    UnischemaField("id", np.int64),
    UnischemaField("image", np.uint8, (4, 4, 3)),
    UnischemaField("mask", np.uint8, (4, 4), nullable=True),
    UnischemaField("depth", np.float32, (None, None, 1), NdarrayCodec()),
    UnischemaField("chw", np.uint8, (3, 4, 4), dims=("C", "H", "W")),
    UnischemaField("alpha", np.uint8, (4, 4, 4)),
    UnischemaField("tokens", np.int32, (None,)),
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    url = str(tmp_path_factory.mktemp("set") / "set")
    rows = [
        {
            "id": number,
            "image": np.full((4, 4, 3), 10 * number + 5, np.uint8),
            "mask": None if number == 1 else np.full((4, 4), 200, np.uint8),
            "depth": np.arange(8, dtype=np.float32).reshape(2, 4, 1),
            "chw": np.stack([np.full((4, 4), value, np.uint8) for value in (1, 2, 3)]),
            "alpha": np.stack([np.full((4, 4), value, np.uint8) for value in (0, 0, 0, 255 * (number % 2))], axis=2),
            "tokens": [number, number + 1],
        }
        for number in range(6)
    ]
    write_dataset(url, Unischema("s", FIELDS), rows)
    return Pipeline(url)


def test_images_lie_side_by_side(pipeline: Pipeline) -> None:
    sheet = contact_sheet(pipeline, 5, columns=2, tile=8)
    assert (sheet.field, sheet.images, sheet.pixels.shape) == ("image", 5, (28, 18, 3))
    middles = sheet.pixels[4::10, 4::10, 0]
    assert middles.tolist()[:2] == [[5, 15], [25, 35]]
    assert middles[2, 0] == 45
    assert sheet.captions[3].startswith("id 3")


def test_windows_are_strips(pipeline: Pipeline) -> None:
    stacked = contact_sheet(pipeline.ngram(["image"], length=3), 2, tile=8)
    assert (stacked.images, stacked.pixels.shape) == (6, (18, 28, 3))
    assert stacked.pixels[4::10, 4::10, 0].tolist() == [[5, 15, 25], [15, 25, 35]]
    offsets = contact_sheet(pipeline.ngram({0: ["image"], 1: ["image", "id"]}), 1, field="image", tile=8)
    assert offsets.pixels[4, 4::10, 0].tolist() == [5, 15]
    narrow = contact_sheet(pipeline.ngram(["image"], length=3), 1, tile=100, max_width=40)
    assert narrow.pixels.shape[1] <= 40


@pytest.mark.parametrize(
    ("field", "middle"), [("mask", [200] * 3), ("chw", [1, 2, 3]), ("alpha", [255] * 3), ("image", [5] * 3)]
)
def test_every_form_of_image_becomes_colors(pipeline: Pipeline, field: str, middle: list[int]) -> None:
    assert contact_sheet(pipeline, 1, field=field, tile=8).pixels[4, 4].tolist() == middle


def test_numbers_are_scaled_nulls_are_dark_and_shapes_kept(pipeline: Pipeline) -> None:
    depth = contact_sheet(pipeline, 1, field="depth", tile=8).pixels
    assert depth.max() == 255
    assert depth[0, 0].tolist() == [48] * 3
    assert contact_sheet(pipeline, 2, field="mask", tile=8).pixels[4, 14].tolist() == [0] * 3
    assert (
        contact_sheet(pipeline, 3, seed=4, tile=8).pixels.tolist()
        == contact_sheet(pipeline, 3, seed=4, tile=8).pixels.tolist()
    )


def test_a_sheet_is_written_whole(pipeline: Pipeline, tmp_path: Path) -> None:
    pixels = contact_sheet(pipeline, 2, tile=8).pixels
    save_png(pixels, tmp_path / "sheet.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "sheet.png")), pixels)
    with pytest.raises(DatasetError, match="cannot be written"):
        save_png(pixels, tmp_path / "none" / "sheet.png")


def test_fields_that_are_not_images_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineError, match="Image fields are: image, mask, depth, chw, alpha"):
        contact_sheet(pipeline, field="bogus")
    with pytest.raises(PipelineError, match="expected images in 'id'"):
        contact_sheet(pipeline, field="id")
    with pytest.raises(PipelineError, match="expected a field of images, got id"):
        contact_sheet(pipeline.select("id"))
    with pytest.raises(PipelineError, match="Leave batch"):
        contact_sheet(pipeline.batch(2))
    with pytest.raises(PipelineError, match="numbers >= 1"):
        contact_sheet(pipeline, columns=0)


def test_tokens_are_decoded_by_a_tokenizer(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    class Letters:
        @classmethod
        def from_file(cls, path: str) -> Letters:
            if path == "none":
                raise Exception("no such file")  # like the library
            return cls()

        def decode(self, ids: list[int]) -> str:
            return " ".join("abcdefgh"[number] for number in ids)

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Letters))
    assert token_fields(pipeline) == ["tokens"]
    assert decoded_tokens(np.array([1, 2], np.int32), load_tokenizer("a.json")) == "b c"
    assert decoded_tokens([None, 1, 2, None], load_tokenizer("a.json")) == "null b c null"
    assert decoded_tokens(None, load_tokenizer("a.json")) == "null"
    with pytest.raises(DatasetError, match=r"expected a tokenizer\.json"):
        load_tokenizer("none")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(CodecUnavailableError, match="pip install tokenizers"):
        load_tokenizer("a.json")
