"""Parts of JPEG images equal those of the whole image exactly, or are left to a decoder of whole images."""

from __future__ import annotations

import io
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jpeg_trials
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from PIL import Image
from processes import PATIENCE_S, in_own_process
from spies import spied

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DecodeError
from parquetry.common.base.native import jpeg, kernels, pixels
from parquetry.common.engine.columns.coded_column import CodedColumn

COLOURS = {1: "GRAY", 3: "RGB"}
SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0", "4:1:1"]


@pytest.fixture(scope="module", autouse=True)
def usable(core: None) -> None:
    """Skips where libjpeg-turbo or its header is missing."""
    if not jpeg.decodes_parts():
        pytest.skip("no libjpeg-turbo, or no header when the core was built")


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, tuple[int, int]]:
    """Draws a JPEG file and its size."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    gray = draw(st.booleans())
    noise = np.random.default_rng(draw(st.integers(0, 9)))
    pixels = noise.integers(0, 256, (height, width) if gray else (height, width, 3), np.uint8)
    options: dict[str, Any] = {"quality": draw(st.sampled_from([30, 90])), "progressive": draw(st.booleans())}
    if not gray:
        options["subsampling"] = draw(st.sampled_from(SUBSAMPLINGS))
    if draw(st.booleans()):
        options["restart_marker_blocks"] = draw(st.integers(1, 5))
    if not gray and draw(st.integers(0, 4)) == 0:
        return bytes(simplejpeg.encode_jpeg(pixels, 80, "RGB", "440")), (height, width)  # Pillow cannot write it
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", **options)
    return stream.getvalue(), (height, width)


def whole(data: bytes, size: tuple[int, int], factor: int, channels: int) -> np.ndarray:
    """Returns the whole image, reduced."""
    high, wide = (-(-length // factor) for length in size)
    decoded = simplejpeg.decode_jpeg(data, COLOURS[channels], min_height=high, min_width=wide, min_factor=factor)
    assert decoded.shape == (high, wide, channels)
    return decoded


def span(draw: st.DrawFn, length: int) -> tuple[int, int]:
    """Draws a begin and a length inside ``length``."""
    begin = draw(st.integers(0, length - 1))
    return begin, draw(st.integers(1, length - begin))


@examples(300)
@given(st.data())
def test_a_part_is_exactly_that_of_the_whole_image(data: st.DataObject) -> None:
    file, size = data.draw(files())
    # simplejpeg reduces tiny images further than asked, because they have the same size then.
    factor = data.draw(st.sampled_from([1, 1, 2, 4, 8] if min(size) > 8 else [1]))
    channels = data.draw(st.sampled_from([1, 3]))
    image = whole(file, size, factor, channels)
    (top, high), (left, wide) = (span(data.draw, length) for length in image.shape[:2])
    out = np.full((high, wide, channels), 7, np.uint8)
    assert jpeg.decode_part(memoryview(file), size, factor, (top, left, high, wide), out)
    np.testing.assert_array_equal(out, image[top : top + high, left : left + wide])


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], jpeg.Parts, tuple[int, int, int]]:
    """Draws files, parts of them, and the height, width and channels of all finished images."""
    drawn = draw(st.lists(files(), min_size=1, max_size=4))
    boxes, reductions = [], []
    for _, size in drawn:
        factor = draw(st.sampled_from([1, 1, 1, 2, 8] if min(size) > 8 else [1]))
        (top, high), (left, wide) = (span(draw, -(-length // factor)) for length in size)
        boxes.append((top, left, high, wide))
        reductions.append(factor)
    data = [np.frombuffer(file, np.uint8) for file, _ in drawn]
    parts = jpeg.Parts(
        data=np.array([each.ctypes.data for each in data]),
        bytes=np.array([len(each) for each in data]),
        sizes=np.array([size for _, size in drawn]),
        factors=np.array(reductions),
        boxes=np.array(boxes),
        flips=np.array([draw(st.integers(0, 3)) for _ in drawn]),
        reads_all=np.array([draw(st.booleans()) for _ in drawn]),
    )
    sizes = [(high, wide) for _, _, high, wide in boxes]
    size = draw(st.one_of(st.sampled_from(sizes), st.tuples(st.integers(1, 80), st.integers(1, 80))))
    return [file for file, _ in drawn], parts, (*size, draw(st.sampled_from([1, 3])))


@pytest.mark.slow
@examples(400)
@given(st.data())
def test_parts_are_finished_as_by_numpy(data: st.DataObject) -> None:
    found, parts, (height, width, channels) = data.draw(batches())
    count = len(found)
    normalizes, planes = data.draw(st.booleans()), data.draw(st.booleans())
    dtype = np.dtype(np.float32 if normalizes else np.uint8)
    noise = np.random.default_rng(data.draw(st.integers(0, 9)))
    factors = tuple(noise.normal(0, 2, channels).astype(np.float32) for _ in range(2)) if normalizes else None
    axes = (0, 2, 3, 1) if planes else (0, 1, 2, 3)
    shape = (count + 1, channels, height, width) if planes else (count + 1, height, width, channels)
    out = np.full(shape, 7, dtype).transpose(axes)
    places = noise.permutation(count + 1)[:count]
    filter_number = data.draw(st.sampled_from(sorted(set(pixels.FILTERS.values()))))
    decoded = jpeg.decode_parts(parts, out, factors, places=places, filter_number=filter_number)
    for number, (file, place) in enumerate(zip(found, places.tolist(), strict=True)):
        top, left, high, wide = parts.boxes[number].tolist()
        assert decoded[number]
        image = whole(file, tuple(parts.sizes[number].tolist()), int(parts.factors[number]), channels)
        image = np.ascontiguousarray(image[top : top + high, left : left + wide])
        if (high, wide) != (height, width):
            from_box = image.reshape(high, wide, channels)
            image = np.empty((height, width, channels), np.uint8)
            pixels.resize_by_numpy(from_box, image, filter_number)
        image = image.reshape(height, width, channels)
        image = image[:: -1 if parts.flips[number] & jpeg.UPSIDE_DOWN else 1]
        image = image[:, :: -1 if parts.flips[number] & jpeg.MIRRORED else 1]
        if factors is not None:
            image = image.astype(np.float32) * factors[0] - factors[1]
        np.testing.assert_array_equal(out[place], image)
    unused = out[[place for place in range(count + 1) if place not in places]]
    assert (unused == 7).all()


@pytest.mark.slow
@examples(300)
@given(st.data())
def test_a_damaged_file_is_refused_wherever_the_whole_image_is(data: st.DataObject) -> None:
    file, size = data.draw(files())
    changed = bytearray(file)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.sampled_from([len(file), len(file), len(file) - 2, len(file) // 2]))]
    (top, high), (left, wide) = (span(data.draw, length) for length in size)
    out = np.zeros((high, wide, 3), np.uint8)
    decoded = jpeg.decode_part(memoryview(bytes(changed)), size, 1, (top, left, high, wide), out)
    try:
        image = whole(bytes(changed), size, 1, 3)
    except (ValueError, AssertionError):
        assert not decoded
        return
    if decoded:
        np.testing.assert_array_equal(out, image[top : top + high, left : left + wide])


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"", (4, 4)),
        (b"\xff\xd8", (4, 4)),
        (b"\xff\xd8\xff\xd9", (4, 4)),
        (b"not a JPEG at all", (4, 4)),
        (bytes(simplejpeg.encode_jpeg(np.zeros((9, 9, 3), np.uint8))), (9, 8)),  # another size than expected
    ],
)
def test_other_bytes_are_left_to_whole_decoders(data: bytes, size: tuple[int, int]) -> None:
    assert not jpeg.decode_part(memoryview(data), size, 1, (0, 0, 4, 4), np.zeros((4, 4, 3), np.uint8))


def test_a_box_outside_the_image_writes_nothing() -> None:
    data = bytes(simplejpeg.encode_jpeg(np.full((9, 9, 3), 200, np.uint8)))
    out = np.zeros((4, 4, 3), np.uint8)
    for factor, top, left in ((1, 6, 0), (1, 0, 6), (2, 2, 0), (2, 0, 2)):
        assert not jpeg.decode_part(memoryview(data), (9, 9), factor, (top, left, 4, 4), out)
    assert not out.any()


def test_cmyk_is_left_to_whole_decoders() -> None:
    stream = io.BytesIO()
    Image.new("CMYK", (20, 20), (10, 20, 30, 40)).save(stream, "JPEG")
    data = memoryview(stream.getvalue())
    assert not jpeg.decode_part(data, (20, 20), 1, (0, 0, 4, 4), np.zeros((4, 4, 3), np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of different sizes and one damaged at its end."""
    directory = tmp_path_factory.mktemp("photos") / "data"
    noise = np.random.default_rng(3)
    files = []
    for number in range(12):
        pixels = noise.integers(0, 256, (int(noise.integers(40, 90)), int(noise.integers(40, 90)), 3), np.uint8)
        files.append(bytes(simplejpeg.encode_jpeg(pixels, 85, "RGB", "420" if number % 2 else "422")))
    files[5] = files[5][: len(files[5]) * 9 // 10]
    schema = Unischema(
        "photos",
        [
            UnischemaField("id", np.int64),
            UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg")),
        ],
    )
    write_dataset(directory, schema, ({"id": number, "image": file} for number, file in enumerate(files)))
    return directory


@pytest.mark.parametrize("interpolation", ["bilinear", "area"])
def test_every_crop_is_the_same_without_the_core(
    photos: Path, interpolation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bool] = []
    decode_part = CompressedImageCodec.decode_part_into

    def counted(*arguments: Any) -> bool:
        decoded.append(decode_part(*arguments))
        return decoded[-1]

    monkeypatch.setattr(CompressedImageCodec, "decode_part_into", counted)
    rows = crops(str(photos), interpolation)
    assert any(decoded)
    assert not all(decoded)  # the damaged image
    monkeypatch.setenv("PARQUETRY_NATIVE", "0")
    assert in_own_process(crops, str(photos), interpolation) == rows
    assert {number for number, _ in rows[0]} == set(range(12)) - {5}


def crops(photos: str, interpolation: Any) -> list[list[Any]]:
    """Returns the rows of three chains that begin with a crop."""
    rows = Pipeline(photos, executor="threads", workers=2, on_error="skip").shuffle(6, seed=1).repeat(3)
    chains = [
        rows.random_resized_crop("image", (12, 10), seed=2, interpolation=interpolation).random_flip("image", seed=3),
        rows.center_crop("image", 33).resize("image", (8, 8), interpolation=interpolation),
        rows.random_crop("image", (20, 31), seed=4).normalize("image", (0.5,) * 3, (0.2,) * 3),
    ]
    return [[[int(row["id"]), row["image"].tobytes().hex()] for row in chain] for chain in chains]


def test_images_are_read_to_their_end_once_and_then_only_as_far_as_needed(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = spied(monkeypatch, kernels, "decode_parts", lambda parts, *_, **options: parts.reads_all.tolist())
    rows = Pipeline(photos, executor="threads", workers=1, on_error="skip").shuffle(12, seed=1)
    chain = rows.random_resized_crop("image", (12, 10), seed=2)
    for _ in range(2):
        read.clear()
        assert len(list(chain)) == 11  # the damaged image is missed in every pass, whatever its crop is
    assert sum(map(sum, read)) <= 2  # the damaged one alone, tried again by itself


@pytest.mark.parametrize("shape", [(40, 50, 3), (40, 50)])
def test_whole_images_are_the_same_many_at_a_time(
    tmp_path: Path, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(3)
    images = [noise.integers(0, 256, (40, 50, 3), np.uint8) for _ in range(40)]
    files: list[bytes | None] = [bytes(simplejpeg.encode_jpeg(image, 85)) for image in images]
    files[3] = None
    files[7] = bytes(files[7] or b"")[:-100]
    field = UnischemaField("image", np.uint8, shape, CompressedImageCodec("jpeg"), nullable=True)
    write_dataset(tmp_path / "data", Unischema("sized", [field]), ({"image": file} for file in files))
    chain = Pipeline(tmp_path / "data", executor="threads", workers=2, on_error="skip").shuffle(
        9, seed=1, reshuffle_each_iteration=False
    )

    def rows() -> list[bytes | None]:
        return [None if row["image"] is None else row["image"].tobytes() for row in chain]

    with monkeypatch.context() as without:
        without.setattr(CodedColumn, "_decode_jpegs", lambda *_: None)
        wanted = rows()
    decoded: list[bool] = []
    decode_parts = jpeg.decode_parts

    def noted(*arguments: Any, **options: Any) -> Any:
        found = decode_parts(*arguments, **options)
        decoded.extend(found.tolist())
        return found

    monkeypatch.setattr(kernels, "decode_parts", noted)
    assert rows() == wanted
    assert len(wanted) == 39
    assert decoded.count(True) >= 38


def test_another_version_of_a_file_is_read_to_its_end_again(tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (64, 64, 3), np.uint8)
    file = bytes(simplejpeg.encode_jpeg(pixels, 85))
    field = UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg"))

    def chain(content: bytes) -> Pipeline:
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        write_dataset(tmp_path / "data", Unischema("one", [field]), [{"image": content}])
        return Pipeline(tmp_path / "data", executor="threads", workers=1).random_crop("image", (4, 4), seed=0)

    assert len(list(chain(file))) == 1
    damaged = file[: len(file) * 9 // 10]
    for _ in range(3):
        with pytest.raises(DecodeError, match="image"):
            list(chain(damaged + bytes(len(file) - len(damaged))))


def test_several_threads_that_begin_at_once_try_the_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    all_here, is_exact = threading.Barrier(4), jpeg._is_exact

    def counted(loaded: Any) -> bool:
        tried.append(threading.current_thread().name)
        return is_exact(loaded)

    def decode() -> bool:
        all_here.wait(PATIENCE_S)
        return jpeg.decodes_parts()

    monkeypatch.setattr(jpeg, "_is_exact", counted)
    jpeg_trials.forget()
    with ThreadPoolExecutor(4) as pool:
        assert all(future.result() for future in [pool.submit(decode) for _ in range(4)])
    assert len({*tried}) == 1
