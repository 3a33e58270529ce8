"""Nulls, variable shapes, decimals and axes: each form that a model may expect, against plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from cases import every_case
from drive_rows import ROWS, drive_url_once
from ids import ids

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DecodeError, FieldNotFoundError, NullValueError, PipelineError
from parquetry.common.engine.columns.batch import Dense, Ragged
from parquetry.common.engine.steps.shaping import pad_batches
from parquetry.common.schema.element import OutputField
from parquetry.common.schema.field import Shape
from parquetry.common.stages.pad import PadStep

url = drive_url_once()


@pytest.fixture(params=["threads", "sidecar"])
def drive(request: pytest.FixtureRequest, url: str) -> Pipeline:
    return Pipeline(url, executor=request.param, workers=1)


def test_a_null_is_none_in_rows_and_masked_in_batches(drive: Pipeline) -> None:
    assert [row["name"] for row in drive.select("name")] == [row["name"] for row in ROWS]
    batch = next(iter(drive.select("speed").batch(40)))
    assert batch["speed"].mask.tolist() == [row["speed"] is None for row in ROWS]


def test_mask_gives_zeros_and_a_companion(drive: Pipeline) -> None:
    batch = next(iter(drive.select("id", "name", "speed").nulls("mask").batch(40)))
    assert set(batch) == {"id", "name", "speed", "name__valid", "speed__valid"}
    assert batch["speed"].tolist() == [row["speed"] or 0.0 for row in ROWS]
    assert batch["speed__valid"].tolist() == [row["speed"] is not None for row in ROWS]
    assert batch["name"].tolist() == [row["name"] or "" for row in ROWS]


def test_fill_puts_the_value_where_nothing_was(drive: Pipeline) -> None:
    filled = drive.select("name", "speed").nulls("fill", "name", value="?").nulls("fill", "speed", value=-1.0)
    batch = next(iter(filled.batch(40)))
    assert batch["name"].tolist() == [row["name"] or "?" for row in ROWS]
    assert batch["speed"].tolist() == [-1.0 if row["speed"] is None else row["speed"] for row in ROWS]


def test_drop_leaves_the_rows_out_and_knows_how_many(drive: Pipeline) -> None:
    dropped = drive.select("id", "name").nulls("drop", "name")
    assert ids(dropped) == [row["id"] for row in ROWS if row["name"] is not None]
    assert len(dropped) == sum(row["name"] is not None for row in ROWS)


def test_error_names_field_file_and_row(drive: Pipeline) -> None:
    with pytest.raises(
        NullValueError, match=r"field 'name', file .*part-00000.parquet, row group 0, row 0: expected a value"
    ):
        list(drive.select("name").nulls("error"))


def test_a_policy_can_be_given_inside_windows(drive: Pipeline) -> None:
    batch = next(iter(drive.select("id", "name").nulls("mask", "name").ngram(length=2, group_by="drive").batch(5)))
    assert batch["name__valid"].tolist() == [[n % 7 != 0, (n + 1) % 7 != 0] for n in range(5)]


def test_pad_grows_to_the_largest_of_the_batch_and_tells_lengths(drive: Pipeline) -> None:
    batch = next(iter(drive.select("points", "tags").pad("points", "tags").batch(4)))
    assert batch["points"].shape == (4, 3, 3)
    assert batch["points__length"].tolist() == [0, 1, 2, 3]
    assert batch["points"][2].tolist() == [[2.0] * 3, [2.0] * 3, [0.0] * 3]
    assert batch["tags"].tolist() == [["", ""], ["t0", ""], ["t0", "t1"], ["", ""]]
    assert batch["tags__length"].tolist() == [0, 1, 2, 0]


def test_pad_to_a_shape_makes_rows_static(drive: Pipeline) -> None:
    padded = drive.select("points").pad("points", shape=(5, 3), value=-1)
    assert padded.element.outputs[0].shape == (5, 3)
    assert [row["points"].shape for row in padded] == [(5, 3)] * 40
    assert next(iter(padded.skip(1)))["points"][:, 0].tolist() == [1.0, -1.0, -1.0, -1.0, -1.0]


def test_pad_refuses_values_that_are_larger(drive: Pipeline) -> None:
    with pytest.raises(
        DecodeError, match=r"field 'points', .*row 3: expected a shape of at most \(2, 3\), got \(3, 3\)"
    ):
        list(drive.select("points").pad("points", shape=(2, 3)))


def test_fixed_holds_every_value_to_one_shape(drive: Pipeline) -> None:
    same = drive.select("id", "points").where([("id", "in", [1, 5, 9])]).fixed("points", shape=(1, 3))
    assert next(iter(same.batch(3)))["points"].shape == (3, 1, 3)
    with pytest.raises(DecodeError, match=r"field 'points', .*row 0: expected shape \(1, 3\), got \(0, 3\)"):
        list(drive.select("points").fixed("points", shape=(1, 3)))
    with pytest.raises(DecodeError, match=r"expected shape \(9, 3\), got .*\. Call pad\(\) in place of fixed\(\)"):
        list(drive.select("points").fixed("points", shape=(9, 3)))
    with pytest.raises(
        PipelineError, match=r"^fixed: field 'points': expected a shape that fits \(None, 3\), got \(4,\)"
    ):
        _ = drive.fixed("points", shape=(4,)).element


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", ["0", "0.25", "0.5", "0.75", "1"]),
        ("float64", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("scaled", [0, 25, 50, 75, 100]),
    ],
)
def test_decimals_come_as_text_float_or_scaled(drive: Pipeline, form: str, expected: list) -> None:
    assert [row["price"] for row in drive.select("price").decimals(form, "price").take(5)] == expected


def test_axes_are_put_in_order_by_name(drive: Pipeline) -> None:
    turned = drive.select("image").permute("image", dims=("C", "H", "W"))
    assert turned.element.outputs[0].dims == ("C", "H", "W")
    batch = next(iter(turned.batch(40)))
    expected = np.stack([row["image"] for row in ROWS]).transpose(0, 3, 1, 2)
    assert np.array_equal(batch["image"], expected)


@pytest.mark.parametrize("shape", [(4, 5, 3), (None, None, 3), (4, 5), (None, None)])
def test_stored_images_have_the_axes_h_w_c_unless_they_declare_others(tmp_path: Path, shape: Shape) -> None:
    images = np.random.default_rng(3).integers(0, 255, (2, 4, 5, 3)[: 1 + len(shape)], np.uint8)
    field = UnischemaField("image", np.uint8, shape, CompressedImageCodec("png"))
    write_dataset(tmp_path / "set", Unischema("s", [field]), ({"image": image} for image in images))
    dims = ("C", "H", "W")[-len(shape) :]
    turned = Pipeline(str(tmp_path / "set")).permute("image", dims=dims)
    expected = np.moveaxis(images, -1, 1) if len(shape) == 3 else images
    assert [row["image"].tolist() for row in turned] == expected.tolist()
    with pytest.raises(PipelineError, match=r"expected a field with axis names, got one without. Declare them with"):
        _ = Pipeline(str(tmp_path / "set")).cast("int16", "image").permute("image", dims=dims).element
    if "C" in dims:
        with pytest.raises(
            PipelineError, match=r"expected axes \(H, W, C\), got .* Call resize\(\) before permute\(\)"
        ):
            _ = turned.resize("image", (2, 2)).element


@every_case(
    ("make", "message"),
    [
        (lambda p: p.nulls("ignore"), "expected 'error', 'drop', 'fill' or 'mask', got 'ignore'"),
        (lambda p: p.nulls("fill", "name"), "expected value= with 'fill'"),
        (lambda p: p.nulls("fill", "speed", value="x").element, "expected a fill value that float32 can hold, got 'x'"),
        (lambda p: p.nulls("fill", "id", value=float("nan")).element, "field 'id': expected a fill value that int64 can hold, got nan"),
        (lambda p: p.nulls("fill", "id", value=float("inf")).element, "field 'id': expected a fill value that int64 can hold, got inf"),
        (lambda p: p.nulls("fill", "id", value=0.5).element, "field 'id': expected a fill value that int64 can hold, got 0.5"),
        (lambda p: p.nulls("fill", "speed", value=[0.0, 1.0]).element, r"field 'speed': expected one fill value, got shape \(2,\)"),
        (lambda p: p.nulls("fill", "speed", value=1e300).element, r"field 'speed': expected a fill value that float32 can hold, got 1e\+300"),
        (lambda p: p.nulls("fill", "image", value=[1, 2, 3]).element, r"field 'image': .* values of shape \(4, 5, 3\), got shape \(3,\)"),
        (lambda p: p.pad("points", shape=(5, 3), value=[1, 2]).element, r"field 'points': expected one fill value, got shape \(2,\)"),
        (lambda p: p.decimals("float64", "id").element, "expected a decimal field"),
        (lambda p: p.permute("image", dims=("H", "W")).element, "expected dims= to be a permutation of its axis names"),
        (lambda p: p.pad("points", shape=(5, 4)).element, "expected a shape that fits"),
        (lambda p: p.pad("points").element, "expected shape=, because rows are not batched"),
        (lambda p: p.nulls("fill", "speed", value=0.0).where(pc.field("speed") > 1), "it reads the stored values of 'speed', which that call changes"),
    ],
)  # fmt: skip
def test_invalid_input_is_refused_where_it_is_written(url: str, make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make(Pipeline(url))
    with pytest.raises(FieldNotFoundError, match="field 'nope'"):
        _ = Pipeline(url).pad("nope").element


def test_a_padded_batch_keeps_no_others_in_memory() -> None:
    lengths = np.array([30_000, 20_000, 40_000, 10])
    column = Ragged(lengths[:, None], np.arange(lengths.sum()), (4,))
    step = PadStep(
        number=0,
        shape=(None,),
        value=0,
        lengths=True,
        axes=(0,),
        field=OutputField(path=("x",), kind="dense", dtype=np.dtype(np.int64), shape=(None,)),
    )
    made = pad_batches(step, column, np.array([0, 2, 3, 4]))
    assert made is not None
    owners = set()
    for batch in made[0]:
        assert isinstance(batch, Dense)
        owner: Any = batch.values
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        owners.add(id(owner))
    assert len(owners) == 3
    assert [batch.values.shape for batch in made[0]] == [(2, 30_000), (1, 40_000), (1, 10)]
