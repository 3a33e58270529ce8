"""`prefetch_to_device`: order, waits, lifetimes, state and errors, on a device whose copies are late."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, FakePageLock
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import DecodeError, PipelineError, StateError
from parquetry.common.base.memory.arena import SHARED_REGIONS
from parquetry.common.base.metrics.watching import watch
from parquetry.torch_plugin import (
    NestedTensors,
    ParquetIterable,
    ParquetNode,
    ParquetPipe,
    as_is,
    devices,
    prefetch_to_device,
)
from parquetry.torch_plugin.devices import CudaPageLock
from parquetry.torch_plugin.pinned_regions import PINNED_BATCHES
from parquetry.torch_plugin.prefetch import DevicePrefetcher, moved

FACES = [ParquetIterable, ParquetNode, ParquetPipe]
Point = namedtuple("Point", "x y")


def on_fake(loader: Any, device: FakeDevice | None = None, depth: int = 2) -> DevicePrefetcher:
    return DevicePrefetcher(loader, device or FakeDevice(), depth=depth)


def batches(count: int) -> Iterator[dict[str, Any]]:
    return ({"x": torch.arange(4) + 10 * number, "name": [f"b{number}"]} for number in range(count))


def ids_of(batch: dict[str, torch.Tensor]) -> list[int]:
    return batch["id"].tolist()


def plain(batch: Any) -> tuple[str, list[Any]]:
    """Returns the form of a batch, and the values of its tensors."""
    values: list[Any] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        values.append(tensor.tolist())
        return tensor

    return repr({name: type(value) for name, value in moved(batch, keep).items()}), values


def test_each_batch_arrives_once_in_order_and_is_ready_when_it_is_used() -> None:
    device = FakeDevice()
    found = []
    for batch in on_fake(batches(7), device):
        found.append((device.read(batch["x"]).tolist(), batch["name"]))
    assert found == [(batch["x"].tolist(), batch["name"]) for batch in batches(7)]


def test_a_use_before_the_wait_is_noticed_by_the_fake() -> None:
    device = FakeDevice()
    source = torch.arange(4)
    early = device.copy(source, device.side_stream())
    assert early.tolist() != source.tolist()
    with pytest.raises(AssertionError, match="used before its copy is done"):
        device.read(early)
    device.wait(device.current, device.record(device.side_stream()))
    with pytest.raises(AssertionError, match="may be reused"):
        device.read(early)
    del source
    with pytest.raises(AssertionError, match="source was freed"):
        device.run()


def test_the_copy_of_the_next_batch_is_under_way_before_you_get_one() -> None:
    device = FakeDevice()
    given = []

    def loader() -> Iterator[dict[str, torch.Tensor]]:
        for number in range(9):
            given.append(number)
            yield {"x": torch.tensor([number])}

    ahead = []
    for taken, _ in enumerate(on_fake(loader(), device)):
        ahead.append(len(given) - taken - 1)
        assert device.log.count("copy") == len(given)
        device.run()
    assert ahead == [1, 2, 2, 2, 2, 2, 2, 1, 0]
    assert "finish" not in device.log[:-1]


def test_a_host_batch_lives_until_its_copy_is_done_and_no_longer() -> None:
    device, alive = FakeDevice(FakePageLock()), []

    def loader() -> Iterator[torch.Tensor]:
        for number in range(20):
            batch = torch.full((8,), number)
            device.page_lock.locked[batch.data_ptr()] = batch.nbytes  # type: ignore[union-attr]
            alive.append(weakref.ref(batch))
            yield batch
            device.page_lock.locked.clear()  # type: ignore[union-attr]
            del batch

    prefetched = on_fake(loader(), device)
    pass_ = iter(prefetched)
    first = next(pass_)
    gc.collect()
    assert [each() is not None for each in alive] == [True, True]
    device.run()
    assert device.read(first).tolist() == [0] * 8
    for _ in range(8):
        next(pass_)
    assert sum(each() is not None for each in alive) <= 4, "the oldest copies are waited for"
    prefetched.close()
    assert not any(each() is not None for each in alive)


def test_an_abandoned_pass_waits_for_its_copies() -> None:
    device = FakeDevice()
    for _ in on_fake(batches(5), device):
        break
    gc.collect()
    assert device.log[-1] == "finish"
    assert not device.side_stream().work


@pytest.mark.slow
@pytest.mark.parametrize(("face", "depth"), [(ParquetPipe, 1), (ParquetPipe, 5), *((face, 2) for face in FACES)])
def test_the_state_belongs_to_the_batch_you_took(url: str, face: Any, depth: int) -> None:
    def pipe() -> Any:
        return face(url, ["id"]).shuffle(10, seed=3).batch(4)

    every = [batch["id"].tolist() for batch in pipe()]
    for stop in range(len(every) + 1):
        device = FakeDevice()
        prefetched = on_fake(pipe(), device, depth)
        pass_ = iter(prefetched)
        taken = [device.read(next(pass_)["id"]).tolist() for _ in range(stop)]
        state = prefetched.state_dict()
        prefetched.close()
        assert prefetched.state_dict() == state
        again, other = FakeDevice(), pipe()
        rest = [again.read(batch["id"]).tolist() for batch in on_fake(other, again).load_state_dict(state)]
        assert taken + rest == every
        assert [batch["id"].tolist() for batch in pipe().load_state_dict(state)] == rest


@pytest.mark.parametrize("face", FACES)
def test_each_pass_is_the_next_epoch(url: str, face: Any) -> None:
    pipe = ParquetIterable(url, ["id"]).shuffle(10, seed=3).batch(4)
    epochs = [[batch["id"].tolist() for batch in pipe] for _ in range(3)]
    with prefetch_to_device(face(url, ["id"]).shuffle(10, seed=3).batch(4), "cpu") as prefetched:
        assert [[batch["id"].tolist() for batch in prefetched] for _ in range(2)] == epochs[:2]
        state = prefetched.state_dict()
        prefetched.close()
        assert [batch["id"].tolist() for batch in prefetched] == epochs[2]
        if face is not ParquetNode:  # whose state at its end is that end
            prefetched.load_state_dict(state)
            assert [batch["id"].tolist() for batch in prefetched] == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_loaders_resume_after_the_batch_you_took(url: str, kind: Any, workers: int) -> None:
    def loader() -> Any:
        pipe = ParquetIterable(url, ["id"]).shuffle(10, seed=3).batch(4)
        return kind(pipe, batch_size=None, num_workers=workers, collate_fn=as_is)

    every = [batch["id"].tolist() for batch in loader()]
    device = FakeDevice()
    prefetched = on_fake(loader(), device)
    assert len(prefetched) == len(every)
    pass_ = iter(prefetched)
    taken = [device.read(next(pass_)["id"]).tolist() for _ in range(6)]
    state = prefetched.state_dict()
    prefetched.close()
    del pass_
    resumed = prefetch_to_device(loader(), "cpu").load_state_dict(state)
    assert taken + [batch["id"].tolist() for batch in resumed] == every


def test_a_loader_of_nodes_resumes_after_the_batch_you_took(url: str) -> None:
    def loader() -> Any:
        return Loader(ParquetNode(url, ["id"]).shuffle(10, seed=3).batch(4))

    every = [batch["id"].tolist() for batch in loader()]
    prefetched = prefetch_to_device(loader(), "cpu", depth=3)
    pass_ = iter(prefetched)
    taken = [next(pass_)["id"].tolist() for _ in range(6)]
    state = prefetched.state_dict()
    resumed = prefetch_to_device(loader(), "cpu").load_state_dict(state)
    assert taken + [batch["id"].tolist() for batch in resumed] == every


def test_pipes_of_torch_over_ours_resume_after_the_batch_you_took(url: str) -> None:
    def pipe() -> Any:
        return ParquetPipe(url, ["id"]).shuffle(10, seed=3).batch(4).map(ids_of)

    every = list(pipe())
    prefetched = prefetch_to_device(pipe(), "cpu")
    pass_ = iter(prefetched)
    taken = [next(pass_) for _ in range(6)]
    resumed = prefetch_to_device(pipe(), "cpu").load_state_dict(prefetched.state_dict())
    assert taken + list(resumed) == every


def test_the_stats_of_what_it_reads_are_found(url: str) -> None:
    prefetched = prefetch_to_device(DataLoader(ParquetIterable(url, ["id"]).batch(4), batch_size=None), "cpu")
    assert len(list(watch(prefetched))) == 15


def test_an_abandoned_prefetcher_is_freed_at_once(url: str) -> None:
    prefetched = on_fake(ParquetIterable(url, ["id"]).batch(4))
    assert len(list(prefetched)) == 15
    reference = weakref.ref(iter(prefetched))
    gc.disable()
    try:
        del prefetched
        assert reference() is None
    finally:
        gc.enable()


def test_a_position_that_nobody_knows_is_an_error_only_when_you_ask(url: str) -> None:
    rows = DataLoader(ParquetIterable(url, ["id"]), batch_size=4, num_workers=2)
    prefetched = prefetch_to_device(rows, "cpu")
    assert len(list(prefetched)) == 16
    with pytest.raises(StateError, match="expected a loader whose position is known, got DataLoader over rows"):
        prefetched.state_dict()
    plain = prefetch_to_device(DataLoader([1, 2, 3]), "cpu")
    assert len(list(plain)) == 3
    with pytest.raises(StateError, match="whose position is known"):
        plain.state_dict()
    with pytest.raises(StateError, match="expected a loader with a state, got DataLoader over another dataset"):
        plain.load_state_dict({})


def test_errors_come_in_their_place_and_the_loader_continues() -> None:
    class Loader:
        """Its second and fifth batches fail."""

        def __init__(self) -> None:
            self.number = -1

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> torch.Tensor:
            self.number += 1
            if self.number in (1, 4):
                raise DecodeError(f"batch {self.number}")
            if self.number == 6:
                raise StopIteration
            return torch.tensor([self.number])

        def state_dict(self) -> dict[str, int]:
            return {"number": self.number}

    device, loader, found = FakeDevice(), Loader(), []
    prefetched = on_fake(loader, device)
    pass_ = iter(prefetched)
    while True:
        try:
            found.append(device.read(next(pass_)).item())
        except DecodeError as error:
            found.append(str(error))
        except StopIteration:
            break
        assert prefetched.state_dict() == {"number": len(found) - 1}
    assert found == [0, "batch 1", 2, 3, "batch 4", 5]
    assert next(pass_, "end") == "end"
    assert prefetched.state_dict() == {"number": 6}


def test_close_is_idempotent_and_ends_the_pass() -> None:
    device = FakeDevice()
    prefetched = on_fake(batches(5), device)
    pass_ = iter(prefetched)
    next(pass_)
    for _ in range(2):
        prefetched.close()
    assert not device.side_stream().work
    assert list(pass_) == []


def test_every_structure_keeps_its_form() -> None:
    ragged = torch.nested.nested_tensor_from_jagged(
        torch.arange(3.0), torch.tensor([0, 1, 3]), min_seqlen=1, max_seqlen=2
    )
    text, other = ["a", "b"], object()
    value = {
        "dict": OrderedDict(x=torch.ones(2)),
        "point": Point(torch.zeros(1), "y"),
        "tuple": (torch.ones(1), [torch.zeros(2), torch.ones(3)]),
        "nested": NestedTensors(torch.arange(3), [torch.tensor([0, 2, 3])]),
        "words": NestedTensors(["a", "b"], [torch.tensor([0, 1, 2])]),
        "ragged": ragged,
        "text": text,
        "other": other,
        "empty": [],
        "none": None,
    }
    seen = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor + 1

    found = moved(value, move)
    assert list(found) == list(value)
    assert type(found["dict"]) is OrderedDict
    assert found["dict"]["x"].tolist() == [2, 2]
    assert value["dict"]["x"].tolist() == [1, 1]  # type: ignore[index, call-overload]
    assert type(found["point"]) is Point
    assert found["point"].y == "y"
    assert [each.tolist() for each in found["tuple"][1]] == [[1, 1], [2, 2, 2]]
    assert found["nested"].values.tolist() == [1, 2, 3]
    assert found["words"].values == ["a", "b"]
    assert found["ragged"].values().tolist() == [1, 2, 3]
    assert (found["ragged"]._maybe_min_seqlen, found["ragged"]._maybe_max_seqlen) == (1, 2)
    assert found["text"] is text
    assert found["other"] is other
    assert (found["empty"], found["none"]) == ([], None)
    assert len(seen) == 10


def test_every_kind_of_field_arrives_as_it_is_on_the_host(url: str) -> None:
    pipe = ParquetIterable(url).batch(8)
    device = FakeDevice()
    expected = list(pipe)
    for batch, host in zip(on_fake(pipe, device), expected, strict=True):
        device.run()
        assert plain(batch) == plain(host)


@pytest.mark.slow
def test_batches_of_threads_are_copied_from_where_they_were_decoded(url: str) -> None:
    lock = FakePageLock()
    device = FakeDevice(lock)
    pipe = ParquetIterable(url, ["id", "image"], executor="threads", workers=1).repeat(400).batch(120)
    with on_fake(pipe, device) as prefetched:
        for batch in prefetched:
            assert device.read(batch["image"])[:, 0, 0, 0].tolist() == [*range(60)] * 2
            assert device.read(batch["id"]).tolist() == [*range(60)] * 2
            del batch
        assert device.in_place > 150, "of 200 images, all but the first ones, whose size is not known before"
        assert device.pinned_first > 0, "those, and small arrays, lie elsewhere"
        assert lock.locked
    prefetched.close()
    gc.collect()
    region = SHARED_REGIONS.acquire()  # regions that came back are dropped
    region.end()
    gc.collect()
    assert not lock.locked
    assert lock.calls.count("lock") == lock.calls.count("unlock")


def test_a_region_is_unlocked_before_its_memory_is_replaced() -> None:
    lock = FakePageLock()
    PINNED_BATCHES.acquire(lock)
    try:
        for size_bytes in (10_000, 50_000, 5_000_000, 9_000_000):
            SHARED_REGIONS.acquire(size_bytes).end()
            assert len(lock.locked) == 1, "the same region, which grew"
        assert lock.calls == ["lock", *["unlock", "lock"] * 3]
    finally:
        PINNED_BATCHES.release()
    gc.collect()
    SHARED_REGIONS.acquire().end()
    assert not lock.locked


def test_memory_that_cannot_be_locked_is_copied_to_page_locked_memory(url: str) -> None:
    device = FakeDevice(FakePageLock(refuses=True))
    with on_fake(ParquetIterable(url, ["id", "image"]).batch(60), device) as prefetched:
        found = [device.read(batch["image"])[:, 0, 0, 0].tolist() for batch in prefetched]
    assert found == [list(range(60))]
    assert device.in_place == 0
    assert device.pinned_first


def test_two_prefetchers_share_the_locked_regions(url: str) -> None:
    lock = FakePageLock()
    first, second = (on_fake(ParquetIterable(url, ["id"]).batch(60), FakeDevice(lock)) for _ in range(2))
    next(iter(first))
    next(iter(second))
    first.close()
    region = SHARED_REGIONS.acquire(10_000)
    assert "lock" in lock.calls
    assert type(region).__name__ == "PinnedRegion"
    region.end()
    second.close()
    assert type(SHARED_REGIONS.acquire(10_000)).__name__ == "Region"


def test_a_device_or_depth_that_cannot_be_is_refused(url: str) -> None:
    pipe = ParquetIterable(url, ["id"]).batch(4)
    with pytest.raises(PipelineError, match="expected depth of at least 1, got 0"):
        pipe.prefetch_to_device("cpu", 0)
    for device in ("meta", "nothing", *([] if torch.cuda.is_available() else ["cuda"])):
        with pytest.raises(PipelineError, match=f"expected a device that this torch can copy to, got '{device}'"):
            prefetch_to_device(pipe, device)


class Runtime:
    """CUDA's functions, which give ``code``."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls: list[tuple[Any, ...]] = []

    def cudaHostRegister(self, *args: int) -> int:  # noqa: N802  # CUDA's name
        self.calls.append(("register", *args))
        return self.code

    def cudaHostUnregister(self, *args: int) -> int:  # noqa: N802  # CUDA's name
        self.calls.append(("unregister", *args))
        return self.code


