"""A corrupt state is a `StateError`, or a state like another: never another error, never an empty pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.errors import StateError
from parquetry.torch_plugin import ParquetIterable, ParquetPipe

WRONG = st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.lists(st.integers(-2, 30), max_size=3)
NUMBERS = st.integers(-3, 40) | st.sampled_from([1 << 31, 1 << 63, 1 << 200, -(1 << 70)])


@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_a_corrupt_state_is_refused_or_another_state(url: str, face: Any) -> None:
    def make() -> Any:
        return face(url, ["id"]).shuffle(4, seed=1).batch(3)

    state = make().state_after(1)

    @examples(40)
    @given(st.sampled_from(sorted(state)), WRONG | NUMBERS, st.booleans())
    def check(name: str, value: Any, dropped: bool) -> None:
        corrupt = {key: part for key, part in state.items() if key != name or not dropped}
        again = make()
        try:
            again.load_state_dict(corrupt if dropped else {**corrupt, name: value})
            first = next(iter(again), None)
        except StateError:
            return
        assert first is not None or (name == "consumed" and value >= 20)

    check()
