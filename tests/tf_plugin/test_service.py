"""The tf.data service with workers in separate processes: the rows in each of its modes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
from ids import ids
from processes import free_ports, gone, python_that_gets

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("service_worker.py")
ROWS, BATCH = 120, 10
service = tf.data.experimental.service


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("data") / "rows"
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    write_dataset(str(target), schema, [{"id": n} for n in range(ROWS)], row_group_rows=15, files=2)
    return str(target)


class Cluster:
    """Starts a dispatcher in this process, and two workers in separate ones."""

    def __init__(self, directory: Path) -> None:
        self.ports = free_ports(2)
        config = service.DispatcherConfig(
            work_dir=str(directory),
            fault_tolerant_mode=True,
            worker_addresses=[f"localhost:{port}" for port in self.ports],
        )
        self._dispatcher = service.DispatchServer(config)
        self.target = self._dispatcher.target
        self.workers = [self._started(port) for port in self.ports]
        for worker in self.workers:
            self._wait_for(worker)

    def replace(self, number: int) -> None:
        """Kills a worker and starts another at its address."""
        self.workers[number].kill()
        self.workers[number].communicate()
        self.workers[number] = self._started(self.ports[number])
        self._wait_for(self.workers[number])

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.communicate()
        self._dispatcher._stop()

    def _started(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), self.target.split("://")[1], str(port)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    @staticmethod
    def _wait_for(worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "serving\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("dispatcher"))
    yield cluster
    cluster.close()


def served(dataset: Any, cluster: Cluster, mode: str, **options: Any) -> Any:
    policy = getattr(service.ShardingPolicy, mode)
    return dataset.apply(service.distribute(policy, cluster.target, **options))


CHAINS: dict[str, Callable[[str], Any]] = {
    "in order": lambda url: ParquetDataset(url).batch(BATCH),
    "shuffled": lambda url: ParquetDataset(url).shuffle(30, seed=3).batch(BATCH),
    "through tf.data": lambda url: ParquetDataset(url).map(lambda row: row).batch(BATCH).prefetch(1),
}


@pytest.mark.parametrize(
    ("mode", "chain", "times"),
    [
        ("OFF", "shuffled", 2),
        ("HINT", "in order", 2),
        ("DYNAMIC", "in order", 1),
        ("DYNAMIC", "shuffled", 1),
        ("DYNAMIC", "through tf.data", 1),
        ("DATA", "shuffled", 1),
        ("FILE_OR_DATA", "in order", 1),
    ],
)
def test_each_row_comes_as_often_as_the_mode_says(
    url: str, cluster: Cluster, chain: str, mode: str, times: int
) -> None:
    assert Counter(ids(served(CHAINS[chain](url), cluster, mode))) == dict.fromkeys(range(ROWS), times)


def test_a_hint_deals_rows_where_tf_data_has_the_shard(url: str, cluster: Cluster) -> None:
    hint = tf.data.experimental.SHARD_HINT
    dataset = ParquetDataset(url).map(lambda row: row).shard(hint, hint).batch(BATCH)
    assert Counter(ids(served(dataset, cluster, "HINT"))) == dict.fromkeys(range(ROWS), 1)


@pytest.mark.parametrize("mode", ["DATA", "HINT"])
def test_rows_are_dealt_once_whatever_the_workers_served_before(url: str, cluster: Cluster, mode: str) -> None:
    """Both workers deal from one order, although one of them has seen fewer iterations."""
    hint = tf.data.experimental.SHARD_HINT
    dataset = ParquetDataset(url).shuffle(30, seed=3).map(lambda row: row)
    dataset = (dataset.shard(hint, hint) if mode == "HINT" else dataset).batch(BATCH)
    once = dict.fromkeys(range(ROWS), 1)
    assert Counter(ids(served(dataset, cluster, mode))) == once
    cluster.replace(1)
    assert Counter(ids(served(dataset, cluster, mode))) == once


def test_epochs_of_a_dealt_dataset_have_their_own_orders(url: str, cluster: Cluster) -> None:
    dataset = ParquetDataset(url).shuffle(30, seed=3).map(lambda row: row).repeat(2).batch(BATCH)
    batches = [tuple(batch["id"].numpy().tolist()) for batch in served(dataset, cluster, "DATA")]
    assert Counter(number for batch in batches for number in batch) == dict.fromkeys(range(ROWS), 2)
    assert len(set(batches)) == len(batches)


def test_files_cannot_be_dealt(url: str, cluster: Cluster) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="shardable source"):
        ids(served(CHAINS["in order"](url), cluster, "FILE"))


def test_coordinated_consumers_take_consecutive_batches_of_one_worker_in_each_step(url: str, cluster: Cluster) -> None:
    steps = 2 * ROWS // BATCH
    dataset = CHAINS["in order"](url).repeat()

    def consume(index: int) -> list[int]:
        options = {"job_name": "coordinated", "consumer_index": index, "num_consumers": 2}
        return ids(served(dataset, cluster, "OFF", **options).take(steps))

    with ThreadPoolExecutor(2) as consumers:
        first, second = consumers.map(consume, range(2))
    assert len(first) == steps * BATCH
    assert set(first + second) == set(range(ROWS))
    assert second == [(number + BATCH) % ROWS for number in first]


def named_runs(url: str) -> Any:
    """Returns batches with the name of the run that reads them, and a name of their own. All names are drawn."""
    drawn = tf.data.Dataset.range(1).map(lambda _: tf.random.uniform([], maxval=tf.int64.max, dtype=tf.int64))
    batches = CHAINS["shuffled"](url).repeat()
    return tf.data.Dataset.zip(drawn.cache().repeat(), drawn.repeat(), batches)


def test_trainers_share_one_run_of_each_worker(url: str, cluster: Cluster) -> None:
    def train(trainer: str) -> dict[int, list[tuple[int, list[int]]]]:
        """Returns the batches of each run. A trainer may get many from one worker before the other's first."""
        cache = service.CrossTrainerCache(trainer_id=trainer)
        taken: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        for run, name, batch in served(dataset, cluster, "OFF", cross_trainer_cache=cache, job_name="shared"):
            taken[int(run)].append((int(name), batch["id"].numpy().tolist()))
            if len(taken) == len(cluster.workers) and min(map(len, taken.values())) >= ROWS // BATCH:
                break
        return taken

    dataset = named_runs(url)
    first, second = map(train, "ab")
    assert first.keys() == second.keys()
    for run, batches in first.items():
        assert all(mine == theirs for mine, theirs in zip(batches, second[run], strict=False))


