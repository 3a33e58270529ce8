"""FSDP, whose ranks wait for each other in every layer: equal steps, each row once, and checkpoints for other ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from two_ranks import in_ranks

from parquetry.torch_plugin import ParquetIterable, rank_state

pytestmark = pytest.mark.slow
FIRST, ROWS, BATCH, STOP = 8, 52, 4, 3  # 28 rows are left after 3 steps of 2 ranks, which 4 ranks share evenly


class Training:
    """A small model in shards, and the loader that feeds it."""

    # torch's parts for this take two seconds to import, so only the ranks' processes do.
    def __init__(self, url: str) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.rows = ParquetIterable(url, ["id", "x"]).where(pc.field("id") >= FIRST).shuffle(10, seed=5).batch(BATCH)
        self.loader = StatefulDataLoader(self.rows, batch_size=None, num_workers=2)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def steps(self, most: int | None = None) -> list[list[int]]:
        """Returns the rows of each step; a rank that takes fewer steps than another would hang."""
        seen: list[list[int]] = []
        for batch in self.loader:
            self.model(batch["x"] / ROWS).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            seen.append(batch["id"].tolist())
            if len(seen) == most:
                break
        return seen

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return {"model": get_model_state_dict(self.model), "rows": json.dumps(rank_state(self.loader.state_dict()))}

    def weights(self) -> list[float]:
        return [number for each in self.model.parameters() for number in each.full_tensor().flatten().tolist()]


def whole(url: str) -> tuple[list[list[int]], list[float]]:
    training = Training(url)
    return training.steps(), training.weights()


def begin(url: str, folder: str) -> tuple[list[list[int]], list[float]]:
    import torch.distributed.checkpoint as checkpoint

    training = Training(url)
    seen = training.steps(STOP)
    checkpoint.save(training.state(), checkpoint_id=folder)
    return seen, training.weights()


def proceed(url: str, folder: str) -> tuple[list[list[int]], list[float]]:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    training = Training(url)
    state: dict[str, Any] = {"model": get_model_state_dict(training.model), "rows": ""}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(training.model, state["model"])
    training.rows.load_state_dict(state["rows"])
    loaded = training.weights()
    return training.steps(), loaded


@pytest.fixture(scope="module")
def begun(url: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, in_ranks(2, begin, url, str(folder))


def rows_of(parts: list[Any]) -> list[int]:
    return sorted(row for steps, _ in parts for batch in steps for row in batch)


def test_two_ranks_take_each_row_once_in_equal_steps(url: str) -> None:
    found = in_ranks(2, whole, url)
    assert [len(steps) for steps, _ in found] == [7, 7]  # 26 rows each, in batches of 4
    assert rows_of(found) == list(range(FIRST, FIRST + ROWS))


@pytest.mark.parametrize("ranks", [1, *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in (2, 4))])
def test_a_checkpoint_in_mid_epoch_continues_on_any_number_of_ranks(url: str, begun: Any, ranks: int) -> None:
    folder, stopped = begun
    rest = in_ranks(ranks, proceed, url, str(folder))
    assert [weights for _, weights in rest] == [stopped[0][1]] * ranks
    assert len({len(steps) for steps, _ in rest}) == 1
    assert rows_of([*stopped, *rest]) == list(range(FIRST, FIRST + ROWS))
