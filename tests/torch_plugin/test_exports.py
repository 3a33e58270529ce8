"""The public surface of `parquetry.torch_plugin`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import parquetry.torch_plugin as plugin


def test_all_names_are_sorted_and_there() -> None:
    assert plugin.__all__ == sorted(plugin.__all__)
    assert all(getattr(plugin, name) is not None for name in plugin.__all__)
    assert dir(plugin) == plugin.__all__
    assert not hasattr(plugin, "anything_else")


@pytest.mark.slow
def test_importing_it_loads_neither_tensorflow_nor_torchdata() -> None:
    code = (
        "import sys, parquetry.torch_plugin; from torch.utils.data import IterDataPipe;"
        "assert 'read_parquet' in IterDataPipe.functions;"
        "sys.exit(bool({'tensorflow', 'torchdata'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
