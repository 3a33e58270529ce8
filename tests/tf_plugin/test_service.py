"""The tf.data service with workers in separate processes: the rows in each of its modes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import tensorflow as tf
from ids import ids
from processes import free_ports, gone, python_that_gets

from parquetry.common import Unischema, UnischemaField, write_dataset
from parquetry.tf_plugin import ParquetDataset

pytestmark = pytest.mark.slow
WORKER, DISPATCHER = (Path(__file__).with_name(f"service_{role}.py") for role in ("worker", "dispatcher"))
ROWS, BATCH = 120, 10
service = tf.data.experimental.service


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("data") / "rows"
    schema = Unischema("rows", [UnischemaField("id", np.int64)])
    write_dataset(str(target), schema, [{"id": n} for n in range(ROWS)], row_group_rows=15, files=2)
    return str(target)


def started(program: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(program), *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    """Waits until a process says a line, which it does when it serves."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


class Cluster:
    """Starts two workers in separate processes, for a dispatcher that knows their ports."""

    def __init__(self, target: str, ports: list[int]) -> None:
        self.target, self.ports = target, ports
        self.workers = [self._worker(port) for port in ports]
        for worker in self.workers:
            assert said(worker) == "serving"

    def replace(self, number: int) -> None:
        """Kills a worker and starts another at its address."""
        stop(self.workers[number])
        self.workers[number] = self._worker(self.ports[number])
        assert said(self.workers[number]) == "serving"

    def close(self) -> None:
        for worker in self.workers:
            stop(worker)

    def _worker(self, port: int) -> subprocess.Popen[str]:
        return started(WORKER, self.target.split("://")[1], port)


def addresses(ports: list[int]) -> list[str]:
    return [f"localhost:{port}" for port in ports]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with its dispatcher in this process."""
    directory, ports = str(tmp_path_factory.mktemp("dispatcher")), free_ports(2)
    config = service.DispatcherConfig(work_dir=directory, fault_tolerant_mode=True, worker_addresses=addresses(ports))
    dispatcher = service.DispatchServer(config)
    cluster = Cluster(dispatcher.target, ports)
    yield cluster
    cluster.close()
    dispatcher._stop()


@pytest.fixture(scope="module")
def cluster_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose dispatcher has a process of its own, too."""
    ports = free_ports(2)
    dispatcher = started(DISPATCHER, tmp_path_factory.mktemp("dispatcher"), *addresses(ports))
    cluster = Cluster(said(dispatcher), ports)
    yield cluster
    cluster.close()
    stop(dispatcher)


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


@pytest.mark.nightly
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


def drawn() -> Any:
    """Returns a dataset of one number, which each iteration draws."""
    return tf.data.Dataset.range(1).map(lambda _: tf.random.uniform([], maxval=tf.int64.max, dtype=tf.int64))


def named_runs(url: str) -> Any:
    """Returns batches with the name of the run that reads them, and a name of their own. All names are drawn."""
    batches = CHAINS["shuffled"](url).repeat()
    return tf.data.Dataset.zip(drawn().cache().repeat(), drawn().repeat(), batches)


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


class Killed(NamedTuple):
    """What two consumers of one epoch got, during which a worker was killed and another started at its address."""

    dealt: list[int]  # under DYNAMIC
    runs: dict[int, list[int]]  # under OFF, for each run of a worker
    readers: list[int]  # the processes that read for the killed worker


@pytest.fixture(scope="module")
def killed(url: str, cluster_apart: Cluster) -> Killed:
    rows = ParquetDataset(url).batch(1)
    named = tf.data.Dataset.zip(drawn().cache().repeat(), rows.map(lambda row: row["id"][0]))
    dealt = iter(served(rows, cluster_apart, "DYNAMIC", max_outstanding_requests=2))
    whole = iter(served(named, cluster_apart, "OFF", max_outstanding_requests=2))
    begun = [(next(dealt), next(whole)) for _ in range(20)]  # of 120, so no worker is done
    readers = [child.pid for child in psutil.Process(cluster_apart.workers[1].pid).children()]
    cluster_apart.replace(1)
    found = [int(row["id"][0]) for row in (*(row for row, _ in begun), *dealt)]
    runs: dict[int, list[int]] = defaultdict(list)
    for run, number in (*(element for _, element in begun), *whole):
        runs[int(run)].append(int(number))
    return Killed(found, runs, readers)


@pytest.mark.nightly
def test_a_worker_that_is_killed_gives_no_row_twice(url: str, cluster_apart: Cluster, killed: Killed) -> None:
    assert max(Counter(killed.dealt).values()) == 1
    assert set(killed.dealt) <= set(range(ROWS))
    assert gone(killed.readers) == []
    assert Counter(ids(served(ParquetDataset(url).batch(1), cluster_apart, "DYNAMIC"))) == dict.fromkeys(range(ROWS), 1)


@pytest.mark.nightly
def test_where_nothing_is_dealt_the_worker_that_lives_and_the_new_one_give_every_row_once(killed: Killed) -> None:
    *begun, lives, new = sorted(killed.runs.values(), key=len)
    assert lives == new == list(range(ROWS))
    assert [numbers for numbers in begun if numbers != list(range(len(numbers)))] == []
    assert len(begun) <= 1


@pytest.mark.nightly
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
