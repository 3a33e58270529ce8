"""`describe` and `plot` for everything a batch may contain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drive_rows import write_drive

from parquetry import Pipeline, describe, plot
from parquetry.common.base.errors import PipelineError
from parquetry.common.pipeline.display.batches import FieldDescription
from parquetry.common.schema.ragged import NestedArray, RaggedArray

IMAGES = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "values"),
    [
        (np.arange(64), "int64", "(64,)", "0 1 2 3 ..."),
        (np.float32(0.5), "float32", "()", "0.5"),
        (np.zeros((0, 3), np.int8), "int8", "(0, 3)", ""),
        (np.array(["2024-01-01"], "datetime64[D]"), "datetime64[D]", "(1,)", "2024-01-01"),
        (np.ma.masked_array([1, 2], [True, False]), "int64", "(2,)", "null 2"),
        (np.array(["a", None, "b"], object), "text", "(3,)", "a null b"),
        (np.array([], object), "object", "(0,)", ""),
        (RaggedArray(np.arange(9), np.array([[1, 3], [2, 3]])), "int64", "(2, None, 3)", "0 1 2 3 ..."),
        (NestedArray(np.arange(3), (np.array([0, 2]), np.array([0, 1, 3]))), "int64", "(1, None, None)", "0 1 2"),
        ([["a"], [], ["b", "c"]], "text", "(3, None)", "a b c"),
        ([b"\xff", b"b"], "bytes", "(2,)", r"b'\xff' b'b'"),
        ("text", "text", "", "text"),
        (None, "null", "", "null"),
    ],
)
def test_every_kind_of_value_is_described(value: Any, dtype: str, shape: str, values: str) -> None:
    (found,) = describe({"x": value}).fields
    assert found == FieldDescription(name="x", dtype=dtype, shape=shape, values=values)


def test_a_batch_prints_as_one_line_for_each_field_in_text_and_html(tmp_path: Path) -> None:
    batch = next(iter(Pipeline(write_drive(tmp_path), ["id", "points", "image"]).batch(6)))
    lines = repr(describe(batch)).splitlines()
    assert lines[0].split() == ["field", "dtype", "shape", "values"]
    assert lines[2] == "points  float32  (6, None, 3)  1 1 1 2 ..."
    assert "<td>uint8</td><td>(6, 4, 5, 3)</td>" in describe(batch)._repr_html_()
    assert [field.name for field in describe({0: {"a": 1}, 1: (2, 3)}).fields] == ["0.a", "1.0", "1.1"]
    assert [field.name for field in describe(np.zeros(3)).fields] == ["value"]


def test_plot_draws_images_windows_numbers_and_lists() -> None:
    pytest.importorskip("matplotlib")
    batch = {"image": IMAGES, "window": IMAGES[:, None].repeat(2, 1), "speed": np.arange(3.0), "name": ["a", "b", "c"]}
    batch["tokens"] = RaggedArray(np.arange(3), np.array([[1], [0], [2]]))
    figure = plot(batch)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["image", "window", "speed", "tokens"]
    strips, alone = figure.axes[1].images[0].get_array(), figure.axes[0].images[0].get_array()
    assert strips.shape == (3 * 98 - 2, 2 * 98 - 2, 3)
    assert alone.shape == (96, 3 * 98 - 2, 3)
    assert [len(axes.patches) for axes in figure.axes] == [0, 0, 3, 0]
    assert [line.get_ydata().tolist() for line in figure.axes[3].lines] == [[0], [], [1, 2]]
    assert plot(batch, "image", rows=1).axes[0].images[0].get_array().shape == (96, 96, 3)
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_plot_leaves_nulls_blank() -> None:
    pytest.importorskip("matplotlib")
    batch = {
        "speed": np.ma.array([1, 2, 3], mask=[False, True, False]),
        "image": [IMAGES[0], None],
        "tokens": [[1, None, 3], None, [4]],
        "pair": np.ma.array(np.ones((2, 2)), mask=[[False, True], [True, True]]),
    }
    speed, image, tokens, pair = plot(batch).axes
    np.testing.assert_equal([bar.get_height() for bar in speed.patches], [1, np.nan, 3])
    assert image.images[0].get_array()[:, 98:].max() <= 48
    np.testing.assert_equal([list(line.get_ydata()) for line in tokens.lines], [[1, np.nan, 3], [], [4]])
    np.testing.assert_equal([list(line.get_ydata()) for line in pair.lines], [[1, np.nan], []])


def test_plot_says_what_it_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"image": IMAGES, "name": ["a", "b", "c"]}
    with pytest.raises(PipelineError, match="expected fields among image, name, got 'nam'"):
        plot(batch, ["nam"])
    with pytest.raises(PipelineError, match="got fields that cannot be drawn: name"):
        plot(batch, ["image", "name"])
    with pytest.raises(PipelineError, match="rows >= 1, got 0"):
        plot(batch, rows=0)
    with pytest.raises(PipelineError, match=r"rows >= 1, got 2\.5"):
        plot(batch, rows=2.5)
    with pytest.raises(PipelineError, match="expected the names of fields, or None, got 3"):
        plot(batch, 3)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'parquetry\[plot\]'"):
        plot(batch, "image")
