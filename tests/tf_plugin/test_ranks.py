"""Distributed training in separate processes: every row once over all ranks, and equal steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from processes import PATIENCE_S, free_ports

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("rank_program.py")
ROWS = 33  # left by the program's filter


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("data") / "rows"
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    write_dataset(str(target), schema, [{"id": n} for n in range(40)], row_group_rows=5, files=2)
    return str(target)


def of_cluster(size: int) -> list[dict[str, Any] | None]:
    """Returns the TF_CONFIG of each worker."""
    addresses = [f"localhost:{port}" for port in free_ports(size)]
    return [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}} for index in range(size)]


def run_ranks(kind: str, url: str, configs: list[dict[str, Any] | None], directory: Path) -> list[Any]:
    """Returns each rank's output. The first that fails ends the others, which would wait for it."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, config in enumerate(configs):
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            environment.pop("TF_CONFIG", None)
            if config is not None:
                environment["TF_CONFIG"] = json.dumps(config)
            with (directory / f"out-{rank}").open("w") as out, (directory / f"errors-{rank}").open("w") as errors:
                command = [sys.executable, str(PROGRAM), kind, url, str(PATIENCE_S / 2)]
                processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=errors))
        while running := [process for process in processes if process.poll() is None]:
            if any(process.returncode for process in processes):
                break
            with suppress(subprocess.TimeoutExpired):
                running[0].wait(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        said = [
            f"rank {number}: {(directory / f'errors-{number}').read_text()[-4000:]}" for number in range(len(configs))
        ]
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}\n" + "\n".join(said)
    return [json.loads((directory / f"out-{rank}").read_text().splitlines()[-1]) for rank in range(len(configs))]


def ids_of(epoch: list[dict[str, Any]]) -> list[int]:
    return [number for step in epoch for replica in step["replicas"] for number in replica]


@pytest.mark.timeout(method="thread")
def test_mirrored_replicas_get_every_row_once(url: str, tmp_path: Path) -> None:
    ((first, second, waits),) = run_ranks("mirrored", url, [None], tmp_path)
    assert sorted(ids_of(first)) == sorted(ids_of(second)) == list(range(ROWS))
    assert ids_of(first) != ids_of(second)
    assert all(step["sum"] == sum(ids_of([step])) for step in first)
    assert waits == [0, waits[1], [waits[1]]]


@pytest.mark.nightly
@pytest.mark.timeout(method="thread")
def test_workers_of_a_cluster_get_every_row_once_in_equal_steps(url: str, tmp_path: Path) -> None:
    ranks = run_ranks("workers", url, of_cluster(2), tmp_path)
    waits = [rank.pop() for rank in ranks]
    assert waits == [[rank, waits[rank][1], [own for _, own, _ in waits]] for rank in range(2)]
    for mine, theirs in zip(*ranks, strict=True):
        found = ids_of(mine) + ids_of(theirs)
        assert len(found) == len(set(found)) == ROWS - ROWS % 2
        assert [step["sum"] for step in mine] == [step["sum"] for step in theirs]
        assert len(mine) == 4


@pytest.mark.timeout(method="thread")
def test_tensorflow_shards_rows_as_each_policy_says(url: str, tmp_path: Path) -> None:
    mine, theirs = run_ranks("policies", url, of_cluster(2), tmp_path)
    for policy, times in {"AUTO": 1, "DATA": 1, "HINT": 1, "OFF": 2, "own shard": 1}.items():
        found = Counter(ids_of(mine[policy]) + ids_of(theirs[policy]))
        if policy == "own shard":
            found -= Counter(max(found, key=found.__getitem__) for _ in range(ROWS % 2))  # repeated for equal steps
        assert found == dict.fromkeys(range(ROWS), times), policy
        assert [step["sum"] for step in mine[policy]] == [step["sum"] for step in theirs[policy]]


@pytest.mark.nightly
@pytest.mark.timeout(method="thread")
def test_tensorflow_cannot_shard_files_and_names_other_policies(url: str, tmp_path: Path) -> None:
    advice = r"NotFoundError: .*cannot be sharded by files .* Use dataset\.shard\(.* DATA or OFF\."
    for said in run_ranks("FILE", url, of_cluster(2), tmp_path):
        assert re.match(advice, said, re.DOTALL), said


@pytest.mark.nightly
@pytest.mark.timeout(method="thread")
def test_one_worker_continues_the_epoch_of_two(url: str, tmp_path: Path) -> None:
    begun = run_ranks("2", url, of_cluster(2), tmp_path)
    taken = [number for steps, _ in begun for number in ids_of(steps)]
    (alone,) = run_ranks(json.dumps(begun[0][1]), url, of_cluster(1), tmp_path)
    seen = taken + ids_of(alone[0])
    assert len(seen) == len(set(seen)) == ROWS - ROWS % 2
    assert len(ids_of(alone[1])) == ROWS


def test_a_state_of_two_ranks_resumes_with_any_number(url: str) -> None:
    def dataset(ranks: int, rank: int) -> ParquetDataset:
        rows = ParquetDataset(url, ["id"], workers=1).shuffle(10, seed=7)
        return rows.shard(ranks, rank, even="drop", canonical_shards=6).batch(12 // ranks)

    def ids_in(data: Any) -> list[int]:
        return [number for batch in data for number in batch["id"].numpy().tolist()]

    whole = sorted(number for rank in range(2) for number in ids_in(dataset(2, rank)))
    assert len(set(whole)) == 36
    two = [dataset(2, rank) for rank in range(2)]
    begun = [number for data in two for number in next(iter(data))["id"].numpy().tolist()]
    state = two[0].state_dict(1)
    for ranks in (2, 3):
        resumed = [ids_in(dataset(ranks, rank).load_state_dict(state)) for rank in range(ranks)]
        assert len({len(part) for part in resumed}) == 1
        assert sorted([*begun, *(number for part in resumed for number in part)]) == whole


def test_input_contexts_of_one_process_get_all_rows(url: str) -> None:
    strategy = tf.distribute.get_strategy()
    context_parts: list[int] = []

    def dataset_of(context: tf.distribute.InputContext) -> tf.data.Dataset:
        context_parts.append(context.num_input_pipelines)
        return ParquetDataset(url, ["id"]).shard(context.num_input_pipelines, context.input_pipeline_id).batch(16)

    dataset = strategy.distribute_datasets_from_function(dataset_of)
    expected = [batch["id"].tolist() for batch in Pipeline(url, ["id"]).batch(16)]
    assert [batch["id"].numpy().tolist() for batch in dataset] == expected
    assert context_parts == [1]
