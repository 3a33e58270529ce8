"""Loader workers' batches in memory mapped by the trainer: correct, never overwritten while held, and returned."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from processes import PATIENCE_S, eventually, gone, run_python, settled
from torch.utils.data import DataLoader

from parquetry.common import CompressedImageCodec, NdarrayCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.memory.arena import SHARED_REGIONS, RegionPool
from parquetry.common.engine.run import jobs
from parquetry.common.plan import plan
from parquetry.torch_plugin import ParquetPipe, as_is
from parquetry.torch_plugin.loader_workers import loader_memory, mapped_regions, relay

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory files")
ROWS, BATCH = 96, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    schema = Unischema(
        "loader",
        [
            UnischemaField("id", np.int64),
            UnischemaField("image", np.uint8, (16, 20, 3), CompressedImageCodec("png")),
            UnischemaField("sweep", np.float32, (100, 4), NdarrayCodec()),
            UnischemaField("points", np.float32, (None, 3), NdarrayCodec()),
            UnischemaField("count", np.uint16),
            UnischemaField("name", str),
        ],
    )
    rows = (
        {
            "id": number,
            "image": np.full((16, 20, 3), number, np.uint8),
            "sweep": np.full((100, 4), number, np.float32),
            "points": np.full((number % 5, 3), number, np.float32),
            "count": number,
            "name": f"row {number}",
        }
        for number in range(ROWS)
    )
    folder = tmp_path_factory.mktemp("loader") / "data"
    write_dataset(folder, schema, rows, row_group_rows=12)
    return str(folder)


@pytest.fixture(autouse=True)
def _each_worker_makes_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise none of these batches would be pickled, see `relay`."""
    monkeypatch.setattr(relay, "_SMALL_BYTES", 0)


@pytest.fixture(autouse=True)
def _all_given_back() -> Iterator[None]:
    """Checks after each test that no memory of an ended worker is still mapped."""
    before = mapped_workers()
    yield
    gc.collect()
    assert settled(lambda: len(mapped_workers() - before), 0) == 0


def mapped_workers() -> set[int]:
    """Returns the workers whose memory is mapped."""
    return {worker for worker, _ in list(mapped_regions._mappings._mapped)}


def loader_of(pipe: Any, **options: Any) -> DataLoader:
    return DataLoader(pipe, **{"batch_size": None, "num_workers": 2, "collate_fn": as_is, **options})


def mapped_addresses() -> list[range]:
    """Returns where workers' regions are mapped into this process."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if len(line) > 5 and "parquetry-loader" in line[5]]
    return [range(int(begin, 16), int(end, 16)) for begin, end in spans]


def tensors_of(batch: dict[str, Any]) -> list[torch.Tensor]:
    found = [value for value in batch.values() if isinstance(value, torch.Tensor) and not value.is_nested]
    jagged = [value for value in batch.values() if isinstance(value, torch.Tensor) and value.is_nested]
    return found + [part for value in jagged for part in (value.values(), value.offsets())]


def assert_whole(batch: dict[str, Any]) -> None:
    """Every field of a batch identifies its rows."""
    rows = batch["id"].tolist()
    for name in ("image", "sweep"):
        expected = torch.tensor(rows).reshape(-1, *[1] * (batch[name].dim() - 1)).expand(batch[name].shape)
        assert torch.equal(batch[name].long(), expected)
    assert batch["count"].tolist() == rows
    assert batch["name"] == [f"row {row}" for row in rows]
    for row, points in zip(rows, batch["points"].unbind(), strict=True):
        assert points.shape == (row % 5, 3)
        assert (points == row).all()


def test_tensors_look_into_the_memory_of_workers(folder: str) -> None:
    seen = 0
    for batch in loader_of(ParquetPipe(folder).shuffle(30, seed=1).batch(BATCH)):
        assert_whole(batch)
        spans = mapped_addresses()
        for tensor in tensors_of(batch):
            assert not tensor.is_shared()  # otherwise torch has copied it
            assert any(tensor.data_ptr() in span for span in spans) or not tensor.numel()
            seen += 1
    assert seen == ROWS // BATCH * 6


def test_held_batches_are_never_overwritten(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds more batches than a worker has regions, and finally all at once."""
    monkeypatch.setattr(loader_memory, "_MOST_REGIONS", 3)
    pipe = ParquetPipe(folder, workers=2).shuffle(30, seed=1).batch(BATCH).repeat(3)
    held = []
    for batch in loader_of(pipe, prefetch_factor=4):
        assert_whole(batch)
        held.append(batch)
    assert len(held) == 3 * ROWS // BATCH
    for batch in held:
        assert_whole(batch)
    assert sorted(row for batch in held for row in batch["id"].tolist()) == sorted(3 * list(range(ROWS)))


