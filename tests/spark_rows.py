"""Rows with every kind of field that Spark and parquetry exchange; executors also import this module."""

from __future__ import annotations

import decimal
import os
from pathlib import Path
from typing import Any

import numpy as np

from parquetry.common import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, Unischema, UnischemaField
from parquetry.common.write import staging

SCHEMA = Unischema(
    "everything",
    [
        UnischemaField("id", np.int64),
        UnischemaField("small", np.uint8),
        UnischemaField("huge", np.uint64, nullable=True),
        UnischemaField("half", np.float16),
        UnischemaField("ratio", np.float32),
        UnischemaField("flag", bool),
        UnischemaField("text", str, nullable=True),
        UnischemaField("raw", bytes),
        UnischemaField("price", decimal.Decimal),
        UnischemaField("stamp", "datetime64[ns]"),
        UnischemaField("day", "datetime64[D]"),
        UnischemaField("gap", "timedelta64[ms]"),
        UnischemaField("vector", np.float32, (3,)),
        UnischemaField("names", str, (None,), nullable=True),
        UnischemaField("grid", np.float32, (2, 3)),
        UnischemaField("points", np.float64, (None, 2), NdarrayCodec()),
        UnischemaField("mask", np.int32, (2, None), CompressedNdarrayCodec(), nullable=True),
        UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png")),
    ],
)


def die_once_while_moving(token: Path) -> None:
    """Kills this process, the first that comes here, between the moves of its dataset's files, as on a store."""

    def move_the_first(self: Any) -> None:
        self._create_directory(self.root)
        self._filesystem.move(f"{self._hidden}/{self._files[0]}", f"{self.root}/{self._files[0]}")
        os._exit(1)

    try:
        token.touch(exist_ok=False)
    except FileExistsError:
        return
    staging._take_place = lambda *_: False
    staging.Staging._move_each = move_the_first  # type: ignore[method-assign]


def make_row(i: int) -> dict[str, Any]:
    """Returns row ``i``."""
    return {
        "id": i,
        "small": (200 + i) % 256,
        "huge": None if i % 4 == 0 else 2**63 + i,
        "half": np.float16(i / 2),
        "ratio": np.float32(i / 3),
        "flag": i % 2 == 0,
        "text": None if i % 3 == 0 else f"t{i}\0é",
        "raw": b"\0\xff" * (i % 4),
        "price": decimal.Decimal(i) / 8,
        "stamp": np.datetime64("1969-12-31T23:59:59", "ns") + np.timedelta64(i * 10**6, "us"),
        "day": np.datetime64("1900-01-01") + i,
        "gap": np.timedelta64(i, "ms"),
        "vector": np.array([i, 1, 2], np.float32),
        "names": None if i % 5 == 0 else ["a", ""] * (i % 3),
        "grid": np.arange(6, dtype=np.float32).reshape(2, 3) + i,
        "points": np.full((i % 4, 2), i / 7),
        "mask": None if i % 6 == 0 else np.full((2, i % 3), i, np.int32),
        "image": np.random.default_rng(i).integers(0, 255, (4, 5, 3), np.uint8),
    }


def assert_same_rows(got: Any, wanted: Any) -> None:
    """Asserts that two iterables of row dicts hold the same values."""
    got, wanted = list(got), list(wanted)
    assert len(got) == len(wanted)
    for left, right in zip(got, wanted, strict=True):
        assert list(left) == list(right)
        for name in left:
            if left[name] is None or right[name] is None:
                assert left[name] is right[name], name
            else:
                np.testing.assert_array_equal(np.asarray(left[name]), np.asarray(right[name]), err_msg=name)
                assert np.asarray(left[name]).dtype == np.asarray(right[name]).dtype, name


def by_id(rows: Any) -> list[dict[str, Any]]:
    """Returns the rows sorted by ``id``."""
    return sorted(rows, key=lambda row: int(row["id"]))
