"""Image stages against numpy, OpenCV and Pillow; fused decoding against separate steps; random draws."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from cases import every_case
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from PIL import Image
from spies import spied

from parquetry.common import CompressedImageCodec, NdarrayCodec, Pipeline, Unischema, UnischemaField, mix, write_dataset
from parquetry.common.apps.testing import assert_resumable, assert_same
from parquetry.common.base.errors import DecodeError, PipelineError, StateError
from parquetry.common.base.native import kernels, pixels
from parquetry.common.base.native.library import is_compiled
from parquetry.common.engine.steps.images import resize_into
from parquetry.common.engine.steps.random_numbers import ItemKeys, uniform
from parquetry.common.schema.images import CompressedImageCodec as Codec

pytestmark = pytest.mark.versions

HIGH, WIDE, ROWS = 24, 30, 22
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)

SCHEMA = Unischema(
    "pictures",
    [
        UnischemaField("id", np.int64),
        UnischemaField("jpeg", np.uint8, (HIGH, WIDE, 3), CompressedImageCodec("jpeg", 90)),
        UnischemaField("mask", np.uint8, (HIGH, WIDE), CompressedImageCodec("png")),
        UnischemaField("free", np.uint8, (None, None, 3), CompressedImageCodec("png")),
        UnischemaField("depth", np.uint16, (HIGH, WIDE, 1), CompressedImageCodec("png")),
        UnischemaField("tensor", np.float32, (HIGH, WIDE, 2)),
        UnischemaField("places", np.int32, (HIGH, WIDE), NdarrayCodec()),
        UnischemaField("hidden", np.uint8, (HIGH, WIDE, 3), CompressedImageCodec("png"), nullable=True),
    ],
)
PLACES = np.arange(HIGH * WIDE, dtype=np.int32).reshape(HIGH, WIDE)


def picture(seed: int, *shape: int) -> np.ndarray:
    """Returns a smooth picture, so JPEG preserves most of it."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (3, 4, *shape[2:]), dtype=np.uint8)
    return cv2.resize(coarse, shape[1::-1], interpolation=cv2.INTER_CUBIC).reshape(shape)