@pytest.mark.slow
def test_labels_of_all_batches_can_be_held(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not sent by torch, which would need a descriptor for each of them, and for all other tensors."""
    monkeypatch.setattr(loader_memory, "_MOST_REGIONS", 12)
    monkeypatch.setattr(plan, "_MERGED_BYTES", 0)  # each batch has its own region
    pipe = ParquetPipe(folder, workers=1).batch(BATCH).repeat(10)
    held, copied, before = [], 0, len(os.listdir("/proc/self/fd"))
    for batch in loader_of(pipe, num_workers=1):
        assert_whole(batch)
        assert not any(tensor.is_shared() for tensor in tensors_of(batch))
        spans = mapped_addresses()
        copied += not any(batch["id"].data_ptr() in span for span in spans)
        held.append(batch["id"])
    assert copied > len(held) // 2
    assert len(os.listdir("/proc/self/fd")) < before + len(held) // 2
    assert torch.cat(held).tolist() == 10 * list(range(ROWS))


def test_regions_that_are_copied_are_used_last() -> None:
    pool = RegionPool()
    kinds = [True, False, True]
    made = iter([loader_memory.SharedRegion(is_copied=kind) for kind in kinds])
    pool.use(lambda: next(made))
    regions = [pool.acquire(100) for _ in kinds]
    for region in regions:
        region.end()
    assert [pool.acquire(100).is_copied for _ in kinds] == [False, True, True]


def test_large_tensors_of_many_batches_can_be_held(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_memory, "_MOST_REGIONS", 16)
    monkeypatch.setattr(loader_memory, "_MOST_COPIED_BYTES", 1000)
    monkeypatch.setattr(jobs, "_GROWTH", 1)  # so each batch has a region of its own
    held = list(loader_of(ParquetPipe(folder, workers=1).batch(BATCH).repeat(3), num_workers=1))
    for batch in held:
        assert_whole(batch)
        assert not batch["id"].is_shared()
    assert sum(batch["image"].is_shared() for batch in held) > len(held) // 2


def test_without_memory_files_torch_copies(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.memfd_create

    def refuse(name: str, flags: int) -> int:
        if name == "parquetry-loader":
            raise PermissionError("not in this sandbox")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", refuse)  # workers are forked
    for batch in loader_of(ParquetPipe(folder).batch(BATCH)):
        assert_whole(batch)
        assert batch["image"].is_shared()


def test_writing_into_a_batch_changes_no_other_one(folder: str) -> None:
    for batch in loader_of(ParquetPipe(folder).batch(BATCH).repeat(3)):
        assert_whole(batch)
        for tensor in tensors_of(batch):
            tensor.fill_(1)


@pytest.mark.slow
def test_regions_are_used_again(folder: str) -> None:
    """Otherwise a worker would soon run out, and torch would copy everything after."""
    copied = 0
    for number, batch in enumerate(loader_of(ParquetPipe(folder).batch(BATCH).repeat(20), num_workers=1)):
        copied += number >= 100 and batch["image"].is_shared()
    assert len(mapped_regions._mappings._mapped) <= 2 * loader_memory._MOST_REGIONS
    assert copied < 14  # out of 140


def cut(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns parts of a batch, as a user's function may."""
    image = batch["image"].permute(0, 3, 1, 2)[:, :2, ::3, 5:]
    return {"id": batch["id"], "image": image, "last": batch["sweep"][-1], "one": batch["id"][2], "none": image[:0]}


def test_views_are_sent_as_views(folder: str) -> None:
    pipe = ParquetPipe(folder).shuffle(30, seed=1).batch(BATCH)
    for batch in loader_of(pipe.map(cut)):
        assert batch["image"].shape == (BATCH, 2, 6, 15)
        assert batch["image"].stride() == (16 * 20 * 3, 1, 3 * 20 * 3, 3)
        assert (batch["image"] == batch["id"][:, None, None, None]).all()
        assert (batch["last"] == batch["id"][-1]).all()
        assert batch["one"] == batch["id"][2]
        assert batch["none"].shape == (0, 2, 6, 15)
        assert not batch["image"].is_shared()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"multiprocessing_context": "spawn", "num_workers": 1, "persistent_workers": True}, marks=pytest.mark.slow
        ),
        {"persistent_workers": True},
        {"collate_fn": None},
    ],
    ids=str,
)
def test_loaders_of_all_kinds_give_the_same(folder: str, options: dict[str, Any]) -> None:
    pipe = ParquetPipe(folder).shuffle(30, seed=1, reshuffle_each_iteration=False).batch(BATCH)
    loader = loader_of(pipe, **options)
    for _ in range(2):
        rows = []
        for batch in loader:
            assert_whole(batch)
            rows += batch["id"].tolist()
        assert sorted(rows) == list(range(ROWS))
    del loader


