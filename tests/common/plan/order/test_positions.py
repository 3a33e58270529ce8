"""Requesting several batches at once returns the same batches as one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec
from parquetry.common.plan.order.positions import (
    Batches,
    BatchView,
    Epoch,
    RepeatView,
    RowView,
    ShardView,
    Slice,
    Strided,
)

pytestmark = pytest.mark.versions


@given(data=st.data())
def test_a_run_of_batches_is_its_batches_one_after_the_other(data: st.DataObject) -> None:
    rows: RowView = Epoch(data.draw(st.integers(0, 60)), 1, "none")
    for _ in range(data.draw(st.integers(0, 2))):
        rows = data.draw(
            st.sampled_from(
                [Slice(rows, 3, None), Slice(rows, 0, 41), RepeatView(rows, 2), ShardView(rows, 3, 1, "pad")]
            )
        )
    size = data.draw(st.integers(1, 7))
    view: BatchView = Batches(rows, size, data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(0, 3))):
        view = data.draw(
            st.sampled_from(
                [
                    Slice(view, 2, None),
                    Slice(view, 0, 5),
                    RepeatView(view, 3),
                    RepeatView(view, None),
                    Strided(view, 1, 2),
                ]
            )
        )
    length = 40 if view.length is None else view.length
    number = 0
    while number < length:
        run = view.run(number)
        assert run >= 1
        count = min(run, data.draw(st.integers(1, 6)))
        assert view.length is None or number + count <= length
        passes, index = view.rows(number, count)
        single = [view.rows(each) for each in range(number, number + count)]
        assert passes.tolist() == np.concatenate([each[0] for each in single]).tolist()
        assert index.tolist() == np.concatenate([each[1] for each in single]).tolist()
        assert count == 1 or len(index) == count * size
        number += count


@pytest.mark.parametrize("items", [0, 1, 5, 12])
@pytest.mark.parametrize("streams", [1, 3])
def test_positions_are_located_in_their_stream_and_wrap_round_in_padding(items: int, streams: int) -> None:
    order = EpochOrder(np.array([0, items]), OrderSpec(streams=streams), 0)
    for index in (np.arange(items), np.arange(items + 4), np.zeros(0, np.int64)):
        stream, position = order.locate(index)
        for each, found, place in zip(index.tolist(), stream.tolist(), position.tolist(), strict=True):
            own = each % streams % max(items, 1) if items < streams else each % streams
            assert found == own
            assert place == each // streams % max(order.stream_items(own), 1)
