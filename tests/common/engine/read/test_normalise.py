"""Columns become canonical: 64-bit offsets for text and bytes, in any slice of any array."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Unischema, UnischemaField
from parquetry.common.engine.read.normalise import normalise

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
    found = normalise(field, array)
    found.validate(full=True)
    assert found.type == wide
    assert found.equals(array.cast(wide))
    assert found.null_count == array.null_count


def test_text_that_is_not_utf8_is_refused() -> None:
    (field,) = Unischema("rows", [UnischemaField("value", np.str_)]).fields.values()
    broken = pa.array([b"\xff\xfe"]).view(pa.string())
    with pytest.raises(Exception, match="field 'value'"):
        normalise(field, broken)
