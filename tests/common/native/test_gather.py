"""Rows by number: the compiled core and numpy write the same bytes, and neither accepts an out-of-range number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.native import gather

pytestmark = pytest.mark.versions

DTYPES = ["?", "i1", "<i2", ">i2", "f2", "f4", "i8", "c8", "c16", "M8[ns]", "S3", "S0", "V7"]
INNER = [(), (), (1,), (3,), (2, 5), (40,), (0,), (2, 0)]


def filled(draw: st.DrawFn, rows: int, dtype: np.dtype, inner: tuple[int, ...]) -> np.ndarray:
    """Draws an array of random bytes with any layout."""
    size = rows * int(np.prod(inner, dtype=int)) * dtype.itemsize
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, size, dtype=np.uint8)
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
    if layout == "unaligned":
        shifted = np.zeros(whole.nbytes + 1, np.uint8)[1:].view(dtype) if dtype.itemsize else whole
        return shifted.reshape(whole.shape) if shifted.size != whole.size else assigned(shifted, whole)
    whole.flags.writeable = layout != "read-only"
    return whole


def assigned(place: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the values in that memory."""
    place = place.reshape(values.shape)
    place[...] = values
    return place


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray, np.ndarray | None, int]:
    """Draws sources of one length, row numbers, their places (or none), and the length of the targets."""
    length = draw(st.integers(0, 30))
    kinds = draw(st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(INNER)), min_size=1, max_size=6))
    sources = [filled(draw, length, np.dtype(dtype), inner) for dtype, inner in kinds]
    rows = draw(st.lists(st.integers(0, length - 1), max_size=40)) if length else []
    numbers = np.array(rows, draw(st.sampled_from([np.int64, np.int32])))
    if not draw(st.booleans()):
        return sources, numbers, None, len(rows)
    more = draw(st.integers(0, 5))
    places = np.array(draw(st.permutations(range(len(rows) + more)))[: len(rows)], np.int64)
    return sources, numbers, places, len(rows) + more


@examples(100)
@given(columns())
def test_the_core_copies_the_rows_that_numpy_copies(
    case: tuple[list[np.ndarray], np.ndarray, np.ndarray | None, int],
) -> None:
    sources, rows, places, length = case
    by_core, by_numpy = ([np.zeros((length, *each.shape[1:]), each.dtype) for each in sources] for _ in range(2))
    gather.gather(sources, rows, by_core, places)
    gather._gather_by_numpy(sources, rows, by_numpy, places)
    for source, one, other in zip(sources, by_core, by_numpy, strict=True):
        expected = np.zeros((length, *source.shape[1:]), source.dtype)
        for row, place in zip(rows, range(len(rows)) if places is None else places, strict=True):
            expected[place] = source[row]
        assert one.tobytes() == other.tobytes() == expected.tobytes()


def test_targets_may_be_parts_of_wider_arrays() -> None:
    wide = np.zeros((4, 6), np.int32)
    gather.gather([np.arange(20, dtype=np.int32).reshape(10, 2)], np.array([9, 0, 9, 3]), [wide[:, 1:3]])
    assert wide.tolist() == [[0, 18, 19, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 18, 19, 0, 0, 0], [0, 6, 7, 0, 0, 0]]


@pytest.mark.parametrize("rows", [[0, 5], [-1], [0, 2**40], [2**32], [-(2**63)]])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("way", ["core", "numpy"])
def test_rows_out_of_range_write_nothing(rows: list[int], count: int, way: str, request: pytest.FixtureRequest) -> None:
    if way == "numpy":
        request.getfixturevalue("by_numpy")
    targets = [np.zeros(len(rows)) for _ in range(count)]
    with pytest.raises(IndexError, match=rf"expected row numbers from 0 up to 5, got {rows[-1]}\."):
        gather.gather([np.ones(5)] * count, np.array(rows), targets)
    with pytest.raises(IndexError, match="expected row numbers from 0 up to"):
        gather.gather([np.ones(5)] * count, np.zeros(len(rows), np.int64), targets, np.array(rows))
    assert not np.any(targets)


@pytest.mark.parametrize("way", ["core", "by_numpy"])
def test_columns_of_other_lengths_are_an_error(way: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(way)
    sources, rows = [np.arange(5), np.arange(3)], np.array([4])
    with pytest.raises(IndexError, match=r"expected columns of one length, got \[3, 5\]"):
        gather.gather(sources, rows, [np.zeros(1, int), np.zeros(1, int)])


def test_targets_that_are_too_short_are_an_error() -> None:
    with pytest.raises(IndexError, match=r"expected targets of 3 rows, got 2\."):
        gather.gather([np.ones(5)], np.array([0, 1, 2]), [np.zeros(2)])


def test_columns_that_the_core_cannot_copy_go_through_numpy() -> None:
    objects, narrow = np.zeros(2, object), np.zeros(2, np.float32)
    gather.gather([np.array(["a", "b", "c"], object)], np.array([2, 0]), [objects])
    gather.gather([np.arange(3, dtype=np.float32)[:, None]], np.array([2, 0]), [narrow[:, None]])
    assert objects.tolist() == ["c", "a"]
    assert narrow.tolist() == [2, 0]
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match=r"read-only|not writeable|WRITEABLE"):
        gather.gather([np.ones(3)], np.array([0, 1]), [fixed])


@examples(100)
@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 20), st.data())
def test_runs_equal_a_list(items: list[bytes], before: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(items) - 1), max_size=30)) if items else []
    offsets = np.cumsum([before, *map(len, items)])
    raw = np.frombuffer(bytes(before) + b"".join(items), np.uint8)
    taken = gather.gather_runs(offsets, raw, np.array(rows, np.int64))
    assert taken is not None
    assert taken[1].tobytes() == b"".join(items[row] for row in rows)
    assert taken[0].tolist() == np.cumsum([0, *(len(items[row]) for row in rows)]).tolist()


