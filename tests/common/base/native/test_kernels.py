"""Every kernel: what the compiled core gives is what numpy, Arrow or Python gives for the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from processes import in_own_process

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.native import parquet
from parquetry.common.base.native.jpeg import Parts
from parquetry.common.base.native.kernels import KERNELS
from parquetry.common.base.native.library import is_compiled
from parquetry.common.base.native.pixels import FILTERS

pytestmark = pytest.mark.versions

Draw = Callable[..., Any]
Run = Callable[[Callable[..., Any]], Any]
"""Calls one of the two functions of a kernel with what was drawn, and returns all that it gave or wrote."""

DTYPES = ["?", "i1", "<i2", ">i2", "f2", "f4", "i8", "c8", "c16", "M8[ns]", "S3", "S0", "V7"]
INNER = [(), (), (1,), (3,), (2, 5), (40,), (0,), (2, 0)]
CASES: dict[str, Callable[[Draw], Run]] = {}
"""For each kernel, what draws its inputs."""


def case(draws: Callable[[Draw], Run]) -> Callable[[Draw], Run]:
    CASES[draws.__name__] = draws
    return draws


@pytest.mark.parametrize("name", KERNELS)
@examples(100)
@given(data=st.data())
def test_both_functions_give_the_same(name: str, data: st.DataObject) -> None:
    kernel, run = KERNELS[name], CASES[name](data.draw)
    assert run(kernel.compiled) == run(kernel.other)


def noise(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 99)))


def filled(draw: Draw, rows: int, dtype: np.dtype, inner: tuple[int, ...]) -> np.ndarray:
    """Draws an array of random bytes with any layout."""
    size = rows * int(np.prod(inner, dtype=int)) * dtype.itemsize
    raw = noise(draw).integers(0, 256, size, dtype=np.uint8)
    raw &= 1 if dtype == np.bool_ else 255
    whole = np.ndarray((rows, *inner), dtype, raw.tobytes()).copy() if size else np.zeros((rows, *inner), dtype)
    layout = draw(st.sampled_from(["plain", "every third", "backwards", "columns first", "unaligned", "read-only"]))
    if layout == "every third":
        wide = np.zeros((rows * 3, *inner), dtype)
        wide[::3] = whole
        return wide[::3]
    if layout == "backwards":
        return whole[::-1].copy()[::-1]
    if layout == "columns first":
        return np.asfortranarray(whole)
    if layout == "unaligned" and size:
        shifted = np.zeros(whole.nbytes + 1, np.uint8)[1:].view(dtype).reshape(whole.shape)
        shifted[...] = whole
        return shifted
    whole.flags.writeable = layout != "read-only"
    return whole


@case
def gather(draw: Draw) -> Run:
    length = draw(st.integers(0, 30))
    kinds = draw(st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(INNER)), min_size=1, max_size=6))
    sources = [filled(draw, length, np.dtype(dtype), inner) for dtype, inner in kinds]
    if draw(st.booleans()):
        sources.append(np.arange(length).astype(object))
    rows = np.array(draw(st.lists(st.integers(0, length - 1), max_size=40)) if length else [], np.int64)
    rows, places, end = rows.astype(draw(st.sampled_from([np.int64, np.int32]))), None, len(rows)
    if draw(st.booleans()):
        end += draw(st.integers(0, 5))
        places = np.array(draw(st.permutations(range(end)))[: len(rows)], np.int64)

    def run(function: Callable[..., Any]) -> list[Any]:
        targets = [np.zeros((end, *each.shape[1:]), each.dtype) for each in sources]
        function(sources, rows, targets, places)
        return [each.tolist() if each.dtype == object else each.tobytes() for each in targets]

    return run


@case
def gather_runs(draw: Draw) -> Run:
    items, before = draw(st.lists(st.binary(max_size=40), max_size=12)), draw(st.integers(0, 20))
    rows = np.array(draw(st.lists(st.integers(0, len(items) - 1), max_size=30)) if items else [], np.int64)
    offsets = np.cumsum([before, *map(len, items)])
    data = np.frombuffer(bytes(before) + b"".join(items), np.uint8)
    return lambda function: [(each.tolist(), str(each.dtype)) for each in function(offsets, data, rows)]


@case
def copy_pieces(draw: Draw) -> Run:
    values = np.arange(draw(st.integers(0, 200))).astype(draw(st.sampled_from(["i1", "<u2", ">i4", "f8", "c16"])))
    pieces, end = [], 0
    for length in draw(st.lists(st.integers(0, len(values)), max_size=6)):
        place = end + draw(st.integers(0, 3))
        pieces.append((draw(st.integers(0, len(values) - length)), length, place))
        end = place + length
    begins, counts, places = np.array(draw(st.permutations(pieces)), np.int64).reshape(-1, 3).T
    if draw(st.booleans()):
        values = np.repeat(values, 2)[::2]

    def run(function: Callable[..., Any]) -> bytes:
        out = np.zeros(end, values.dtype)
        function(values, begins, counts, out, places)
        return out.tobytes()

    return run


@case
def pad_runs(draw: Draw) -> Run:
    batches = draw(st.lists(st.lists(st.lists(st.integers(0, 100), max_size=9), max_size=8), min_size=1, max_size=4))
    dtype = draw(st.sampled_from(["i1", "<u2", "f2", ">i4", "f4", "i8", "f8", "c16"]))
    more, items = draw(st.integers(0, 3)), [item for batch in batches for item in batch]
    shapes = [(len(batch), max(map(len, batch), default=0) + more) for batch in batches]
    ends, values = np.cumsum([0, *map(len, items)]), np.array([each for item in items for each in item], dtype)

    def run(function: Callable[..., Any]) -> list[bytes]:
        outs = [np.zeros(shape, dtype) for shape in shapes]
        function(ends, values, 7, outs)
        return [out.tobytes() for out in outs]

    return run


@case
def copy_value(draw: Draw) -> Run:
    size = draw(st.integers(0, 5_000) | st.integers(60_000, 200_000))
    begin, rows = draw(st.integers(0, 130)), draw(st.lists(st.integers(0, 4), max_size=5, unique=True))
    dtype, other = (np.dtype(draw(st.sampled_from(["u1", "<f4", ">i8", "?", "O"]))) for _ in range(2))
    value = noise(draw).integers(0, 2, begin + size).astype(dtype)[begin :: draw(st.sampled_from([1, 1, 2]))]
    same, apart = draw(st.booleans()), draw(st.sampled_from([1, 1, 2]))

    def run(function: Callable[..., Any]) -> Any:
        memory = np.full(begin + 5 * len(value) * apart + 150, 77).astype(dtype if same else other)
        out = memory[begin : begin + 5 * len(value) * apart].reshape(5, -1)[:, : apart * len(value) : apart]
        function(value, out, rows)
        return memory.tolist() if memory.dtype == object else memory.tobytes()

    return run


@case
def crc32(draw: Draw) -> Run:
    data = noise(draw).bytes(draw(st.integers(0, 300) | st.sampled_from([4096, 70_001])))
    begin, before = draw(st.integers(0, 17)), draw(st.integers(0, (1 << 32) - 1))
    return lambda function: (function(data), function(memoryview(data)[begin:], before))


@case
def word_order(draw: Draw) -> Run:
    if draw(st.booleans()):
        count = draw(st.integers(0, 3_000) | st.sampled_from([65_535, 65_536, 65_537, 262_145, 1 << 20]))
        words = noise(draw).integers(0, 1 << 64, count, np.uint64)[:: draw(st.sampled_from([1, 1, 3]))]
    else:
        near = st.integers(0, 7) | st.integers((1 << 64) - 8, (1 << 64) - 1) | st.integers(0, (1 << 64) - 1)
        words = np.array(draw(st.lists(near, max_size=200)) * draw(st.integers(1, 3)), np.uint64)

    def run(function: Callable[..., Any]) -> Any:
        order = function(words)
        assert order is None or order.dtype == np.int64
        return (np.argsort(words, kind="stable") if order is None else order).tolist()

    return run


def picture(draw: Draw, dtypes: list[str]) -> np.ndarray:
    """Draws an image ``[H, W, C]`` with any layout."""
    height, width, channels = draw(st.integers(1, 20)), draw(st.integers(1, 70)), draw(st.sampled_from([1, 2, 3, 4]))
    dtype, apart = draw(st.sampled_from(dtypes)), draw(st.sampled_from([1, 1, 2]))
    image = noise(draw).integers(0, 256, (height, width * apart + 3, channels)).astype(dtype)
    image = image[:, 1 : width * apart + 1 : apart] if draw(st.booleans()) else image[:, :width].copy()
    if draw(st.booleans()):
        image = image[::-1]
    if draw(st.integers(0, 3)) == 0:
        image = image.transpose(2, 0, 1).copy().transpose(1, 2, 0)
    return image


def made_image(draw: Draw, image: np.ndarray, height: int, width: int) -> Callable[[Callable[[np.ndarray], None]], Any]:
    """Draws a layout. Returns a function that has an image written in it, and returns the memory around it."""
    channels, first, between = image.shape[2], draw(st.booleans()), draw(st.sampled_from([1, 1, 2]))
    shape = (channels, height, width * between) if first else (height, width * between, channels)

    def run(write: Callable[[np.ndarray], None]) -> bytes:
        memory = np.full(shape, 7, image.dtype)
        write((memory.transpose(1, 2, 0) if first else memory)[:, ::between])
        return memory.tobytes()

    return run


@case
def resize(draw: Draw) -> Run:
    image = picture(draw, ["u1", "u1", "u1", "u2", "f4"])
    if draw(st.integers(0, 4)) == 0:
        image = np.tile(image, (1, 60, 1))  # a pixel of the result has many small weights
    if image.dtype == np.float32 and draw(st.booleans()):
        image[0, 0] = np.nan
    number = draw(st.sampled_from(sorted(set(FILTERS.values()))))
    into = made_image(draw, image, draw(st.integers(1, 90)), draw(st.integers(1, 90)))
    return lambda function: into(lambda out: function(image, out, number))


@case
def copy_image(draw: Draw) -> Run:
    image, flips = picture(draw, ["u1", "u1", "u2", "f8"]), draw(st.integers(0, 3))
    into = made_image(draw, image, *image.shape[:2])
    return lambda function: into(lambda out: function(image, out, flips))


@case
def normalize(draw: Draw) -> Run:
    image = picture(draw, ["u1", "u1", "u1", "u2", "f8"])
    height, width, channels = image.shape
    factors = [noise(draw).normal(0, draw(st.sampled_from([0.01, 1, 1e30])), channels).astype("f4") for _ in range(2)]
    first, between = draw(st.booleans()), draw(st.sampled_from([1, 1, 2]))

    def run(function: Callable[..., Any]) -> bytes:
        memory = np.full((channels, height, width * between) if first else (height, width * between, channels), 7, "f4")
        function(image, (memory.transpose(1, 2, 0) if first else memory)[:, ::between], *factors)
        return memory.tobytes()

    return run


@case
def objects(draw: Draw) -> Run:
    values, before = draw(st.lists(st.none() | st.text(max_size=9), max_size=30)), draw(st.binary(max_size=3))
    stored, text = [(value or "").encode() for value in values], draw(st.booleans())
    offsets, data = np.cumsum([len(before), *map(len, stored)]), np.frombuffer(before + b"".join(stored), np.uint8)
    valid = np.array([value is not None for value in values], np.bool_) if draw(st.booleans()) else None
    return lambda function: function(offsets, data, valid, text=text)


@case
def longest_value(draw: Draw) -> Run:
    data = b"".join(len(value).to_bytes(4, "little") + value for value in draw(st.lists(st.binary(max_size=300))))
    data += draw(st.sampled_from([b"", b"", b"\1", b"\xff\xff\xff\xffabc"]))

    def run(function: Callable[..., Any]) -> Any:
        try:
            return function(data)
        except ValueError as error:
            return str(error)

    return run


# The others are only compiled, and are compared with Arrow, zlib and simplejpeg in tests of their own. What they give here,
# for bytes that they do not know, is what their callers get without the core.


@case
def passes(draw: Draw) -> Run:
    footer, columns = draw(st.binary(max_size=200)), draw(st.integers(1, 5))
    return lambda function: function(footer, columns, 1000)


@case
def footer_fields(draw: Draw) -> Run:
    footer = b"\x1f" + draw(st.binary(max_size=200))  # a field of a type that there is not
    return lambda function: function(footer)


@case
def chunk_facts(draw: Draw) -> Run:
    content, columns = draw(st.binary(max_size=200)), draw(st.integers(1, 5))
    return lambda function: function(content, columns)


@case
def cut_row_groups(draw: Draw) -> Run:
    content, groups = draw(st.binary(max_size=200)), draw(st.integers(1, 5))
    return lambda function: function(content, 0, groups, b"\1\0", bare=True)


@case
def read_cells(draw: Draw) -> Run:
    arguments = ("/nowhere", draw(st.integers(0, 9)), draw(st.integers(1, 99)), draw(st.integers(1, 9)))
    return lambda function: function(*arguments, lambda n: np.empty(n, "u1"), width=None, nullable=False, verify="auto")


@case
def locate_cells(draw: Draw) -> Run:
    arguments = (-1, draw(st.integers(0, 9)), draw(st.integers(1, 99)), draw(st.integers(1, 9)))
    return lambda function: function(*arguments, width=None, nullable=False, verify="auto")


@case
def read_pages(draw: Draw) -> Run:
    begins = draw(st.lists(st.integers(0, 99), max_size=4))
    pages = [parquet.WantedPage(begin, begin + 9, [(begin, memoryview(bytearray(4)))]) for begin in begins]
    return lambda function: function(-1, pages, np.empty(64, np.uint8))


@case
def decode_chunks(draw: Draw) -> Run:
    data = np.frombuffer(draw(st.binary(max_size=99)) + bytes(parquet.SLACK), np.uint8)

    def run(function: Callable[..., Any]) -> Any:
        chunks = np.zeros(1, parquet.CHUNK)
        chunks["data"], chunks["size"], chunks["found"] = data.ctypes.data, len(data) - parquet.SLACK, -1
        memory = np.empty(64, np.uint8)
        return function(chunks, 5, checked=True, page=memory, dictionary=memory), chunks["found"].tolist()

    return run


@case
def decode_part(draw: Draw) -> Run:
    data = memoryview(draw(st.binary(min_size=1, max_size=99)))
    return lambda function: function(data, (9, 9), 1, (0, 0, 4, 4), np.zeros((4, 4, 3), np.uint8))


@case
def decode_parts(draw: Draw) -> Run:
    data = np.frombuffer(draw(st.binary(min_size=1, max_size=99)), np.uint8)
    sizes, one = np.array([[9, 9]]), np.ones(1, np.int64)
    parts = Parts(one * data.ctypes.data, one * len(data), sizes, one, np.array([[0, 0, 4, 4]]), one * 0, one == 1)
    return lambda function: function(parts, np.zeros((1, 4, 4, 3), np.uint8)).tolist()


@case
def exchange_of(draw: Draw) -> Run:
    unknown = draw(st.sampled_from([int, np.ndarray]))
    return lambda function: function(unknown)


def test_a_process_without_the_core_makes_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [UnischemaField("id", np.int64), UnischemaField("x", np.float32, nullable=True)]
    fields += [UnischemaField("v", np.int16, (3,)), UnischemaField("s", str), UnischemaField("t", np.int32, (None,))]
    rows = [
        {"id": n, "x": None if n % 7 == 0 else n / 3, "v": [n, 1, -n], "s": "ab" * (n % 9), "t": list(range(n % 5))}
        for n in range(60)
    ]
    write_dataset(tmp_path, Unischema("rows", fields), rows, row_group_rows=16)
    batches = batches_of(str(tmp_path), True)
    monkeypatch.setenv("PARQUETRY_NATIVE", "0")
    assert in_own_process(batches_of, str(tmp_path), False) == batches


def batches_of(url: str, compiled: bool) -> list[str]:
    assert is_compiled() == compiled
    chains = Pipeline(url, executor="threads").shuffle(20, seed=3), Pipeline(url, executor="threads")
    weighed = chains[1].weigh(pc.field("id") + 20).shuffle(40, seed=1)
    return [repr(batch) for chain in (*chains, weighed) for batch in chain.batch(7)]