def row(number: int) -> dict[str, Any]:
    """Returns one row of the dataset."""
    return {
        "id": number,
        "jpeg": picture(number, HIGH, WIDE, 3),
        "mask": np.full((HIGH, WIDE), number, np.uint8),
        "free": picture(number, 20 + number % 5, 34 - number % 7, 3),
        "depth": (PLACES[..., None] * 7 + number).astype(np.uint16),
        "tensor": np.random.default_rng(number).random((HIGH, WIDE, 2), dtype=np.float32),
        "places": PLACES,
        "hidden": None if number % 3 == 0 else picture(number, HIGH, WIDE, 3),
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pictures") / "data"
    write_dataset(directory, SCHEMA, map(row, range(ROWS)), row_group_rows=5)
    return directory


def rows_of(pipeline: Pipeline) -> dict[int, dict[str, Any]]:
    """Returns unbatched rows by id."""
    return {int(each["id"]): each for each in pipeline}


def values(pipeline: Pipeline, name: str) -> list[np.ndarray]:
    return [np.asarray(each[name]) for each in pipeline]


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes an image without the compiled core."""
    out = np.empty((*size, *image.shape[2:]), image.dtype)
    pixels.resize_by_numpy(image, out, pixels.FILTERS["bilinear", True])
    return out


def same(batch: Any) -> Any:
    """A user function that changes nothing, but keeps steps from being fused into decoding."""
    return batch


# --- the fused path against separate steps ---

Verb = Callable[[Pipeline, str], Pipeline]
SMOOTH = st.sampled_from(["nearest", "bilinear", "bicubic"])


@st.composite
def chains(draw: Any) -> list[Verb]:
    """Verbs that fit images of at least 20 x 28 pixels."""
    kind = draw(SMOOTH)
    size = draw(st.tuples(st.integers(8, 40), st.integers(8, 40)))
    part = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    first: list[Verb] = [
        lambda p, name: p.resize(name, size, interpolation=kind),
        lambda p, name: p.resize(name, draw_shorter, interpolation=kind),
        lambda p, name: p.random_resized_crop(name, size, seed=5, interpolation=kind),
        lambda p, name: p.random_crop(name, (20, 25), seed=6),
        lambda p, name: p.center_crop(name, (18, 28)),
    ]
    draw_shorter = draw(st.integers(8, 30))
    later: list[Verb] = [
        lambda p, name: p.random_flip(name, seed=1),
        lambda p, name: p.random_flip(name, "vertical", 0.7, seed=2),
        lambda p, name: p.center_crop(name, part),
        lambda p, name: p.random_crop(name, part, seed=3),
        lambda p, name: p.resize(name, size, interpolation=kind),
    ]
    last: list[Verb] = [
        lambda p, name: p.normalize(name, 0.5, 0.25),
        lambda p, name: p.normalize(name, 0.5, 0.25, "float16"),
        lambda p, name: p.normalize(name).permute(name, dims=("C", "H", "W")),
        lambda p, name: p.normalize(name, dtype="float16").permute(name, dims=("C", "H", "W")),
        lambda p, name: p.permute(name, dims=("C", "H", "W")),
        lambda p, name: p,
    ]
    ends = [draw(st.sampled_from(last))] if draw(st.booleans()) else []
    return [draw(st.sampled_from(first)), *draw(st.lists(st.sampled_from(later), max_size=3)), *ends]


@pytest.mark.slow
@examples(30)
@given(chain=chains(), name=st.sampled_from(["jpeg", "free", "tensor", "depth"]), batched=st.booleans())
def test_a_folded_chain_gives_what_its_steps_give_one_after_the_other(
    url: Path, chain: list[Verb], name: str, batched: bool
) -> None:
    plain = folded = Pipeline(url, ["id", name], executor="threads", workers=2).shuffle(8, seed=4)
    for verb in chain:
        folded = verb(folded, name)
        plain = verb(plain.transform(same, batched=True), name)
    if batched:
        folded, plain = folded.batch(4), plain.batch(4)
    assert not any(hasattr(step, "ops") for step in folded.plan().program.item_steps)
    assert folded.element.outputs == plain.element.outputs
    assert_same(list(folded), list(plain))


def test_steps_that_cannot_be_folded_give_the_same(url: Path) -> None:
    first = values(Pipeline(url, ["jpeg"]).resize("jpeg", (10, 12)), "jpeg")
    halved = Pipeline(url, ["jpeg"]).transform(lambda row: {"jpeg": row["jpeg"] // 2}).resize("jpeg", (10, 12))
    decoded = values(Pipeline(url, ["jpeg"]), "jpeg")
    wanted = [resized(image // 2, (10, 12)) for image in decoded]
    assert_same(values(halved, "jpeg"), wanted)
    assert not np.array_equal(first[0], wanted[0])


# --- each operation against other libraries ---


SIZES = [(9, 11), (48, 60), (30, 17), (24, 30)]


def pillows(image: np.ndarray, size: tuple[int, int], resampling: Image.Resampling) -> np.ndarray:
    """Returns what Pillow makes of each channel, in float32."""
    channels = [image] if image.ndim == 2 else list(np.moveaxis(image, 2, 0))
    if image.dtype == np.uint8:  # it rounds after each of two passes
        made = [Image.fromarray(np.ascontiguousarray(each)).resize(size[::-1], resampling) for each in channels]
    else:
        made = [Image.fromarray(each.astype(np.float32)).resize(size[::-1], resampling) for each in channels]
    return np.stack([np.asarray(each, np.float32) for each in made], 2).reshape(*size, *image.shape[2:])


@every_case("name", ["jpeg", "mask", "depth", "tensor", "free", "hidden"])
@every_case("size", SIZES)
@every_case("interpolation", ["bilinear", "bicubic"])
def test_images_are_resized_as_by_pillow(url: Path, name: str, size: tuple[int, int], interpolation: str) -> None:
    pipeline = Pipeline(url, [name]).nulls("drop")
    resampling = Image.Resampling[interpolation.upper()]
    made = values(pipeline.resize(name, size, interpolation=interpolation), name)
    for image, resized in zip(values(pipeline, name), made, strict=True):
        expected = pillows(image, size, resampling)
        if image.dtype.kind == "u":
            expected = np.clip(expected, 0, np.iinfo(image.dtype).max)
        assert resized.dtype == image.dtype
        assert np.abs(resized - expected).max() <= (1e-5 if image.dtype == np.float32 else 1)


@every_case("name", ["jpeg", "mask", "free"])
@every_case("size", SIZES)
@every_case(("interpolation", "flag"), [("bilinear", cv2.INTER_LINEAR), ("bicubic", cv2.INTER_CUBIC)])
def test_without_antialiasing_images_are_resized_as_by_opencv(
    url: Path, name: str, size: tuple[int, int], interpolation: str, flag: int
) -> None:
    made = values(Pipeline(url, [name]).resize(name, size, interpolation=interpolation, antialias=False), name)
    for image, resized in zip(values(Pipeline(url, [name]), name), made, strict=True):
        expected = cv2.resize(image, size[::-1], interpolation=flag).reshape(resized.shape)
        assert np.abs(resized.astype(int) - expected).max() <= 1


@every_case("width", [3000, 40_000])
@every_case("channels", [1, 3])
def test_pixels_of_a_far_smaller_image_weigh_as_they_should(width: int, channels: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, width, channels), np.uint8)
    for interpolation in ("bilinear", "bicubic", "area"):
        made = np.empty((3, 4, channels), np.uint8)
        kernels.resize(image, made, pixels.FILTERS[interpolation, True])
        if interpolation == "area":
            expected = cv2.resize(image, (4, 3), interpolation=cv2.INTER_AREA).reshape(made.shape).astype(int)
        else:
            expected = pillows(image, (3, 4), Image.Resampling[interpolation.upper()])
        assert np.abs(made - expected).max() <= 1


@pytest.mark.skipif(not is_compiled(), reason="needs the compiled core")
@every_case(
    ("dtype", "shape"), [(np.uint8, (20, 30)), (np.uint8, (20, 30, 3)), (np.uint16, (20, 30)), (np.float32, (9, 9, 2))]
)
def test_the_compiled_core_resizes(dtype: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "resize_by_numpy", lambda *_: pytest.fail("numpy resized"))
    out = np.zeros((5, 6, *shape[2:]), dtype)
    resize_into(np.ones(shape, dtype), out, "bilinear")
    assert (out == 1).all()


@every_case("name", ["mask", "free", "depth"])
@every_case("size", [(9, 11), (12, 15), (20, 20)])
def test_area_averages_what_a_pixel_covers(url: Path, name: str, size: tuple[int, int]) -> None:
    made = values(Pipeline(url, [name]).resize(name, size, interpolation="area"), name)
    for image, resized in zip(values(Pipeline(url, [name]), name), made, strict=True):
        expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA).reshape(resized.shape)
        assert np.abs(resized.astype(int) - expected).max() <= 1


def test_a_side_that_grows_is_bilinear_with_area(url: Path) -> None:
    pipeline = Pipeline(url, ["mask", "free"])
    for size in [(48, 60), (48, 40)]:
        area = list(pipeline.resize("free", size, interpolation="area"))
        assert_same(area, list(pipeline.resize("free", size)))


def test_an_even_area_stays_even(url: Path) -> None:
    for interpolation in ("bilinear", "bicubic", "area"):
        for antialias in (True, False):
            pipeline = Pipeline(url, ["mask"])
            resized = pipeline.resize("mask", (7, 100), interpolation=interpolation, antialias=antialias)
            assert [np.unique(each).tolist() for each in values(resized, "mask")] == [[n] for n in range(ROWS)]


def test_antialias_is_a_bool(url: Path) -> None:
    for verb in ("resize", "random_resized_crop"):
        with pytest.raises(PipelineError, match=f"{verb}: expected antialias=True or False, got 'yes'"):
            getattr(Pipeline(url, ["free"]), verb)("free", (4, 4), antialias="yes")


@pytest.mark.parametrize("size", [(9, 11), (48, 60), (7, 31)])
def test_nearest_takes_the_pixel_under_each_center(url: Path, size: tuple[int, int]) -> None:
    made = values(Pipeline(url, ["free"]).resize("free", size, interpolation="nearest"), "free")
    for image, found in zip(values(Pipeline(url, ["free"]), "free"), made, strict=True):
        rows, columns = (
            [math.floor((Fraction(place) + Fraction(1, 2)) * old / new) for place in range(new)]
            for old, new in zip(image.shape, size, strict=False)
        )
        assert np.array_equal(found, image[rows][:, columns])
        pillow = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.NEAREST))
        assert (found == pillow).mean() > 0.8  # it rounds centers between two pixels either way


def test_nearest_takes_any_dtype(url: Path) -> None:
    found = values(Pipeline(url, ["places"]).resize("places", (12, 15), interpolation="nearest"), "places")[0]
    assert found.dtype == np.int32
    assert np.array_equal(found, PLACES[1::2, 1::2])


def test_one_length_sets_the_shorter_side(url: Path) -> None:
    resized = Pipeline(url, ["free"]).resize("free", 10)
    assert resized.element.outputs[0].shape == (None, None, 3)
    for image, found in zip(values(Pipeline(url, ["free"]), "free"), values(resized, "free"), strict=True):
        assert found.shape[0] == 10
        assert found.shape[1] == 10 * image.shape[1] // image.shape[0]
    assert Pipeline(url, ["jpeg"]).resize("jpeg", 12).element.outputs[0].shape == (12, 15, 3)
    assert resized.center_crop("free", 8).element.outputs[0].shape == (8, 8, 3)


def test_the_middle_is_cut_out(url: Path) -> None:
    found = values(Pipeline(url, ["places"]).center_crop("places", (4, 6)), "places")[0]
    assert np.array_equal(found, PLACES[10:14, 12:18])


def test_a_random_part_is_any_part_and_every_one_in_turn(url: Path) -> None:
    seen = set()
    for part in values(
        Pipeline(url, ["places"]).random_crop("places", (HIGH - 1, WIDE - 1), seed=1).repeat(4), "places"
    ):
        top, left = divmod(int(part[0, 0]), WIDE)
        assert np.array_equal(part, PLACES[top : top + HIGH - 1, left : left + WIDE - 1])
        seen.add((top, left))
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_random_resized_crop_is_drawn_as_torchvision_draws_it(url: Path) -> None:
    scale, ratio = (0.2, 0.6), (0.5, 2.0)
    cut = Pipeline(url, ["free"]).random_resized_crop("free", (9, 8), scale=scale, ratio=ratio, seed=3)
    groups = cut.dataset.row_groups.rows
    row_group = np.repeat(np.arange(len(groups)), groups)
    inside = np.concatenate([np.arange(rows) for rows in groups])
    zero = np.zeros_like(row_group)
    numbers = uniform((1, 3), ItemKeys(zero, zero, row_group, inside), 22)
    for image, found, drawn in zip(values(Pipeline(url, ["free"]), "free"), values(cut, "free"), numbers, strict=True):
        high, wide = image.shape[:2]
        top = left = 0
        for trial in range(10):
            area = high * wide * (scale[0] + (scale[1] - scale[0]) * drawn[2 + 2 * trial])
            shape = math.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * drawn[3 + 2 * trial])
            w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if w <= wide and h <= high:
                top, left = int(drawn[0] * (high - h + 1)), int(drawn[1] * (wide - w + 1))
                break
        assert np.array_equal(found, resized(image[top : top + h, left : left + w], (9, 8)))


def test_parts_that_never_fit_become_the_largest_in_the_middle(url: Path) -> None:
    cut = Pipeline(url, ["places"]).random_resized_crop(
        "places", (3, 30), scale=(1, 1), ratio=(10, 10), interpolation="nearest", seed=1
    )
    assert np.array_equal(values(cut, "places")[0], PLACES[10:13, :])  # 30 wide, so 3 high


@pytest.mark.parametrize(("axis", "turned"), [("horizontal", PLACES[:, ::-1]), ("vertical", PLACES[::-1])])
def test_flips_come_as_often_as_asked(url: Path, axis: Any, turned: np.ndarray) -> None:
    pipeline = Pipeline(url, ["places"])
    assert all(
        np.array_equal(image, turned) for image in values(pipeline.random_flip("places", axis, 1.0, seed=1), "places")
    )
    assert all(
        np.array_equal(image, PLACES) for image in values(pipeline.random_flip("places", axis, 0.0, seed=1), "places")
    )
    often = values(pipeline.random_flip("places", axis, 0.25, seed=1).repeat(20), "places")
    share = np.mean([np.array_equal(image, turned) for image in often])
    assert 0.15 < share < 0.35
    assert all(np.array_equal(image, turned) or np.array_equal(image, PLACES) for image in often)


@pytest.mark.parametrize("dtype", ["float32", "float16", np.float32])
@pytest.mark.parametrize("name", ["jpeg", "depth", "tensor", "places", "free"])
def test_normalizing_is_subtracting_means_and_dividing(url: Path, name: str, dtype: Any) -> None:
    channels = {"jpeg": 3, "free": 3, "tensor": 2}.get(name, 1)
    mean, std, scale = MEAN[:channels], STD[:channels], 1 / 700
    pipeline = Pipeline(url, [name]).normalize(name, mean, std, dtype, scale=scale)
    for image, found in zip(values(Pipeline(url, [name]), name), values(pipeline, name), strict=True):
        assert found.dtype == np.dtype(dtype)
        whole = image.reshape(*image.shape[:2], channels).astype(np.float64)
        wanted = ((whole * scale - mean) / std).reshape(found.shape)
        assert np.allclose(
            found,
            wanted,
            rtol=1e-3 if found.dtype == np.float16 else 1e-5,
            atol=2e-6 if found.dtype == np.float32 else 2e-3,
        )


def test_half_precision_is_the_single_one_rounded(url: Path) -> None:
    pipeline = Pipeline(url, ["jpeg"])
    single = values(pipeline.normalize("jpeg", MEAN, STD), "jpeg")
    half = values(pipeline.normalize("jpeg", MEAN, STD, "float16"), "jpeg")
    assert_same(half, [image.astype(np.float16) for image in single])


def test_channels_may_come_first(url: Path) -> None:
    pipeline = Pipeline(url, ["jpeg"]).resize("jpeg", (10, 12))
    for stages in (
        lambda p: p,
        lambda p: p.normalize("jpeg", MEAN, STD),
        lambda p: p.normalize("jpeg", dtype="float16"),
    ):
        last = values(stages(pipeline), "jpeg")
        first = stages(pipeline).permute("jpeg", dims=("C", "H", "W"))
        assert first.element.outputs[0].shape == (3, 10, 12)
        assert_same(values(first, "jpeg"), [np.ascontiguousarray(image.transpose(2, 0, 1)) for image in last])


# --- JPEG decoded smaller ---


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large") / "data"
    image = UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", 90))
    shapes = [(301, 403), (256, 512), (190, 203)]
    write_dataset(
        directory,
        Unischema("large", [UnischemaField("id", np.int64), image]),
        ({"id": number, "image": picture(number, *shape, 3)} for number, shape in enumerate(shapes)),
    )
    return directory


def reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the factor by which each JPEG is reduced as it is decoded."""
    factors: list[int] = []
    spied(monkeypatch, kernels, "decode_parts", lambda parts, *_, **options: factors.extend(parts.factors.tolist()))
    # Without the compiled core:
    spied(monkeypatch, Codec, "decode_reduced_into", lambda codec, data, factor, out: factors.append(factor))
    return factors


@pytest.mark.parametrize("size", [(60, 70), (47, 50), (23, 24)])
def test_a_jpeg_that_only_shrinks_is_decoded_smaller_and_looks_the_same(
    large: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = reductions(monkeypatch)
    pipeline = Pipeline(large, ["image"], executor="threads")
    cut = {"scale": (0.9, 1.0), "seed": 2, "interpolation": "area"}
    for verb, tolerance in (  # out of 255, on average
        (lambda p: p.resize("image", size, interpolation="area"), 4),
        (lambda p: p.random_resized_crop("image", size, **cut), 4),
    ):
        factors.clear()
        found = values(verb(pipeline), "image")
        assert any(factor > 1 for factor in factors)
        factors.clear()
        plain = values(verb(pipeline.transform(same, batched=True)), "image")
        assert not any(factor > 1 for factor in factors)
        for mine, theirs in zip(found, plain, strict=True):
            difference = np.abs(mine.astype(int) - theirs)
            assert difference.mean() < tolerance
            assert difference.max() < 40


def test_other_interpolations_are_of_the_whole_image(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = reductions(monkeypatch)
    pipeline = Pipeline(large, ["image"], executor="threads")
    assert len(values(pipeline.resize("image", (20, 20)), "image")) == 3
    assert len(values(pipeline.center_crop("image", 180).resize("image", (20, 20), interpolation="area"), "image")) == 3
    assert set(factors) <= {1}


# --- draws ---


def augmented(pipeline: Pipeline, seed: int | None = 11) -> Pipeline:
    """Every random stage, on an image and its mask."""
    both = ["jpeg", "places"]
    cut = pipeline.select("id", *both).random_resized_crop(both, (9, 7), interpolation={"places": "nearest"}, seed=seed)
    return cut.random_flip(both, seed=seed).random_flip(both, "vertical", seed=seed).normalize("jpeg", MEAN, STD)


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3}, {"executor": "sidecar", "workers": 2}])
def test_draws_do_not_depend_on_where_the_work_is_done(url: Path, options: dict[str, Any]) -> None:
    wanted = rows_of(augmented(Pipeline(url, executor="threads").shuffle(6, seed=1)))
    assert_same(rows_of(augmented(Pipeline(url, **options).shuffle(6, seed=1))), wanted)