def test_cuda_locks_memory_for_all_devices_and_warns_once_if_it_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(0)
    lock = CudaPageLock(torch.device("cuda", 0), runtime)
    monkeypatch.setattr(devices, "_keeps_pages", lambda: True)
    assert lock.lock(4096, 8192)
    lock.unlock(4096)
    assert runtime.calls == [("register", 4096, 8192, 1), ("unregister", 4096)]
    runtime.code = 2
    assert not lock.lock(4096, 8192)
    assert not lock.lock(4096, 8192)
    assert caplog.text.count("cannot lock 8192 bytes of memory (CUDA error 2)") == 1
    monkeypatch.setattr(devices, "_keeps_pages", lambda: False)
    assert not lock.lock(4096, 8192)
    assert len(runtime.calls) == 4


@pytest.mark.parametrize(
    ("release", "keeps"), [("5.4.0-1", False), ("5.10.2", True), ("6.8.0-generic", True), ("", False)]
)
def test_memory_is_locked_only_where_a_fork_leaves_it_in_place(
    monkeypatch: pytest.MonkeyPatch, release: str, keeps: bool
) -> None:
    monkeypatch.setattr(devices.platform, "release", lambda: release)
    monkeypatch.setattr(devices.platform, "system", lambda: "Linux")
    assert devices._keeps_pages.__wrapped__() is keeps


def test_the_time_of_copies_is_part_of_the_wait(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, ticks = [time.perf_counter()], itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0] + 1e-6 * next(ticks))

    class SlowDevice(FakeDevice):
        def copy(self, tensor: torch.Tensor, stream: Any) -> torch.Tensor:
            now[0] += 2.0
            return super().copy(tensor, stream)

    pipe = ParquetPipe(url, ["id"]).batch(20)
    taken = sum(len(batch["id"]) for batch in on_fake(pipe, SlowDevice()))
    stats = pipe.stats()
    assert (taken, stats.elements) == (stats.rows, -(-taken // 20))
    assert stats.waits.device_copy == pytest.approx(2.0 * stats.elements, abs=0.1)
    assert stats.wait_shares["device_copy"] == pytest.approx(stats.wait_share, abs=0.1)
