"""Headers of ``.npy`` values: parsed as by numpy, but without numpy's reader for headers that numpy wrote."""

from __future__ import annotations

import io
from unittest.mock import Mock

import numpy as np
import pytest

from parquetry.common.schema import npy

pytestmark = pytest.mark.versions

ARRAYS = [
    np.zeros(()),
    np.zeros(3, np.float16),
    np.zeros((2, 0, 4), ">i8"),
    np.asfortranarray(np.zeros((2, 3), np.bool_)),
    np.zeros(2, "datetime64[us]"),
    np.array(["a", "bé"]),
    np.array([b"ab"]),
    np.zeros((1, 2), np.complex64),
]


def stored(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> memoryview:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return memoryview(stream.getvalue())


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_numpys_headers_are_read_without_compiling_them(
    array: np.ndarray, version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = stored(array, version)
    npy._parse.cache_clear()
    for name in ("read_array_header_1_0", "read_array_header_2_0"):
        monkeypatch.setattr(
            np.lib.format,
            name,
            Mock(side_effect=AssertionError("CPython 3.11 must not compile in several threads at once")),
        )
    found = npy.npy_array(data)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.flags.f_contiguous == array.flags.f_contiguous
    np.testing.assert_array_equal(found, array)


def test_other_headers_are_read_by_numpy() -> None:
    pairs = np.array([(1, 2.5)], [("a", "<i4"), ("b", "<f8")])
    np.testing.assert_array_equal(npy.npy_array(stored(pairs)), pairs)
    spaced = bytes(stored(np.arange(3))).replace(b"'shape': (3,), }  ", b"'shape' : (3,),  }")
    assert npy.npy_array(memoryview(spaced)).tolist() == [0, 1, 2]


def test_a_header_that_names_no_dtype_is_refused() -> None:
    damaged = bytes(stored(np.arange(3))).replace(b"'<i8'", b"'<?8'")
    with pytest.raises(ValueError, match="header with a dtype"):
        npy.npy_header(memoryview(damaged))