def test_draws_do_not_depend_on_order_batches_filters_and_ranks(url: Path) -> None:
    wanted = rows_of(augmented(Pipeline(url)))
    for pipeline in (
        augmented(Pipeline(url).shuffle(9, seed=3)),
        augmented(Pipeline(url).where([("id", ">=", 4)])),
        augmented(Pipeline(url)).shuffle(100, seed=8).take(13),
        *(augmented(Pipeline(url).shuffle(6, seed=2).shard(3, rank)) for rank in range(3)),
        *(augmented(Pipeline(url).shard(2, rank)) for rank in range(2)),
    ):
        for number, found in rows_of(pipeline).items():
            assert_same(found, wanted[number])
    for batch in augmented(Pipeline(url)).batch(5):
        for place, number in enumerate(batch["id"].tolist()):
            assert_same({name: column[place] for name, column in batch.items()}, wanted[number])


def test_each_epoch_and_each_pass_draws_anew(url: Path) -> None:
    for base in (Pipeline(url), Pipeline(url).shuffle(5, seed=1)):
        pipeline = augmented(base)
        first, second = rows_of(pipeline), rows_of(pipeline)
        assert not np.array_equal(first[3]["places"], second[3]["places"])
        passes = list(augmented(base).repeat(2))
        assert_same({int(row["id"]): row for row in passes[:ROWS]}, first)
        assert_same({int(row["id"]): row for row in passes[ROWS:]}, second)