@pytest.mark.slow
def test_a_loader_that_is_left_in_the_middle_gives_everything_back(folder: str) -> None:
    for _ in range(3):
        iterator = iter(loader_of(ParquetPipe(folder).batch(BATCH)))
        held = next(iterator)
        del iterator
        assert_whole(held)


def test_a_forked_child_gives_nothing_back(folder: str) -> None:
    """Its copies of tensors are freed when it ends; the parent still holds its own."""
    fields = ["id", "image", "sweep", "count", "name"]
    iterator = iter(loader_of(ParquetPipe(folder, fields).batch(BATCH).repeat(), num_workers=1))
    held = [next(iterator) for _ in range(4)]

    def given_back() -> list[int]:
        return [int(mapped.head[mapped_regions.RETURNED]) for mapped in mappings._mapped.values()]

    mappings = mapped_regions._mappings
    before = given_back()
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(0 if given_back() == before and mapped_regions._mappings.size_bytes == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert given_back() == before
    for batch in held:
        assert (batch["image"] == batch["id"][:, None, None, None]).all()
    held.clear()
    del batch
    assert all(now > then for now, then in zip(given_back(), before, strict=True))
    del iterator


def test_a_message_without_the_first_one_finds_the_memory_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_memory, "is_visible", lambda: False)
    ours, theirs = get_context("fork").Pipe()
    worker = get_context("fork").Process(target=_send_twice, args=(theirs,), daemon=True)
    worker.start()
    first, second = ours.recv()  # the first one had the descriptor and went elsewhere
    assert len(second) < len(first)
    tensors = ForkingPickler.loads(second)
    assert [tensor.tolist() for tensor in tensors] == [[0.0, 1.0, 2.0], [[7, 7], [7, 7]]]
    changed = ForkingPickler.dumps(tensors)  # from this process, as torch does it
    assert b"_borrow" not in changed
    ours.send("end")
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0
    del tensors
    assert eventually(lambda: worker.pid not in mapped_workers())
    with pytest.raises(PipelineError, match=rf"loader worker {worker.pid}: expected to map \d+ bytes of its memory"):
        ForkingPickler.loads(second)


def _send_twice(connection: Connection) -> None:
    assert loader_memory.share_regions()
    assert loader_memory.share_regions()
    region = SHARED_REGIONS.acquire(mmap.PAGESIZE)
    floats = region.allocate(np.dtype(np.float32), (3,))
    floats[:] = range(3)
    ints = region.allocate(np.dtype(np.int16), (2, 2))
    ints[:] = 7
    region.end()
    tensors = [torch.from_numpy(floats), torch.from_numpy(ints)]
    connection.send([bytes(ForkingPickler.dumps(tensors)) for _ in range(2)])
    assert connection.recv() == "end"


def test_a_region_waits_until_all_its_messages_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = get_context("fork").Pipe()
    worker = get_context("fork").Process(target=_reuse, args=(theirs,), daemon=True)
    worker.start()
    message, again = ours.recv()
    tensor, other = ForkingPickler.loads(message), ForkingPickler.loads(again)
    ours.send("hold")
    assert ours.recv() == "another"
    del tensor
    ours.send("hold one")
    assert ours.recv() == "another"
    assert other.tolist() == [5, 5, 5]
    del other
    ours.send("nothing")
    assert ours.recv() == "the same"
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0


