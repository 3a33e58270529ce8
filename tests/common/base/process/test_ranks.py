"""Ranks from launchers' environment variables."""

from __future__ import annotations

import json

import pytest
from drive_rows import drive_once

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.ranks import rank_from_environment

drive = drive_once(executor="threads", workers=2)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, (4, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (2, 1)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}, (4, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (2, 0)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (2, 1)),
        ({"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "5"}, (5, 3)),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "8", "RANK": "6"}, (8, 6)),
        ({"JOB_COMPLETION_INDEX": "3"}, None),
        ({"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}, (4, 2)),
        ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, (1, 0)),
        (
            {
                "TPU_WORKER_ID": "1",
                "TPU_WORKER_HOSTNAMES": "a,b",
                "MEGASCALE_NUM_SLICES": "3",
                "MEGASCALE_SLICE_ID": "2",
            },
            (6, 5),
        ),
        (
            {
                "CLOUD_TPU_TASK_ID": "5",
                "TPU_PROCESS_ADDRESSES": "a:8476,a:8477,a:8478,a:8479,b:8476,b:8477,b:8478,b:8479",
                "TPU_WORKER_ID": "1",
                "TPU_WORKER_HOSTNAMES": "a,b",
            },
            (8, 5),
        ),
        (
            {
                "CLOUD_TPU_TASK_ID": "1",
                "TPU_PROCESS_ADDRESSES": "a:8476,a:8477",
                "MEGASCALE_NUM_SLICES": "2",
                "MEGASCALE_SLICE_ID": "1",
            },
            (4, 3),
        ),
        ({"TPU_WORKER_ID": "1", "TPU_PROCESS_ADDRESSES": "a:8476,b:8476,c:8476"}, (3, 1)),
        ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_PROCESS_ADDRESSES": "local"}, (1, 0)),
        ({"CLOUD_TPU_TASK_ID": "1"}, None),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (8, 5)),
        ({"SLURM_PROCID": "5", "SLURM_NPROCS": "8"}, (8, 5)),
        ({"PMIX_RANK": "5", "SLURM_PROCID": "5", "SLURM_NPROCS": "8"}, (8, 5)),
        ({"PMIX_RANK": "2", "WORLD_SIZE": "4"}, (4, 2)),
        ({"PMIX_RANK": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        ({"PMIX_RANK": "2", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (3, 2)),
        ({"RANK": "2", "WORLD_SIZE": "4", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (4, 2)),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a", "b"]}, "task": {"type": "evaluator", "index": 0}})},
            None,
        ),
        (
            {
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"chief": ["a"], "worker": ["b", "c"], "ps": ["d"]},
                        "task": {"type": "worker", "index": 1},
                    }
                )
            },
            (3, 2),
        ),
        ({}, None),
    ],
)
def test_ranks_are_read_from_launchers(environment: dict[str, str], expected: tuple[int, int] | None) -> None:
    found = rank_from_environment(environment)
    assert (None if found is None else (found.size, found.index)) == expected


def test_a_tpu_worker_without_a_number_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"TPU_WORKER_ID: expected integers, got slice '0', worker 'x'"):
        rank_from_environment({"TPU_WORKER_ID": "x", "TPU_WORKER_HOSTNAMES": "a,b"})


def test_several_tpu_processes_on_one_host_need_their_numbers() -> None:
    environment = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a", "TPU_PROCESS_ADDRESSES": "a:1,a:2"}
    with pytest.raises(PipelineError, match=r"got 2 processes on 1 hosts\. Set CLOUD_TPU_TASK_ID to the number"):
        rank_from_environment(environment)


def test_a_pmix_process_is_asked_for_the_number_of_processes(drive: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "3")
    with pytest.raises(PipelineError, match=r"got only PMIX_RANK=3\. Set WORLD_SIZE to the number of processes"):
        drive.shard()


def test_a_kubernetes_pod_is_asked_for_the_number_of_pods(drive: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    with pytest.raises(PipelineError, match=r"got only JOB_COMPLETION_INDEX=3\. Set WORLD_SIZE to the number"):
        drive.shard()


def test_a_shard_without_arguments_is_the_launchers_rank(
    drive: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PipelineError, match="or a launcher's variables such as WORLD_SIZE and RANK"):
        drive.shard()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert drive.shard() == drive.shard(4, 1)
    drive.shard(3, 0)
    assert "WORLD_SIZE and RANK say 1 of 4" in caplog.text
    monkeypatch.setenv("RANK", "9")
    with pytest.raises(PipelineError, match="expected a rank below the size"):
        drive.shard()


@pytest.mark.parametrize(
    ("shard", "environment", "warns"),
    [
        ((4, 3), {}, False),
        ((2, 1), {}, False),  # two ranks share one model
        ((1, 0), {}, False),
        ((2, 1), {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, True),  # each machine would read everything
        ((2, 1), {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}, False),
        ((4, 0), {}, True),
        ((3, 0), {}, True),
        ((8, 3), {}, True),
    ],
)
def test_shards_that_look_like_a_mistake_warn(
    drive: Pipeline,
    shard: tuple[int, int],
    environment: dict[str, str],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", **environment}.items():
        monkeypatch.setenv(name, value)
    drive.shard(*shard)
    assert ("WORLD_SIZE and RANK say 3 of 4" in caplog.text) is warns
