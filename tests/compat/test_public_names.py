"""The table of ``docs/migrating-from-petastorm.md`` has every public name of Petastorm, and says truly which there are."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = json.loads((ROOT / "tests/data/petastorm/public_names.json").read_text(encoding="utf-8"))
"""The public classes and functions in each module of Petastorm 0.13.1."""
NEEDS = {"pytorch": "torch", "tf_utils": "tensorflow", "spark": "pyspark"}


def table() -> dict[str, str]:
    """Returns what the page says of each name."""
    page = (ROOT / "docs/migrating-from-petastorm.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.partition("## Every public name")[2].splitlines() if "| `" in line]
    return {name: cells[1] for cells in rows for name in re.findall(r"`([\w.]+)`", cells[0])}


def test_the_table_of_names_is_complete() -> None:
    assert sorted(table()) == sorted(
        f"{module}.{name}".lstrip(".") for module, names in NAMES.items() for name in names
    )


@pytest.mark.parametrize("module", NAMES)
def test_the_table_says_which_names_there_are(module: str) -> None:
    framework = NEEDS.get(module.partition(".")[0], "json")
    if find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    said = table()
    for name in NAMES[module]:
        cell = said[f"{module}.{name}".lstrip(".")]
        assert cell.startswith("the same" if there_is(module, name) else "missing"), (module, name, cell)


def there_is(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(f"parquetry.petastorm.{module}".rstrip(".")), name)
    except ModuleNotFoundError:
        return False
