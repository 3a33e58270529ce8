"""Which decoding runs in the reader's threads, and which in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.faults import workers_of
from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    Pipeline,
    Unischema,
    UnischemaField,
    mix,
    write_dataset,
)
from parquetry.common.apps.testing import assert_same
from parquetry.common.schema import images
from parquetry.common.transport.sidecar.idle_pool import IDLE
from parquetry.common.transport.sidecar.runners import needs_workers

Chain = Callable[[Pipeline], Pipeline]

SCHEMA = Unischema(
    "kinds",
    [
        UnischemaField("id", np.int64),
        UnischemaField("photo", np.uint8, (9, 7, 3), CompressedImageCodec("jpeg")),
        UnischemaField("mask", np.uint8, (9, 7), CompressedImageCodec("png")),
        UnischemaField("array", np.float32, (3,), NdarrayCodec()),
        UnischemaField("zipped", np.float32, (3,), CompressedNdarrayCodec()),
    ],
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    rows = [
        {
            "id": number,
            "photo": random.integers(0, 256, (9, 7, 3), np.uint8),
            "mask": random.integers(0, 256, (9, 7), np.uint8),
            "array": random.standard_normal(3, np.float32),
            "zipped": random.standard_normal(3, np.float32),
        }
        for number in range(40)
    ]
    folder = tmp_path_factory.mktemp("runners") / "data"
    write_dataset(folder, SCHEMA, rows, row_group_rows=10)
    return folder


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "id": row["id"] * 2}


@pytest.mark.parametrize(
    ("fields", "chain", "workers", "expected"),
    [
        (["id", "array"], lambda chain: chain, 2, False),
        (["id", "photo"], lambda chain: chain, 2, False),
        (["id", "photo"], lambda chain: chain, 16, False),
        (["id", "photo"], lambda chain: chain, 17, True),  # one interpreter lock is a bottleneck for so many
        (["id", "array"], lambda chain: chain, 17, False),
        (["id", "mask"], lambda chain: chain, 2, True),
        (["id", "zipped"], lambda chain: chain, 2, True),
        (["photo", "mask"], lambda chain: chain, 2, True),
        (["id", "mask"], lambda chain: chain.ngram(length=3, timestamp="id"), 2, False),
        (["id", "photo"], lambda chain: chain.ngram(length=3, timestamp="id"), 17, False),
        (["id"], lambda chain: chain.transform(double), 2, True),
    ],
)
def test_processes_decode_what_threads_would_not_speed_up(
    url: Path, fields: list[str], chain: Chain, workers: int, expected: bool
) -> None:
    assert needs_workers(chain(Pipeline(url, fields)).plan().program, workers) == expected


@pytest.mark.parametrize(("field", "expected"), [("photo", False), ("mask", True)])
def test_a_mix_needs_workers_if_its_pipelines_do(url: Path, field: str, expected: bool) -> None:
    chains = [Pipeline(url, [field]), Pipeline(url, [field]).shuffle(10, seed=2)]
    assert needs_workers(mix(chains, seed=1).plan().program, 2) == expected


def test_jpeg_without_its_fast_decoder_goes_to_processes(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "simplejpeg", None)
    assert needs_workers(Pipeline(url, ["photo"]).plan().program, 2)


@pytest.mark.parametrize(("field", "processes"), [("photo", 0), ("mask", 2)])
def test_both_give_the_same_batches(url: Path, field: str, processes: int) -> None:
    IDLE.close()
    threads = Pipeline(url, ["id", field]).shuffle(20, seed=4).batch(6)
    before = set(psutil.Process().children())
    iterator = iter(Pipeline(url, ["id", field], executor="sidecar", workers=2).shuffle(20, seed=4).batch(6))
    first = next(iterator)
    [reader] = set(psutil.Process().children()) - before
    assert len(workers_of(reader)) == processes
    assert_same([first, *iterator], list(threads))
