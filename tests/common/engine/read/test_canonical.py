"""Columns become canonical: 64-bit offsets for text and bytes, in any slice of any array."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Unischema, UnischemaField
from parquetry.common.base.errors import DecodeError
from parquetry.common.base.memory.arrow_views import from_stream, to_stream
from parquetry.common.engine.read.canonical import to_canonical

KINDS = {"text": (np.str_, pa.string(), pa.large_string()), "bytes": (np.bytes_, pa.binary(), pa.large_binary())}


@pytest.mark.parametrize("kind", KINDS)
@given(
    values=st.lists(st.none() | st.text("aé", max_size=3), max_size=12),
    cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_offsets_get_64_bits(kind: str, values: list[str | None], cuts: tuple[int, int]) -> None:
    dtype, narrow, wide = KINDS[kind]
    (field,) = Unischema("rows", [UnischemaField("value", dtype)]).fields.values()
    array = pa.array(values, pa.string()).cast(narrow).slice(*cuts)
    found = to_canonical(field, array)
    found.validate(full=True)
    assert found.type == wide
    assert found.equals(array.cast(wide))
    assert found.null_count == array.null_count


def test_text_that_is_not_utf8_is_refused() -> None:
    (field,) = Unischema("rows", [UnischemaField("value", np.str_)]).fields.values()
    broken = pa.array([b"\xff\xfe"]).view(pa.string())
    with pytest.raises(Exception, match="field 'value'"):
        to_canonical(field, broken)


@given(
    st.lists(
        st.none() | st.decimals(-(10**19), 10**19, places=18, allow_nan=False) | st.just(decimal.Decimal(0)), max_size=8
    ),
    st.sampled_from([3, 28]),
)
def test_decimals_are_exact_whatever_comes_with_them(values: list[decimal.Decimal | None], precision: int) -> None:
    (field,) = Unischema("rows", [UnischemaField("value", decimal.Decimal, nullable=True)]).fields.values()
    array = pa.array(values, pa.decimal128(38, 18))
    with decimal.localcontext(decimal.Context(prec=precision)):
        found = to_canonical(field, array).to_pylist()
    assert [None if text is None else decimal.Decimal(text) for text in found] == values
    assert not any("E" in text or (text.endswith("0") and "." in text) for text in found if text is not None)


@given(
    st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(2**54), 2**54), max_size=8),
    st.integers(-5, 38),
    st.booleans(),
)
def test_decimals_become_the_nearest_float(digits: list[int | None], scale: int, wide: bool) -> None:
    (field,) = Unischema("rows", [UnischemaField("value", np.float64, nullable=True)]).fields.values()
    with decimal.localcontext(decimal.Context(prec=80)):
        values = [None if n is None else decimal.Decimal(n).scaleb(-scale) for n in digits]
        kind = pa.decimal256(70, scale) if wide else pa.decimal128(38, scale)
        array = pa.array([None, *values, None], kind).slice(1, len(values))
    found = to_canonical(field, array).to_pylist()
    assert found == [None if value is None else float(value) for value in values]


def test_a_tensor_with_permuted_axes_is_refused() -> None:
    (field,) = Unischema("rows", [UnischemaField("value", np.int32, (3, 2))]).fields.values()
    turned = np.arange(12, dtype=np.int32).reshape(2, 2, 3).transpose(0, 2, 1)
    with pytest.raises(DecodeError, match="a tensor with permuted axes"):
        to_canonical(field, pa.FixedShapeTensorArray.from_numpy_ndarray(turned))


@pytest.mark.versions
def test_a_slice_of_lists_travels() -> None:
    (field,) = Unischema("rows", [UnischemaField("value", np.int64, (None,))]).fields.values()
    values = [[1, 2], [3], None, [4, 5, 6]]
    found = to_canonical(field, pa.array(values, pa.large_list(pa.int64())).slice(1))
    (received,) = from_stream(to_stream(pa.table({"value": found})))["value"].chunks
    received.validate(full=True)
    assert received.to_pylist() == found.to_pylist() == values[1:]
