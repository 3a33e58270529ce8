"""Imports of our names collect no garbage, and leave the collector as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from parquetry.common.base.process.lazy_names import without_collections

COLLECTIONS = """
import gc
import numpy, pyarrow

collections = []
gc.callbacks.append(lambda phase, details: collections.append(details["generation"]) if phase == "start" else None)
{statement}
assert gc.isenabled()
print(len(collections))
"""


@pytest.fixture
def collector() -> Iterator[None]:
    """Restores whether garbage is collected."""
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_waits_for_imports_and_is_left_as_it_was(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled() == collects
    with pytest.raises(ModuleNotFoundError), without_collections():
        import_module("no_module_of_this_name")
    assert gc.isenabled() == collects


def test_the_first_name_is_imported_with_hardly_any_collection() -> None:
    program = COLLECTIONS.format(statement="from parquetry import Pipeline")
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(printed) < 20  # there were over a hundred
