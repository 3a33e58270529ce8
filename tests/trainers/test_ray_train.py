"""Ray Train: a run that loses a node continues on the other one, and reads each row of the epoch once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import Built, built_once
from processes import PATIENCE_S

ray = pytest.importorskip("ray")
pytest.importorskip("torch")
from ray import train  # noqa: E402  # needs Ray
from ray.cluster_utils import Cluster  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402

ROWS, BATCH, LOST_AFTER = 120, 5, 4
built = built_once([[20, 13], [7, 20], [30, 30]])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that runs no workers, for nodes with one processor each."""
    monkeypatch.setenv("RAY_health_check_period_ms", "500")  # a node that is gone is noticed within seconds
    monkeypatch.setenv("RAY_health_check_failure_threshold", "3")
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")  # asks for two workers again before it takes one
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, because it names sockets
    os.mkdir(f"{directory}/ray")
    monkeypatch.setenv("RAY_TMPDIR", directory)  # a cluster writes its address to "ray" in there, which must exist
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": directory})
    try:
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        shutil.rmtree(directory, ignore_errors=True)


def train_on_a_worker(config: dict[str, Any]) -> None:
    """Notes the rows of each step, and checkpoints after each. On two workers, the second one stops in mid epoch."""
    from parquetry import ParquetIterable

    context = train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    rows = ParquetIterable(config["url"], ["id"]).shuffle(20, seed=7).batch(BATCH)
    begin = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, "rows.json").read_text())
        begin = state["consumed"]
        rows.load_state_dict(state)
    notes = Path(config["notes"], f"{workers}-{rank}")
    with notes.open("a") as lines:
        for batch in rows:
            lines.write(json.dumps({"begin": begin, "ids": batch["id"].tolist()}) + "\n")
            lines.flush()
            if workers == 2 and rank == 1 and rows.state_dict()["consumed"] == LOST_AFTER:
                Path(config["notes"], "node").write_text(ray.get_runtime_context().get_node_id())
                time.sleep(PATIENCE_S)  # the node is removed
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "rows.json").write_text(json.dumps(rows.state_dict()))
                kept = train.Checkpoint.from_directory(folder) if rank == 0 else None
                train.report({"steps": len(rows)}, checkpoint=kept)


def steps_of(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()]


def remove_the_lost_node(cluster: Any, nodes: list[Any], notes: Path) -> None:
    """Waits until a worker names its node, and kills that node as a failing machine would."""
    deadline = time.monotonic() + PATIENCE_S
    named = notes / "node"
    while not (named.exists() and named.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (lost,) = (node for node in nodes if node.node_id == named.read_text())
    cluster.remove_node(lost, allow_graceful=False)


@pytest.mark.nightly
def test_a_lost_node_loses_and_repeats_no_row(built: Built, tmp_path: Path, cluster: Any) -> None:
    notes, storage = tmp_path / "notes", tmp_path / "storage"
    notes.mkdir()
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    remover = threading.Thread(target=remove_the_lost_node, args=(cluster, nodes, notes), daemon=True)
    remover.start()
    TorchTrainer(
        train_on_a_worker,
        train_loop_config={"url": built.url, "notes": os.fspath(notes)},
        scaling_config=train.ScalingConfig(num_workers=(1, 2)),
        run_config=train.RunConfig(storage_path=os.fspath(storage), failure_config=train.FailureConfig(max_failures=3)),
    ).fit()
    remover.join(PATIENCE_S)
    alone = steps_of(notes / "1-0")
    begin = alone[0]["begin"]
    assert 0 < begin < LOST_AFTER
    together = [step["ids"] for rank in range(2) for step in steps_of(notes / f"2-{rank}")[:begin]]
    assert len(together) == 2 * begin
    seen = [row for ids in (*together, *(step["ids"] for step in alone)) for row in ids]
    assert sorted(seen) == list(range(ROWS))
