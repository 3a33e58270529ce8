"""Everything except DataPipe verbs works with a torch without DataPipes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import PATIENCE_S

# Torch's own modules can still import them; they are missing only for this package.
WITHOUT = """
import builtins, sys
import torch.utils.data
original = builtins.__import__
GONE = ("torch.utils.data.datapipes", "torch.utils.data.graph", "torch.utils.data.graph_settings")
NAMES = {"IterDataPipe", "MapDataPipe", "DFIterDataPipe", "DataChunk", "functional_datapipe", "datapipes"}

def without(name, globals=None, locals=None, fromlist=(), level=0):
    ours = str((globals or {}).get("__name__")).startswith("parquetry")
    if ours and (name.startswith(GONE) or (name == "torch.utils.data" and NAMES & set(fromlist or ()))):
        raise ImportError(f"cannot import {fromlist} from {name}")
    return original(name, globals, locals, fromlist, level)

builtins.__import__ = without
"""

EVERYTHING_ELSE = """
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
import parquetry.torch_plugin as plugin
from parquetry.torch_plugin import ParquetIterable, ParquetNode, mix, rank_state

url = sys.argv[1]
dataset = ParquetIterable(url, ["id"]).shuffle(10, seed=5).batch(7)
for workers in (0, 2):
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(60))
    dataset.load_state_dict(rank_state(loader.state_dict()))
assert len(list(DataLoader(mix([ParquetIterable(url, ["id"])]), batch_size=10))) == 6
assert len(list(ParquetNode(url, ["id"]))) == 60
assert "parquetry.torch_plugin.pipe" not in sys.modules
for use in (lambda: plugin.ParquetPipe, lambda: plugin.read_parquet(url), lambda: mix([ParquetIterable(url).pipeline])):
    try:
        use()
    except ImportError as error:
        assert "Use ParquetIterable" in str(error)
    else:
        raise AssertionError("expected an ImportError")
"""


@pytest.mark.slow
def test_all_but_the_pipe_works_without_datapipes(url: str) -> None:
    options = ["-W", "ignore", "-c", WITHOUT + EVERYTHING_ELSE, url]
    subprocess.run([sys.executable, *options], check=True, timeout=PATIENCE_S)
