"""Calls that not each Unix has stand in `base/platform` alone; their twins do the same; threads need none of them."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from processes import run_python

from parquetry.common.base.platform import files, processes, sockets

ROOT = Path(__file__).resolve().parents[4]
CALLS = re.compile(
    r"memfd_create|sched_[gs]etaffinity|posix_fadvise|posix_fallocate|preadv|pidfd|eventfd|SOCK_SEQPACKET|O_TMPFILE"
    r"|SO_PEERCRED|CMSG_CLOEXEC|F_OFD|MADV_|\bprctl\(\w|[\"'](f\")?/(proc|sys)/|[\"']/dev/shm"
)


def test_calls_that_not_each_unix_has_stand_in_one_place() -> None:
    wrong = []
    for path in [each for folder in ("common", "torch_plugin", "tf_plugin") for each in (ROOT / folder).rglob("*.py")]:
        if path.parent != ROOT / "common" / "base" / "platform":
            code = re.sub(r'"""(?s:.*?)"""|#.*', "", path.read_text(encoding="utf-8"))
            wrong += [f"{path.relative_to(ROOT)}: {match[0]}" for match in CALLS.finditer(code)]
    assert wrong == []


def test_scattered_reads_are_the_same_without_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(100)))
    descriptor = os.open(path, os.O_RDONLY)
    results = []
    for hidden in (False, True):
        if hidden:
            monkeypatch.delattr(os, "preadv", raising=False)
        buffers = [bytearray(7), memoryview(bytearray(5)).cast("b"), bytearray(20)]
        results.append((files.read_at(descriptor, buffers, 80), *map(bytes, buffers)))
    os.close(descriptor)
    assert (
        results[0] == results[1] == (20, bytes(range(80, 87)), bytes(range(87, 92)), bytes(range(92, 100)) + bytes(12))
    )


def test_files_without_a_name_and_advice_have_twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("O_TMPFILE", "posix_fadvise", "RWF_NOWAIT", "sched_getaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    descriptor = files.nameless_file(str(tmp_path))
    os.write(descriptor, b"x" * 100)
    assert os.listdir(tmp_path) == []
    files.read_ahead(descriptor, 0, 100)
    assert not files.is_cached(descriptor, 0)
    assert files.mapped(descriptor, 100).to_pybytes() == b"x" * 100
    assert processes.usable_processors() == (os.cpu_count() or 1)
    os.close(descriptor)


def test_what_has_no_twin_is_an_error_or_known_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((socket, "SOCK_SEQPACKET"), (socket, "SO_PEERCRED"), (os, "pidfd_open")):
        monkeypatch.delattr(module, name, raising=False)
    with pytest.raises(OSError, match=r'which sidecars need: use executor="threads"'):
        sockets.packet_pair()
    with socket.socket(socket.AF_UNIX) as connection:
        assert sockets.user_of(connection) is None
    with pytest.raises(OSError, match="no descriptors of processes"):
        processes.end_of(os.getpid())


@pytest.mark.slow
def test_threads_need_nothing_that_is_hidden() -> None:
    result = run_python("-c", PROGRAM.replace("TESTS", str(ROOT / "tests")))
    assert result.stdout.splitlines() == ["sidecar OSError", "500 500 500 True"], result.stderr


PROGRAM = """
import sys, tempfile
sys.path.append("TESTS")
import laptop
from parquetry import Pipeline, Unischema, UnischemaField, write_dataset
schema = Unischema("rows", [UnischemaField("id", "int64"), UnischemaField("x", "float32", (300,)), UnischemaField("text", "str")])
rows = [{"id": n, "x": [n] * 300, "text": str(n)} for n in range(500)]
with tempfile.TemporaryDirectory() as url, tempfile.TemporaryDirectory() as kept:
    write_dataset(url, schema, rows, row_group_rows=50)
    pipeline = Pipeline(url).where([("id", ">=", 0)]).cache(kept).shuffle(100, seed=7)
    try:
        list(pipeline.with_options(executor="sidecar"))
    except OSError as error:
        print("sidecar", type(error).__name__)
    mapped = list(pipeline.map(lambda row: {**row, "id": row["id"] + 1}).batch(10))
    iterator = iter(pipeline.batch(10))
    first = [next(iterator) for _ in range(20)]
    later = iter(pipeline.batch(10))
    later.load_state_dict(iterator.state_dict())
    rest = list(later)
    small = list(Pipeline(url).with_options(memory_limit=1 << 20).shuffle(500, seed=1).batch(10))
    ids = sorted(n for batch in [*first, *rest] for n in batch["id"].tolist())
    print(sum(len(b["id"]) for b in mapped), sum(len(b["id"]) for b in small), len(ids), ids == list(range(500)))
"""
