"""A small dataset for third-party trainers. Their packages have a separate environment: ``make test-trainers``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from parquetry.common import Unischema, UnischemaField, write_dataset

ROWS = 60
HERE = Path(__file__).parent
NEEDED = ("accelerate", "lightning", "tiktoken", "transformers", "torch")

# `make test` skips these; if they are requested by name and nothing is collected, pytest fails.
collect_ignore_glob = ["test_*.py"] if any(find_spec(name) is None for name in NEEDED) else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))  # their warnings are their own


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes 60 rows in row groups of 7: a number, features, a label, and a text."""
    schema = Unischema(
        "small",
        [
            UnischemaField("id", np.int64),
            UnischemaField("x", np.float32, (3,)),
            UnischemaField("labels", np.float32),
            UnischemaField("text", str),
        ],
    )
    rows = (
        {
            "id": number,
            "x": np.full(3, number / ROWS, np.float32),
            "labels": np.float32(number),
            "text": f"row {number}",
        }
        for number in range(ROWS)
    )
    target = str(tmp_path_factory.mktemp("data") / "small")
    write_dataset(target, schema, rows, row_group_rows=7)
    return target