@pytest.mark.parametrize(
    ("offsets", "row", "message"),
    [
        ([0, 2, 4], 2, "expected row numbers from 0 up to 2, got 2"),
        ([0, 2, 4], -1, "expected row numbers from 0 up to 2, got -1"),
        ([0], 0, "expected row numbers from 0 up to 0, got 0"),
        ([0, 5], 0, "expected run 0 in 4 bytes, got 0 to 5"),
        ([3, 1], 0, "expected run 0 in 4 bytes, got 3 to 1"),
        ([-1, 1], 0, "expected run 0 in 4 bytes, got -1 to 1"),
    ],
)
def test_runs_out_of_range_are_errors(offsets: list[int], row: int, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        gather.gather_runs(np.array(offsets), np.zeros(4, np.uint8), np.array([row]))


@examples(100)
@given(st.sampled_from(["i1", "<u2", ">i4", "f8", "c16"]), st.booleans(), st.data())
def test_pieces_equal_slices(dtype: str, spaced: bool, data: st.DataObject) -> None:
    values = np.arange(data.draw(st.integers(0, 200))).astype(dtype)
    pieces, end = [], 0
    for length in data.draw(st.lists(st.integers(0, len(values)), max_size=6)):
        place = end + data.draw(st.integers(0, 3))
        pieces.append((data.draw(st.integers(0, len(values) - length)), length, place))
        end = place + length
    pieces = data.draw(st.permutations(pieces))
    begins, counts, places = np.array(pieces, np.int64).reshape(-1, 3).T
    expected, by_core, by_numpy = (np.zeros(end, dtype) for _ in range(3))
    for begin, count, place in pieces:
        expected[place : place + count] = values[begin : begin + count]
    given_values = np.repeat(values, 2)[::2] if spaced else values
    gather.copy_pieces(given_values, begins, counts, by_core, places)
    gather._copy_by_numpy(given_values, begins, counts, by_numpy, places)
    assert by_core.tolist() == by_numpy.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("begin", "count", "place"),
    [(-1, 1, 0), (3, 2, 0), (0, -1, 0), (0, 1, -1), (0, 2, 1), (0, 1 << 62, 0), ((1 << 63) - 1, 1, 0), (5, 0, 0)],
)
def test_pieces_out_of_range_are_errors_and_copy_nothing(begin: int, count: int, place: int) -> None:
    pieces = [np.array([0, each]) for each in (begin, count, place)]
    pieces[1][0] = 1
    for copy in (gather.copy_pieces, gather._copy_by_numpy):
        out = np.zeros(2)
        with pytest.raises(IndexError, match=f"expected piece 1 in 4 values and 2 places, got {count} values"):
            copy(np.ones(4), *pieces[:2], out, pieces[2])
        assert not out.any()


@examples(100)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 100), max_size=9), max_size=8), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from(["i1", "<u2", "f2", ">i4", "f4", "i8", "f8", "c16"]),
)
def test_padded_rows_are_runs_and_then_the_value(batches: list[list[list[int]]], more: int, dtype: str) -> None:
    widths = [max(map(len, batch), default=0) + more for batch in batches]
    items = [item for batch in batches for item in batch]
    ends, values = np.cumsum([0, *map(len, items)]), np.array([each for item in items for each in item], dtype)
    shapes = [(len(batch), width) for batch, width in zip(batches, widths, strict=True)]
    by_core, by_numpy = ([np.zeros(shape, dtype) for shape in shapes] for _ in range(2))
    gather.pad_runs(ends, values, 7, by_core)
    gather._pad_by_numpy(ends, values, 7, by_numpy)
    for batch, width, found, same in zip(batches, widths, by_core, by_numpy, strict=True):
        assert found.tolist() == same.tolist() == [item + [7] * (width - len(item)) for item in batch]
    with pytest.raises(IndexError, match=f"expected a row for each of {len(items)} runs, got {len(items) + 1}"):
        gather.pad_runs(ends, values, 7, [*by_core, np.zeros((1, 9), dtype)])


@pytest.mark.parametrize("ends", [[0, 3], [0, -1], [2, 1], [3, 5], [-1, 1]])
def test_runs_that_do_not_fit_a_row_are_errors(ends: list[int]) -> None:
    for pad in (gather.pad_runs, gather._pad_by_numpy):
        with pytest.raises(
            IndexError, match=rf"expected run 0 in 4 items and at most 2 long, got {ends[0]} to {ends[1]}"
        ):
            pad(np.array(ends), np.zeros(4), 0, [np.zeros((1, 2))])


def test_both_ways_make_the_same_elements(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fields = [UnischemaField("id", np.int64), UnischemaField("x", np.float32, nullable=True)]
    fields += [UnischemaField("v", np.int16, (3,)), UnischemaField("s", str), UnischemaField("t", np.int32, (None,))]
    rows = [
        {"id": n, "x": None if n % 7 == 0 else n / 3, "v": [n, 1, -n], "s": "ab" * (n % 9), "t": list(range(n % 5))}
        for n in range(60)
    ]
    write_dataset(tmp_path, Unischema("rows", fields), rows, row_group_rows=16)

    def elements() -> list[bytes]:
        chains = Pipeline(tmp_path, executor="threads").shuffle(20, seed=3), Pipeline(tmp_path, executor="threads")
        weighed = chains[1].weigh(pc.field("id") + 20).shuffle(40, seed=1)
        return [repr(batch).encode() for chain in (*chains, weighed) for batch in chain.batch(7)]

    by_core = elements()
    request.getfixturevalue("by_numpy")
    assert elements() == by_core
