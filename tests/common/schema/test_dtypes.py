"""Counts of time units are converted as numpy converts times, but without wrapping around."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.schema.dtypes import UNITS_NS, convert_counts, counts_too_far

pytestmark = pytest.mark.versions

LIMIT = 2**63 - 1
NAT = -(2**63)


@given(
    counts=st.lists(st.integers(NAT, LIMIT) | st.integers(-(10**6), 10**6) | st.sampled_from([-LIMIT, LIMIT, NAT])),
    kind=st.sampled_from(["datetime64", "timedelta64"]),
    units=st.tuples(st.sampled_from(list(UNITS_NS)), st.sampled_from(list(UNITS_NS))),
)
def test_counts_become_those_of_exact_arithmetic(counts: list[int], kind: str, units: tuple[str, str]) -> None:
    source, target = (f"{kind}[{unit}]" for unit in units)
    expected = [count if count == NAT else count * UNITS_NS[units[0]] // UNITS_NS[units[1]] for count in counts]
    given_counts = np.array(counts, np.int64)
    too_far = counts_too_far(given_counts, source, target)
    fits = [abs(count) <= LIMIT or count == NAT for count in expected]
    assert (len(counts) * [False] if too_far is None else too_far.tolist()) == [not fit for fit in fits]
    made = convert_counts(given_counts, source, target).tolist()
    assert [n for n, fit in zip(made, fits, strict=True) if fit] == [
        n for n, fit in zip(expected, fits, strict=True) if fit
    ]


@pytest.mark.parametrize("kind", ["datetime64", "timedelta64"])
def test_small_counts_become_those_of_numpy(kind: str) -> None:
    counts = np.arange(-1_000_003, 1_000_003, 997)
    for source in UNITS_NS:
        for target in UNITS_NS:
            types = f"{kind}[{source}]", f"{kind}[{target}]"
            if counts_too_far(counts, *types) is None:
                numpys = counts.view(types[0]).astype(types[1]).view(np.int64)
                assert np.array_equal(convert_counts(counts, *types), numpys)


def test_single_counts_are_converted() -> None:
    for count in (NAT, 5):
        made = convert_counts(np.array(count), "datetime64[s]", "datetime64[ms]")
        assert (made.shape, int(made)) == ((), count if count == NAT else 5000)