def test_an_image_and_its_mask_are_cut_alike(url: Path) -> None:
    both = ["places", "tensor"]
    pipeline = Pipeline(url, ["places", "tensor"]).random_crop(both, (5, 6), seed=1).random_flip(both, seed=1)
    for number, found in enumerate(pipeline):
        stored = row(number)
        assert np.array_equal(found["tensor"], stored["tensor"].reshape(-1, 2)[found["places"]])


def test_calls_of_one_seed_draw_alike_and_calls_of_another_do_not(url: Path) -> None:
    pipeline = Pipeline(url, ["places", "mask", "tensor"])
    one = pipeline.random_crop("places", 5, seed=1).random_crop("tensor", 5, seed=1)
    for number, found in enumerate(one):
        assert np.array_equal(found["tensor"], row(number)["tensor"].reshape(-1, 2)[found["places"]])
    other = pipeline.random_crop("places", 5, seed=2)
    assert not all(np.array_equal(a["places"], b["places"]) for a, b in zip(one, other, strict=True))


def test_a_seed_that_nobody_gave_follows_the_shuffles(url: Path) -> None:
    first = augmented(Pipeline(url).shuffle(6, seed=1), None)
    again = augmented(Pipeline(url).shuffle(6, seed=1), None)
    assert first.stages != again.stages  # each drew a number that is unused here
    assert_same(list(first), list(again))
    other = augmented(Pipeline(url).shuffle(6, seed=2), None)
    assert not np.array_equal(rows_of(again)[3]["places"], rows_of(other)[3]["places"])
    twice = Pipeline(url, ["places"]).shuffle(6, seed=1).random_flip("places").random_flip("places")
    turned = [np.array_equal(image, PLACES) for image in values(twice.repeat(3), "places")]
    assert not all(turned)  # two calls without a seed are two draws


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_state_brings_back_the_draws_of_another_process(url: Path, shuffled: bool) -> None:
    def fresh() -> Pipeline:
        base = Pipeline(url).shuffle(6) if shuffled else Pipeline(url)
        return augmented(base, None).batch(4)

    running = iter(fresh())
    next(running)
    state = running.state_dict()
    rest = list(running)
    restored = iter(fresh())
    restored.load_state_dict(state)
    assert_same(list(restored), rest)


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_it_resumes_at_every_step(url: Path, executor: str) -> None:
    pipeline = augmented(Pipeline(url, executor=executor).shuffle(6, seed=1)).repeat(2).batch(9)
    assert_resumable(lambda: iter(pipeline))


