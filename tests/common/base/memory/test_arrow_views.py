"""Arrow buffers as numpy arrays, compared with Arrow's own conversion, and without importing pandas."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from processes import PATIENCE_S

from parquetry.common.base.memory.arrow_views import as_arrow, as_numpy, texts_as_arrow, without_nulls
from parquetry.common.base.native.library import is_compiled
from parquetry.common.dataset.index import write_index

pytestmark = pytest.mark.versions

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
]


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """Draws numbers or booleans, some with nulls, sliced from longer arrays."""
    arrow = draw(st.sampled_from([*NUMBERS, pa.bool_()]))
    cell = st.booleans() if arrow == pa.bool_() else st.integers(0, 100)
    values = draw(st.lists(st.one_of(st.none(), cell) if draw(st.booleans()) else cell, max_size=40))
    kind = bool if arrow == pa.bool_() else arrow.to_pandas_dtype()
    array = pa.array([None if value is None else kind(value) for value in values], arrow)
    first = draw(st.integers(0, len(array)))
    return array.slice(first, draw(st.integers(0, len(array) - first)))


@given(arrays())
@examples(200)
def test_values_and_types_match_arrows_own_conversion(array: pa.Array) -> None:
    found, wanted = as_numpy(array), array.to_numpy(zero_copy_only=False)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2], pa.timestamp("us")),
        pa.array(["a", None]),
        pa.array([3, 4], pa.date32()),
        pa.chunked_array([[1], [2, None]]),
        pa.array([], pa.large_list(pa.int8())).offsets,
    ],
    ids=str,
)
def test_columns_without_a_plain_buffer_go_through_arrow(array: pa.Array) -> None:
    np.testing.assert_array_equal(as_numpy(array), array.to_numpy(zero_copy_only=False))


@pytest.mark.parametrize("chunks", [[], [[]], [[1], [2, 3]], [[4, 5]], [[], [6]]], ids=str)
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.bool_()], ids=str)
def test_chunks_are_joined(chunks: list[list[int]], kind: pa.DataType) -> None:
    column = pa.chunked_array(chunks, pa.int64()).cast(kind)
    found, wanted = as_numpy(column), column.to_numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_numbers_are_a_view_that_is_not_written_to() -> None:
    array = pa.array(np.arange(10))
    view = as_numpy(array.slice(3))
    assert view.__array_interface__["data"][0] == array.buffers()[1].address + 24
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize("numbers", [np.arange(9), np.arange(9)[::-2], np.zeros(0, np.int64), np.arange(3.0)], ids=str)
def test_row_numbers_become_what_arrow_makes_of_them(numbers: np.ndarray) -> None:
    found = as_arrow(numbers)
    found.validate(full=True)
    assert found.equals(pa.array(numbers))


@pytest.mark.parametrize("count", [0, 1, 8, 9, 20])
def test_numbers_that_are_not_valid_are_null(count: int) -> None:
    numbers, valid = np.arange(count)[::-1], np.arange(count) % 3 > 0
    found = as_arrow(numbers, valid)
    found.validate(full=True)
    assert found.equals(pa.array(numbers, mask=~valid))


@pytest.mark.parametrize("texts", [[], ["a"], [None], ["", "\u00e9", None, "bc"], ["x"] * 9], ids=str)
def test_texts_become_what_arrow_makes_of_them(texts: list[str | None]) -> None:
    found = texts_as_arrow(texts)
    found.validate(full=True)
    assert found.equals(pa.array(texts, pa.string()))


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([1, None, 3], pa.int32()), [1, 0, 3]),
        (pa.array([None, 2, None], pa.int64()).slice(1), [2, 0]),
        (pa.array([None, 0.5]), [0.0, 0.5]),
        (pa.array(["a", None, "", "bc"], pa.large_string()), ["a", "", "", "bc"]),
        (pa.array([None, b"xy"], pa.large_binary()), [b"", b"xy"]),
        (pa.array(["a"], pa.large_string()), ["a"]),
    ],
    ids=str,
)
def test_nulls_become_zero_or_nothing(array: pa.Array, wanted: list[object]) -> None:
    found = without_nulls(array)
    assert found.type == array.type
    assert found.null_count == 0
    assert found.to_pylist() == wanted


def test_pandas_is_not_imported() -> None:
    code = """if True:
        import sys
        import numpy as np
        import pyarrow as pa
        from parquetry.common.base.memory.arrow_views import as_arrow, as_numpy, without_nulls
        numbers = as_arrow(np.arange(4))
        as_numpy(numbers.take(numbers))
        as_numpy(numbers.is_valid())
        holes = pa.Array.from_buffers(pa.int64(), 4, [pa.py_buffer(b"\\5"), numbers.buffers()[1]])
        assert without_nulls(holes).to_pylist() == [0, 0, 2, 0]
        assert "pandas" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


@pytest.mark.skipif(not is_compiled(), reason="Arrow makes the texts where there is no compiled core")
def test_rows_of_most_types_are_read_and_transformed_without_pandas(tmp_path: Path) -> None:
    table = pa.table(
        {
            "number": pa.array([1, None, 3]),
            "text": ["a", "b", None],
            "texts": [["a", None], None, []],
            "price": pa.array([Decimal("1.50"), None, Decimal(7)]),
            "numbers": [[1, 2], [], None],
        }
    )
    for part in (1, 2):
        (tmp_path / f"part={part}").mkdir()
        pq.write_table(table, tmp_path / f"part={part}" / "rows.parquet")
    write_index(tmp_path)
    code = """if True:
        import sys
        from parquetry import Pipeline
        rows = Pipeline(sys.argv[1], executor="threads").nulls("mask", "number", "text", "price", "numbers")
        rows = rows.nulls("mask", "texts", elements=True)
        assert len(list(rows.transform(lambda row: row))) == len(list(rows.batch(2))) + 3 == 6
        assert "pandas" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=PATIENCE_S)
