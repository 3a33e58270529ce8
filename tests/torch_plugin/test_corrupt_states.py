"""A corrupt state is a `StateError` or works as a valid state: never another error, never an empty pass."""

from __future__ import annotations

from typing import Any

import pytest
from builders import Built, built_once
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from resume_cases import SIMPLE_CHAINS, corrupted, is_at_its_end
from torch.utils.data import DataLoader

from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe

built = built_once([[5, 5], [10]], names=["id", "drive", "ts", "label"])


@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe, ParquetNode])
def test_a_corrupt_state_is_refused_or_another_state(built: Built, face: Any) -> None:
    @examples(40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        pipeline = data.draw(st.sampled_from(SIMPLE_CHAINS))(built.pipeline("id"))
        corrupt = data.draw(corrupted(_state(pipeline)), "state")
        again = face.from_pipeline(pipeline)
        try:
            again.load_state_dict(corrupt)
            first = next(iter(again), None)
        except StateError:
            return
        assert first is not None or is_at_its_end(pipeline, corrupt)

    check()


@examples(10)
@given(st.data())
def test_a_loader_refuses_a_corrupt_state_or_resumes_from_it(built: Built, data: st.DataObject) -> None:
    pipeline = data.draw(st.sampled_from(SIMPLE_CHAINS))(built.pipeline("id"))
    corrupt = data.draw(corrupted(_state(pipeline)), "state")
    again = ParquetIterable.from_pipeline(pipeline)
    try:
        again.load_state_dict(corrupt)
        first = next(iter(DataLoader(again, batch_size=None, num_workers=2)), None)
    except StateError:
        return
    assert first is not None or is_at_its_end(pipeline, corrupt)


def _state(pipeline: Any) -> dict[str, Any]:
    iterator = iter(ParquetIterable.from_pipeline(pipeline))
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    return state
