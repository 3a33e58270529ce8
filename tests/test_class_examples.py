"""The example in the docstring of each public class gives the result that it shows."""

from __future__ import annotations

import doctest
import importlib
import inspect
import operator
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from drive_rows import drive_url_once

import parquetry.common

CLASSES = [
    ("parquetry.common", "Pipeline", ()),
    ("parquetry.common", "Pipeline.from_pandas", ("pandas",)),
    ("parquetry.common", "Pipeline.from_polars", ("polars",)),
    ("parquetry.common", "DatasetWriter", ()),
    ("parquetry.common", "write_dataset", ()),
    ("parquetry.common", "Unischema", ()),
    ("parquetry.common", "UnischemaField", ()),
    ("parquetry.common", "CompressedImageCodec", ()),
    ("parquetry.torch_plugin", "ParquetIterable", ("torch",)),
    ("parquetry.torch_plugin", "ParquetPipe", ("torch",)),
    ("parquetry.torch_plugin", "ParquetMap", ("torch",)),
    ("parquetry.torch_plugin", "ParquetNode", ("torch", "torchdata.nodes")),
    ("parquetry.tf_plugin", "ParquetDataset", ("tensorflow",)),
]
url = drive_url_once()


@pytest.fixture
def names(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names available to the examples."""
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    public = {name: getattr(parquetry.common, name) for name in parquetry.common.__all__}
    return {**public, "np": np, "pc": pc, "operator": operator, "url": url, "directory": tmp_path / "written"}


@pytest.mark.parametrize(("package", "name", "needs"), CLASSES, ids=[name for _, name, _ in CLASSES])
def test_the_example_of_each_class_gives_what_it_says(
    names: dict[str, Any], package: str, name: str, needs: tuple[str, ...]
) -> None:
    for module in needs:
        pytest.importorskip(module)
        top = module.partition(".")[0]
        names[top] = sys.modules[top]
    if "torch" in needs:
        from torch.utils.data import DataLoader, RandomSampler

        names |= {"DataLoader": DataLoader, "RandomSampler": RandomSampler}
    found = importlib.import_module(package)
    for part in name.split("."):
        found = getattr(found, part)
    names.setdefault(name, found)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(found) or "", names, name, None, 0)
    assert example.examples, "expected an example in the docstring"
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)
