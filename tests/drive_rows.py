"""A small drive: 40 rows with nulls, lists, variable shapes and a decimal, in row groups of 7 in two partitions."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common import (
    CompressedImageCodec,
    NdarrayCodec,
    Pipeline,
    ScalarCodec,
    Unischema,
    UnischemaField,
    write_dataset,
)

SCHEMA = Unischema(
    "drive",
    [
        UnischemaField("id", np.int64),
        UnischemaField("drive", str),
        UnischemaField("name", str, nullable=True),
        UnischemaField("speed", np.float32, nullable=True),
        UnischemaField("points", np.float32, (None, 3), NdarrayCodec()),
        UnischemaField("tags", str, (None,)),
        UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png"), dims=("H", "W", "C")),
        UnischemaField("price", decimal.Decimal, (), ScalarCodec(pa.decimal128(9, 2))),
    ],
)


def row(number: int) -> dict[str, Any]:
    """Returns row ``number``."""
    return {
        "id": number,
        "drive": f"d{number // 20}",
        "name": None if number % 7 == 0 else f"n{number}",
        "speed": None if number % 5 == 0 else number / 2,
        "points": np.full((number % 4, 3), number, np.float32),
        "tags": [f"t{tag}" for tag in range(number % 3)],
        "image": (np.arange(60).reshape(4, 5, 3) + number).astype(np.uint8),
        "price": decimal.Decimal(number) / 4,
    }


ROWS = [row(number) for number in range(40)]


def write_drive(directory: Path) -> str:
    """Writes the rows; returns the URL."""
    url = str(directory / "drive")
    write_dataset(url, SCHEMA, ROWS, row_group_rows=7, partition_by=("drive",))
    return url


def drive_url_once() -> Any:
    """Returns a fixture that writes the rows once for a module: ``url = drive_url_once()``."""

    @pytest.fixture(scope="module")
    def url(tmp_path_factory: pytest.TempPathFactory) -> str:
        return write_drive(tmp_path_factory.mktemp("drive"))

    return url


def drive_once(*fields: list[str], **options: Any) -> Any:
    """Returns a fixture like that of `drive_url_once`, of a `Pipeline` with these arguments."""

    @pytest.fixture(scope="module")
    def drive(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
        return Pipeline(write_drive(tmp_path_factory.mktemp("drive")), *fields, **options)

    return drive