def _reuse(connection: Connection) -> None:
    loader_memory.share_regions()
    region = SHARED_REGIONS.acquire(mmap.PAGESIZE)
    array = region.allocate(np.dtype(np.int64), (3,))
    array[:] = 5
    region.end()
    tensor = torch.from_numpy(array)
    del array
    connection.send([bytes(ForkingPickler.dumps(tensor)) for _ in range(2)])
    del tensor
    for _ in range(3):
        connection.recv()
        next_one = SHARED_REGIONS.acquire(mmap.PAGESIZE)
        next_one.end()
        connection.send("the same" if next_one is region else "another")
        del next_one


def test_arrays_from_elsewhere_are_copied_once() -> None:
    worker = get_context("fork").Process(target=_place, daemon=True)
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0


def _place() -> None:
    loader_memory.share_regions()
    read_only = np.arange(5)
    read_only.flags.writeable = False
    elsewhere = [np.arange(3, dtype=np.float32), np.arange(8).reshape(2, 4).T, read_only, np.zeros((0, 2))]
    with loader_memory.Placer(lambda: 4096) as place:
        tensors = [place(array) for array in elsewhere]
    for tensor, array in zip(tensors, elsewhere, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert not array.nbytes or loader_memory._sharing.find(tensor.data_ptr()) is not None
    with loader_memory.Placer(lambda: 4096) as again:
        assert again(tensors[0].numpy()).data_ptr() == tensors[0].data_ptr()
    assert not (tensors[2] == 9).any()
    tensors[2].fill_(9)
    assert read_only.tolist() == [0, 1, 2, 3, 4]


_FEW_FILES = """
import resource, sys
from torch.utils.data import DataLoader
from parquetry.torch_plugin import ParquetIterable

limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
held = []
try:
    for batch in DataLoader(ParquetIterable(sys.argv[1], ["id"]).repeat().batch(4), batch_size=None, num_workers=2):
        held.append(batch["id"])
except Exception as error:
    print("ulimit -n" in str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [28, 56])
def test_too_few_open_files_are_an_error_that_says_so(folder: str, limit: int) -> None:
    program = [sys.executable, "-c", _FEW_FILES, folder, str(limit)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "True\n", done.stderr  # an error, not a wait for ever, and one that names the limit


_ENDLESS = """
import sys
from torch.utils.data import DataLoader
from parquetry.torch_plugin import ParquetIterable

pipe = ParquetIterable(sys.argv[1], ["id", "image"]).repeat().batch(4)
for batch in DataLoader(pipe, batch_size=None, num_workers=2):
    print("a batch", flush=True)
"""


@pytest.mark.slow
def test_a_trainer_that_is_killed_leaves_no_files(folder: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", _ENDLESS, folder]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as trainer:
        assert trainer.stdout is not None
        for _ in range(20):
            assert trainer.stdout.readline() == b"a batch\n"
        workers = [worker.pid for worker in psutil.Process(trainer.pid).children(recursive=True)]
        assert workers
        trainer.kill()
    assert gone(workers) == []
    assert os.listdir(tmp_path) == []


def test_workers_whose_files_the_trainer_cannot_see_send_them(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_memory, "is_visible", lambda: False)
    monkeypatch.setattr(mapped_regions, "_visible", lambda named: pytest.fail("the descriptor was sent"))
    batches = list(loader_of(ParquetPipe(folder).batch(BATCH)))
    assert len(batches) == ROWS // BATCH
    for batch in batches:
        assert_whole(batch)


def test_a_file_of_another_process_with_the_workers_number_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1 << 16))
    with (tmp_path / "large").open("r+b") as file:
        named = mapped_regions.RegionMemory(os.getpid(), 0, 1, 1 << 12, file.fileno())
        with pytest.raises(PipelineError, match="another file"):
            mapped_regions.borrow(named, None)
    shorter = os.memfd_create(f"parquetry-{mapped_regions.MEMORY_NAME}")
    try:
        named = mapped_regions.RegionMemory(os.getpid(), 0, 1, 1 << 12, shorter)
        with pytest.raises(PipelineError, match="expected to map 4096 bytes of its memory, got"):
            mapped_regions.borrow(named, None)
    finally:
        os.close(shorter)


@pytest.mark.slow
def test_a_worker_that_is_hidden_from_its_trainer_says_so() -> None:
    program = (
        "import ctypes; from parquetry.torch_plugin.loader_workers.loader_memory import is_visible; "
        "seen = is_visible(); is_visible.cache_clear(); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
        "print(seen, is_visible())"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout == "True False\n"
