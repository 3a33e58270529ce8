"""What `touch` reads of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.touch import rows_of


class Watched(np.ndarray):
    """An array that records what is read from it."""

    taken: list[Any]

    def __getitem__(self, key: Any) -> Any:
        self.taken.append(key)
        return np.asarray(self)[key]


def watched(*shape: int) -> Watched:
    array = np.zeros(shape).view(Watched)
    array.taken = []
    return array


def test_every_row_of_a_wide_field_is_read() -> None:
    image = watched(3, 4, 5)
    assert rows_of({"image": image}) == 3
    assert image.taken == [(slice(None), -1, -1)]


def test_a_layout_is_found_once_and_the_values_are_read_each_time() -> None:
    for _ in range(2):
        wide, flat = watched(2, 3), watched(2)
        assert rows_of({"wide": wide, "flat": flat}) == 2
        assert (wide.taken, flat.taken) == ([(slice(None), -1)], [-1])


def test_flat_fields_take_turns() -> None:
    batch = {name: watched(6) for name in "abc"}
    for _ in range(3):
        assert rows_of(batch) == 6
    assert [field.taken for field in batch.values()] == [[-1], [-1], [-1]]