def test_a_state_of_another_size_is_refused(url: Path) -> None:
    state = iter(Pipeline(url, ["jpeg"]).resize("jpeg", (5, 5))).state_dict()
    with pytest.raises(StateError, match="saved for a different pipeline"):
        iter(Pipeline(url, ["jpeg"]).resize("jpeg", (5, 6))).load_state_dict(state)
    iter(Pipeline(url, ["jpeg"]).resize("jpeg", (5, 6))).load_state_dict(state, strict=False)


def test_numbers_are_uniform_and_independent_of_neighbors() -> None:
    count = 4000
    zero = np.zeros(count, np.int64)
    numbers = uniform((1, 7), ItemKeys(zero, zero, np.arange(count) // 100, np.arange(count) % 100), 3)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / (3 * count) - 0.1).max() < 0.01
    for left, right in ((numbers[:, 0], numbers[:, 1]), (numbers[1:, 0], numbers[:-1, 0])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.05
    assert not np.array_equal(numbers, uniform((1, 8), ItemKeys(zero, zero, zero, np.arange(count)), 3))


# --- windows, nulls, mixes ---


def test_all_frames_of_a_window_are_cut_alike(url: Path) -> None:
    windows = Pipeline(url, ["id", "places", "jpeg"]).ngram(length=4)
    cut = windows.random_crop("places", (5, 6), seed=1)
    parts = [window["places"] for window in cut]
    assert parts[0].shape == (4, 5, 6)
    assert all(np.array_equal(part[0], frame) for part in parts for frame in part)
    assert len({int(part[0, 0, 0]) for part in parts}) > 5
    own = Pipeline(url, ["places"]).random_crop("places", (5, 6), seed=1)
    assert_same([part[0] for part in parts], values(own, "places")[: len(parts)])  # a window is named by its first row


def test_frames_that_are_cut_before_windows_are_formed_keep_their_own_draw(url: Path) -> None:
    own = values(Pipeline(url, ["places"]).random_crop("places", (5, 6), seed=1), "places")
    windows = values(Pipeline(url, ["places"]).random_crop("places", (5, 6), seed=1).ngram(length=3), "places")
    assert_same(windows, [np.stack(own[first : first + 3]) for first in range(len(windows))])


def test_windows_with_fields_for_each_offset_are_cut_alike_too(url: Path) -> None:
    windows = Pipeline(url).ngram({0: ["id", "places"], 1: ["places"]}).random_crop("places", (5, 6), seed=1)
    for window in windows:
        assert np.array_equal(window[0]["places"], window[1]["places"])


@pytest.mark.parametrize("size", [(8, 9), (150, 160)], ids=["small", "large"])  # the core copies large values
@pytest.mark.parametrize("name", ["jpeg", "free", "hidden"])
def test_frames_that_windows_share_come_out_as_single_ones(url: Path, name: str, size: tuple[int, int]) -> None:
    single = values(Pipeline(url, [name]).resize(name, size).normalize(name).nulls("mask", name), name)
    wanted = [np.stack(single[first : first + 3]) for first in range(len(single) - 2)]
    windows = Pipeline(url, [name], workers=3, executor="threads").nulls("mask", name).ngram(length=3)
    assert_same(values(windows.resize(name, size).normalize(name), name), wanted)
    batches = [batch[name] for batch in windows.resize(name, size).normalize(name).batch(4)]
    assert_same(list(np.concatenate(batches)), wanted)
    before = Pipeline(url, [name]).resize(name, size).normalize(name).nulls("mask", name).ngram(length=3)
    assert_same(values(before, name), wanted)


def test_a_missing_image_stays_missing_and_is_zero(url: Path) -> None:
    pipeline = Pipeline(url, ["id", "hidden"]).resize("hidden", (6, 7)).normalize("hidden", 0.5)
    for path in (pipeline, Pipeline(url, ["id", "hidden"]).transform(same, batched=True).resize("hidden", (6, 7))):
        assert [bool(row["hidden"] is None) for row in path] == [number % 3 == 0 for number in range(ROWS)]
    filled = pipeline.nulls("mask", "hidden").batch(ROWS)
    batch = next(iter(filled))
    assert np.array_equal(batch["hidden__valid"], np.arange(ROWS) % 3 != 0)
    assert not batch["hidden"][::3].any()


def test_a_null_that_became_an_image_without_pixels_has_a_way_out(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("x", np.uint8, (None, None, 3), CompressedImageCodec("png"), True)])
    write_dataset(tmp_path / "data", schema, [{"x": picture(0, 9, 12, 3)}, {"x": None}])
    pipeline = Pipeline(tmp_path / "data")
    with pytest.raises(DecodeError, match=r"field 'x', .*row 1: expected pixels, .* call nulls\(\) after this verb"):
        list(pipeline.nulls("mask", "x").resize("x", (3, 4)))
    assert [row["x"].shape for row in pipeline.resize("x", (3, 4)).nulls("mask", "x")] == [(3, 4, 3)] * 2
    assert [row["x"].shape for row in pipeline.resize("x", 3).nulls("mask", "x")] == [(3, 4, 3), (0, 0, 3)]


def test_sources_of_a_mix_and_the_mix_itself_draw(url: Path) -> None:
    sources = [Pipeline(url, ["id", "places"]).random_crop("places", (9, 9), seed=1) for _ in range(2)]
    mixed = mix(sources, seed=4).random_crop("places", (4, 4), seed=2)
    assert_same(list(mixed), list(mixed.with_options(executor="sidecar")))
    assert_resumable(lambda: iter(mixed.batch(4)))


def test_a_function_that_leaves_rows_out_changes_no_draw(url: Path) -> None:
    wanted = rows_of(Pipeline(url, ["id", "places"]).random_crop("places", 5, seed=1))
    odd = Pipeline(url, ["id", "places"], executor="threads").transform(
        lambda row: row if row["id"] % 2 else None, output=[], drops=True
    )
    found = rows_of(odd.random_crop("places", 5, seed=1))
    assert sorted(found) == list(range(1, ROWS, 2))
    for number, value in found.items():
        assert_same(value, wanted[number])


# --- JSON, explain ---


def test_it_goes_to_json_and_pickle_and_back(url: Path) -> None:
    pipeline = augmented(Pipeline(url), None).resize("jpeg", 4).center_crop("jpeg", 3).random_crop("jpeg", 2)
    for again in (Pipeline.from_json(pipeline.to_json()), pickle.loads(pickle.dumps(pipeline))):
        assert again == pipeline
        assert hash(again) == hash(pipeline)
        assert_same(list(again), list(pipeline.with_options(workers=2)))
    assert (
        "decode: jpeg: random_resized_crop (bilinear), random_flip, random_flip, normalize, resize"
        in pipeline.explain()
    )
    assert "float32 (2, 2, 3)" in pipeline.explain()


# --- errors ---


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda p: p.resize("id", (4, 4)), r"field 'id': expected images of shape \(H, W\)"),
        (lambda p: p.resize("jpeg", (0, 4)), r"expected size to be \(height, width\), integers >= 1"),
        (lambda p: p.resize("jpeg", "large"), "expected size to be"),
        (lambda p: p.resize("jpeg", 2.5), "expected size to be"),
        (lambda p: p.resize("jpeg", (4, 4), interpolation="lanczos"), "expected interpolation in"),
        (lambda p: p.resize("places", (4, 4)), "expected dtype uint8, uint16 or float32 for interpolation='bilinear'"),
        (lambda p: p.resize("jpeg", (4, 4), interpolation={"mask": "nearest"}), "got one for 'mask'"),
        (lambda p: p.center_crop("jpeg", 25), r"expected images of at least \(25, 25\), got \(24, 30\)"),
        (lambda p: p.random_crop("jpeg", (5, 31), seed=1), "expected images of at least"),
        (lambda p: p.random_crop("jpeg", 5, seed=1.5), "expected seed to be a 64-bit integer, got 1.5"),
        (lambda p: p.random_resized_crop("jpeg", 5, scale=(0.5, 1.5)), "expected scale="),
        (lambda p: p.random_resized_crop("jpeg", 5, ratio=(2, 1)), "expected ratio="),
        (lambda p: p.random_resized_crop("jpeg", 5, ratio=3), "expected ratio="),
        (lambda p: p.random_flip("jpeg", "diagonal"), r"expected axis to be one of \('horizontal', 'vertical'\), got"),
        (lambda p: p.random_flip("jpeg", probability=1.5), "expected probability from 0 to 1"),
        (lambda p: p.normalize("jpeg", (1, 2), 1), "expected mean to be one number, or 3 for its channels, got 2"),
        (lambda p: p.normalize("jpeg", 0, 0), "expected std other than 0"),
        (lambda p: p.normalize("jpeg", "gray"), "expected mean to be a number"),
        (lambda p: p.normalize("jpeg", dtype="int8"), r"dtype to be one of \('float32', 'float16'\), got 'int8'"),
        (lambda p: p.resize([], (4, 4)), "expected a field name"),
        (lambda p: p.resize("jpeg", (8, 8)).random_crop(["jpeg", "mask"], 4), "expected images of one size"),
        (
            lambda p: p.resize("jpeg", (8, 8)).permute("jpeg", dims=("C", "H", "W")).random_flip("jpeg"),
            "Call random_flip",
        ),
    ],
)
def test_invalid_input_is_refused_before_anything_is_read(url: Path, verb: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        verb(Pipeline(url)).element  # noqa: B018


def test_a_field_of_unknown_channels_is_refused(tmp_path: Path) -> None:
    field = UnischemaField("image", np.uint8, (None, None, None), NdarrayCodec())
    write_dataset(tmp_path / "d", Unischema("s", [field]), [{"image": np.zeros((4, 4, 3), np.uint8)}])
    with pytest.raises(PipelineError, match="expected a fixed number of channels"):
        Pipeline(tmp_path / "d").resize("image", (2, 2)).element  # noqa: B018


def test_filters_on_a_changed_field_are_refused(url: Path) -> None:
    with pytest.raises(PipelineError, match="it reads the stored values of 'mask'"):
        Pipeline(url).resize("mask", (4, 4)).where(lambda row: True, fields=["mask"])


@pytest.mark.parametrize("prepare", [lambda p: p, lambda p: p.transform(same, batched=True)])
def test_an_image_smaller_than_its_part_is_named(url: Path, prepare: Any) -> None:
    pipeline = prepare(Pipeline(url, ["free"], executor="threads")).center_crop("free", (23, 20))
    with pytest.raises(
        DecodeError, match=r"field 'free', .*row 0: expected an image of at least 23 x 20 pixels, got 20 x 34"
    ):
        list(pipeline)


@pytest.mark.parametrize("prepare", [lambda p: p, lambda p: p.transform(same, batched=True)])
def test_an_image_and_a_mask_of_another_size_are_not_cut_alike(tmp_path: Path, prepare: Any) -> None:
    shape = (None, None)
    schema = Unischema(
        "s", [UnischemaField(name, np.uint8, shape, CompressedImageCodec("png")) for name in ("image", "mask")]
    )
    rows = [{"image": np.zeros((8, 8), np.uint8), "mask": np.zeros((8, 8 - number), np.uint8)} for number in (0, 2)]
    write_dataset(tmp_path / "d", schema, rows)
    pipeline = prepare(Pipeline(tmp_path / "d", executor="threads")).random_crop(["image", "mask"], 4, seed=1)
    with pytest.raises(
        DecodeError, match=r"field 'mask', .*row 1: expected an image as large as that of field 'image', 8 x 8"
    ):
        list(pipeline.batch(2))