def test_a_worker_that_is_killed_gives_no_row_twice(url: str, cluster: Cluster) -> None:
    dataset = ParquetDataset(url).batch(1)
    iterator = iter(served(dataset, cluster, "DYNAMIC", max_outstanding_requests=2))
    found = [int(next(iterator)["id"][0]) for _ in range(20)]
    children = [child.pid for child in psutil.Process(cluster.workers[1].pid).children()]
    cluster.replace(1)
    found += [int(batch["id"][0]) for batch in iterator]
    assert max(Counter(found).values()) == 1
    assert set(found) <= set(range(ROWS))
    assert gone(children, 60) == []
    assert Counter(ids(served(dataset, cluster, "DYNAMIC"))) == dict.fromkeys(range(ROWS), 1)


def test_a_reader_that_dies_before_it_deals_is_replaced(
    url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "0")  # the dispatcher, here, starts another reader to deal
    python_that_gets(monkeypatch, tmp_path, "KILL", 0)
    dataset = served(CHAINS["shuffled"](url), cluster, "DYNAMIC")
    program, killed = tmp_path / "python", tmp_path / "killed"
    first_here = f'[ $PPID = {os.getpid()} ] && mkdir "{killed}" 2>/dev/null'
    program.write_text(program.read_text().replace('[ "$n" -lt 0 ]', first_here))
    assert Counter(ids(dataset)) == dict.fromkeys(range(ROWS), 1)
    assert killed.exists()
