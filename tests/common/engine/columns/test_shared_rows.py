"""Rows shared by windows: decoded once, and no thread waits for one while there are others to decode."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from processes import PATIENCE_S

from parquetry.common.engine.columns import shared_rows
from parquetry.common.engine.columns.shared_rows import Places, SharedRows

pytestmark = pytest.mark.versions


class Decoder:
    """Counts what it decodes; some rows wait at a gate."""

    def __init__(self, *gated: int) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.calls: Counter[int] = Counter()
        self._gated = gated

    def put(self, rows: SharedRows, row: int, shape: tuple[int, ...] = (3,), *, wait: bool = True) -> list[int] | None:
        """Returns the row's values, all equal to its number; ``None`` if another thread makes them."""
        out = np.zeros(shape, np.int64)

        def decode(place: np.ndarray) -> None:
            self.calls[row] += 1
            if row in self._gated:
                self.begun.set()
                assert self.gate.wait(PATIENCE_S)
            place[...] = row

        return out.reshape(-1)[:3].tolist() if rows.copy_into(row, Places(out[None], [0]), decode, wait=wait) else None


def test_others_are_decoded_while_one_is_being_made() -> None:
    rows, decoder = SharedRows(), Decoder(5)
    made: list[list[int] | None] = []
    first = threading.Thread(target=lambda: made.append(decoder.put(rows, 5)))
    first.start()
    assert decoder.begun.wait(PATIENCE_S)
    assert decoder.put(rows, 5, wait=False) is None
    assert decoder.put(rows, 6, wait=False) == [6, 6, 6]
    second = threading.Thread(target=lambda: made.append(decoder.put(rows, 5)))
    second.start()
    decoder.gate.set()
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert made == [[5, 5, 5]] * 2
    assert decoder.put(rows, 5, wait=False) == [5, 5, 5]
    assert decoder.calls == {5: 1, 6: 1}


def test_a_row_that_failed_is_made_again() -> None:
    rows = SharedRows()

    def fail(place: np.ndarray) -> None:
        raise ValueError("damaged")

    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            rows.copy_into(1, Places(np.zeros((1, 3)), [0]), fail, wait=False)
    assert Decoder().put(rows, 1) == [1, 1, 1]


def test_large_rows_of_several_sizes_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rows, "_LARGE_BYTES", 64)
    shapes = [(8,), (8,), (3, 7), (3,), (8,)]
    for _ in range(3):  # in the memory of earlier rows
        rows, decoder = SharedRows(), Decoder()
        for _ in range(2):
            for row in range(50):
                assert decoder.put(rows, row, shapes[row % 5]) == [row] * 3
        assert set(decoder.calls.values()) == {1}


def test_past_the_limit_rows_are_decoded_for_each_asker() -> None:
    rows, decoder = SharedRows(limit_bytes=24), Decoder()
    for _ in range(2):
        assert decoder.put(rows, 1) == [1, 1, 1]
        assert decoder.put(rows, 2) == [2, 2, 2]
    assert decoder.calls == {1: 1, 2: 2}


@pytest.mark.parametrize("limit_bytes", [24, 1 << 20])
def test_a_row_is_decoded_once_for_all_its_places(limit_bytes: int) -> None:
    rows, calls = SharedRows(limit_bytes), []
    for number in range(1, 4):

        def decode(place: np.ndarray, number: int = number) -> None:
            calls.append(place)
            place[...] = number

        for out in (np.zeros((5, 3)), [np.zeros(3) for _ in range(5)]):
            assert rows.copy_into(number, Places(out, list(range(number))), decode)
            assert np.array_equal(out, [[number] * 3] * number + [[0] * 3] * (5 - number))
    assert len(calls) == (5 if limit_bytes == 24 else 3)  # one row has 24 bytes
