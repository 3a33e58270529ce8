"""A small dataset with every kind of field, for the tests of the PyTorch face."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faces import TORCH_WARNINGS

from parquetry.common import CompressedImageCodec, NdarrayCodec, TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.engine.read import fetch

ROWS = 60
HERE = Path(__file__).parent
ASKING = [
    importlib.import_module(f"parquetry.torch_plugin.{name}") for name in ("carrier", "iterable", "map", "placement")
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.versions)
            for warning in TORCH_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _small_row_groups_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no test's would be large enough for loader workers to share them."""
    monkeypatch.setattr(fetch, "_SHARED_BYTES", 0)


def make_row(number: int) -> dict[str, Any]:
    """Returns row ``number`` of the dataset."""
    return {
        "id": number,
        "drive": f"d{number // 20}",
        "half": np.float16(number / 2),
        "u16": 65_500 + number % 30,
        "u32": 2**32 - 1 - number,
        "u64": 2**64 - 1 - number,
        "flag": number % 3 == 0,
        "raw": b"\x00%d" % number,
        "image": np.full((4, 5, 3), number, np.uint8),
        "x": np.arange(3, dtype=np.float32) * number,
        "points": np.full((number % 4, 2), number, np.float32),
        "map": np.full((number % 2 + 1, number % 3), number, np.int32),
        "tags": [f"t{number}-{part}" for part in range(number % 3)],
        "corners": [f"c{number}-{part}" for part in range(2)],
        "stamp": 100 * number + 1000 * (number // 10),
    }


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """Returns the dataset's rows."""
    return [make_row(number) for number in range(ROWS)]


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> str:
    """Writes a dataset of 60 rows in row groups of 7."""
    schema = Unischema(
        "all_kinds",
        [
            UnischemaField("id", np.int64),
            UnischemaField("drive", str),
            UnischemaField("half", np.float16),
            UnischemaField("u16", np.uint16),
            UnischemaField("u32", np.uint32),
            UnischemaField("u64", np.uint64),
            UnischemaField("flag", np.bool_),
            UnischemaField("raw", bytes),
            UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png")),
            UnischemaField("x", np.float32, (3,), TensorCodec()),
            UnischemaField("points", np.float32, (None, 2), NdarrayCodec()),
            UnischemaField("map", np.int32, (None, None), NdarrayCodec()),
            UnischemaField("tags", str, (None,)),
            UnischemaField("corners", str, (2,)),
            UnischemaField("stamp", np.int64),
        ],
    )
    directory = str(tmp_path_factory.mktemp("data"))
    write_dataset(directory, schema, rows, row_group_rows=7, files=2)
    return directory


@pytest.fixture(scope="session")
def nullable_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes ten rows; in every third, ``name`` and ``score`` are null."""
    schema = Unischema(
        "nullable",
        [
            UnischemaField("id", np.int64),
            UnischemaField("name", str, nullable=True),
            UnischemaField("score", np.float32, nullable=True),
        ],
    )
    directory = str(tmp_path_factory.mktemp("nullable"))
    values = [{"id": n, "name": None if n % 3 == 1 else f"n{n}", "score": None if n % 3 == 1 else n} for n in range(10)]
    write_dataset(directory, schema, values)
    return directory


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes this process a rank of a process group, as far as datasets can tell."""

    def set_rank(rank: int, ranks: int) -> None:
        for module in ASKING:
            monkeypatch.setattr(module, "rank_here", lambda: (ranks, rank))

    return set_rank
