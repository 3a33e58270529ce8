"""Reports as JSON: every kind of value can be represented."""

from __future__ import annotations

import datetime
import decimal
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parquetry.common import RaggedArray
from parquetry.common.apps.reports import to_json


@dataclass(frozen=True)
class Point:
    x: float
    tags: tuple[str, ...]


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, None),
        (np.ma.masked, None),
        (True, True),
        (np.int8(3), 3),
        (float("nan"), None),
        (np.float32("inf"), None),
        (b"abc", "abc"),
        (b"\xff\x00", "/wA="),
        (decimal.Decimal("1.50"), "1.50"),
        (datetime.date(2021, 3, 4), "2021-03-04"),
        (datetime.timedelta(hours=1), "1:00:00"),
        (np.datetime64("2021-03-04T05"), "2021-03-04T05"),
        (np.datetime64("NaT", "us"), None),
        (np.array(3), 3),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        (np.ma.array([1, 2], mask=[True, False]), [None, 2]),
        (RaggedArray(np.arange(3), np.array([[1], [2]])), [[0], [1, 2]]),
        ({1: (Point(0.5, ("a",)),)}, {"1": [{"x": 0.5, "tags": ["a"]}]}),
        (Path("a/b"), "a/b"),
        (np.dtype("int32"), "int32"),
    ],
)
def test_every_value_has_a_form_in_json(value: object, form: object) -> None:
    assert to_json(value) == form
    json.dumps(to_json(value), allow_nan=False)
