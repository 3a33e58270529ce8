"""One loader worker makes the batches of all: the same elements as in one process, and a way on from every mishap."""

from __future__ import annotations

import errno
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ids import ids, ids_by_element
from processes import PATIENCE_S, open_files, settled
from spies import spied
from torch.utils.data import DataLoader, _utils, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common import (
    CompressedImageCodec,
    NdarrayCodec,
    Pipeline,
    Unischema,
    UnischemaField,
    mix,
    write_dataset,
)
from parquetry.common.base.errors import NullValueError, ResourceError
from parquetry.common.engine.read.shared_tables import can_share
from parquetry.torch_plugin import NestedTensors, ParquetIterable, ParquetPipe, as_is
from parquetry.torch_plugin.loader_workers import loader_memory, mapped_regions, relay, sent_batches

pytestmark = pytest.mark.skipif(not can_share(), reason="needs memory files and sockets without a file")
ROWS, GROUP, BATCH = 600, 50, 7


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes rows with a field of each kind that messages describe."""
    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(ROWS),
        "half": np.arange(ROWS).astype(np.float16),
        "flag": np.arange(ROWS) % 3 == 0,
        "wide": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(3 * ROWS, np.float32)), 3),
        "name": [f"näme {n}" * (n % 4) for n in range(ROWS)],
        "raw": [b"\0%d" % n for n in range(ROWS)],
        "list": pa.array([list(range(n % 5)) for n in range(ROWS)], pa.list_(pa.int16())),
        "words": pa.array([[f"w{n}"] * (n % 3) for n in range(ROWS)], pa.list_(pa.string())),
    }
    file = tmp_path_factory.mktemp("relay") / "rows.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=GROUP)
    return str(file)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the processes that sent the batches of messages that this process decodes."""
    return spied(monkeypatch, sent_batches, "borrow", lambda memory, descriptor: memory.worker)


def shown(value: Any) -> Any:
    """Returns the value with its types, so that two can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.is_nested, [each.tolist() for each in value.unbind()]
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, NestedTensors):
        return shown([value.values, *value.offsets])
    return type(value), list(map(shown, value)) if isinstance(value, list | tuple) else value


def batches_of(url: str, seed: int | None = 3) -> ParquetPipe[Any]:
    pipe = ParquetPipe(url) if seed is None else ParquetPipe(url).shuffle(100, seed=seed)
    return pipe.batch(BATCH)


def loader(pipe: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(pipe, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_kind_of_field_arrives_as_in_one_process(many: str, workers: int, decoded: list[int]) -> None:
    expected = [shown(batch) for batch in loader(batches_of(many), 0)]
    assert [shown(batch) for batch in loader(batches_of(many), workers)] == expected
    assert len(decoded) >= len(expected)
    assert len(set(decoded)) == workers  # each passed on its own


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes rows of many shapes."""
    rng = np.random.default_rng(1)
    schema = Unischema(
        "Shapes",
        [
            UnischemaField("id", np.int64, ()),
            UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg")),
            UnischemaField("grid", np.float32, (None, None), NdarrayCodec()),
            UnischemaField("mask", np.uint8, (4, 4), CompressedImageCodec("png")),
        ],
    )
    rows = [
        {
            "id": n,
            "image": rng.integers(0, 255, (4 + n % 3, 5 + n % 2, 3), np.uint8),
            "grid": rng.random((n % 4, 2), np.float32),
            "mask": np.full((4, 4), n, np.uint8),
        }
        for n in range(60)
    ]
    folder = tmp_path_factory.mktemp("shapes")
    write_dataset(folder / "coded", schema, rows)
    deep = [[list(range(k)) for k in range(n % 4)] for n in range(60)]
    words = [["w"] * len(each) for each in deep]
    pq.write_table(pa.table({"id": range(60), "deep": deep, "words": words}), folder / "p")
    return str(folder)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("coded", lambda pipe: pipe.select("id", "image", "grid")),
        ("coded", lambda pipe: pipe.select("id", "image", "grid").ngram(length=3, timestamp="id")),
        ("p", lambda pipe: pipe.nested("deep")),
        ("p", lambda pipe: pipe.nested("deep").ngram(length=2, timestamp="id")),
    ],
)
def test_values_of_any_shape_arrive_as_in_one_process(
    shapes: str, name: str, chain: Any, held: bool, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if held:  # the list below holds them, so the trainer copies from all but the first ones
        monkeypatch.setattr(loader_memory, "_MOST_REGIONS", 3)
    regions_of, copied = sent_batches.regions_of, []

    def noting(message: bytes) -> Any:
        regions = regions_of(message)
        copied.extend(is_copied for _, is_copied in regions)
        return regions

    monkeypatch.setattr(sent_batches, "regions_of", noting)

    def pipe() -> Any:
        return chain(ParquetPipe(f"{shapes}/{name}").shuffle(20, seed=1)).batch(4).repeat(6)

    batches = list(loader(pipe()))
    assert [shown(batch) for batch in batches] == [shown(batch) for batch in loader(pipe(), 0)]
    assert decoded
    assert any(copied) == held


@pytest.mark.parametrize(
    "chain",
    [
        lambda url: ParquetPipe(f"{url}/coded", ["id"]).transform(lambda row: row),
        lambda url: ParquetPipe(f"{url}/coded", ["id", "mask"]),  # decoding holds the interpreter lock
        lambda url: ParquetPipe(f"{url}/p", ["id"], on_error="skip"),
        lambda url: ParquetPipe(f"{url}/p", ["id"], executor="sidecar"),
    ],
    ids=["function", "codec", "skip", "sidecar"],
)
def test_workers_make_their_own_batches_where_only_they_can(shapes: str, chain: Any, decoded: list[int]) -> None:
    assert ids(loader(chain(shapes).batch(4))) == list(range(60))
    assert not decoded


class Doubled(ParquetPipe[Any]):
    def __iter__(self) -> Any:
        return ({"id": 2 * batch["id"]} for batch in super().__iter__())


def test_a_subclass_that_changes_batches_gets_the_batches_themselves(many: str) -> None:
    found = ids(loader(Doubled(many, ["id"]).batch(BATCH)))
    assert found == [2 * number for number in range(ROWS)]


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_started_workers_meet_too(many: str, context: str, decoded: list[int]) -> None:
    assert ids(loader(batches_of(many), multiprocessing_context=context)) == ids(loader(batches_of(many), 0))
    assert decoded


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_any_chain_gives_the_same_elements(many: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(["half", "flag", "wide", "name", "raw", "list"]), unique=True))
    face = data.draw(st.sampled_from([ParquetPipe, ParquetIterable]))
    pipe = face(many, ["id", *names])
    if data.draw(st.booleans()):
        pipe = pipe.shuffle(data.draw(st.integers(1, 300)), seed=1)
    if data.draw(st.booleans()):
        pipe = pipe.shard(3, data.draw(st.integers(0, 2)))
    if data.draw(st.booleans()):
        pipe = pipe.skip(data.draw(st.integers(0, 30)))
    pipe = pipe.batch(data.draw(st.integers(1, 60)), data.draw(st.booleans()))
    if data.draw(st.booleans()):
        pipe = pipe.take(data.draw(st.integers(1, 9)))
    if data.draw(st.booleans()):
        pipe = pipe.as_tuple("id", *names)
    options = {"collate_fn": data.draw(st.sampled_from([None, as_is]))}
    workers = data.draw(st.integers(1, 4))
    expected = [shown(batch) for batch in loader(pipe, 0, **options)]
    pipe.set_epoch(0)
    assert [shown(batch) for batch in loader(pipe, workers, **options)] == expected


SELECTED: dict[str, Callable[[Pipeline], Pipeline]] = {
    "rows": lambda rows: rows.batch(BATCH),
    "a filter": lambda rows: rows.where(pc.field("id") > 100).batch(BATCH),
    "windows": lambda rows: rows.ngram(length=3, timestamp="id", overlap=False).batch(BATCH),
    "blocks of lists": lambda rows: rows.concat(20, "list").batch(2),
    "packed lists": lambda rows: rows.pack_rows(20, "list").batch(2),
    "weights": lambda rows: rows.weigh(pc.add(pc.field("id"), 1), 300, seed=1).batch(BATCH),
    "a mix": lambda rows: mix([rows, rows.take(50)], weights=[1, 0.3], seed=2).batch(BATCH),
    "buckets": lambda rows: rows.bucket("list", [2, 3], batch_size=BATCH, fields=["list"]),
    "many passes": lambda rows: rows.repeat(2).batch(40),
}


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_whatever_a_loop_does_with_its_batches_those_of_later_epochs_are_the_same(
    many: str, data: st.DataObject
) -> None:
    rows = Pipeline(many, ["id", "list", *data.draw(st.sets(st.sampled_from(["wide", "name", "flag"])).map(sorted))])
    selected = SELECTED[data.draw(st.sampled_from(sorted(SELECTED)))](rows)
    pipe = data.draw(st.sampled_from([ParquetPipe, ParquetIterable])).from_pipeline(selected)
    kind = data.draw(st.sampled_from([DataLoader, StatefulDataLoader]))
    persistent, ahead = data.draw(st.booleans()), data.draw(st.integers(1, 4))
    workers = data.draw(st.integers(1, 4))
    repeated = kind(pipe, None, num_workers=workers, persistent_workers=persistent, prefetch_factor=ahead)
    for epoch in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3)):
        alone = type(pipe).from_pipeline(selected)
        alone.set_epoch(epoch)
        expected = [shown(batch) for batch in loader(alone, 0)]
        pipe.set_epoch(epoch)
        does = data.draw(st.sampled_from(["changes", "keeps", "leaves"]))
        kept: list[Any] = []
        for number, batch in enumerate(repeated):
            assert shown(batch) == expected[number]
            if does == "leaves" and number == 3:
                break
            if does == "changes":
                batch_of_ones(batch)
            if does == "keeps":
                kept.append(batch)
        assert does == "leaves" or number == len(expected) - 1
        assert [shown(batch) for batch in kept] == expected[: len(kept)]


def batch_of_ones(batch: dict[str, Any]) -> None:
    """Overwrites the numbers of a batch."""
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            (value.values() if value.is_nested else value).fill_(1)


def test_windows_that_share_rows_are_decoded_once(url: str, decoded: list[int]) -> None:
    def windows(workers: int) -> tuple[list[Any], int]:
        pipe = ParquetPipe(url, ["id", "image"]).ngram(length=4, timestamp="id").batch(3)
        found = [shown(batch) for batch in loader(pipe, workers)]
        return found, pipe.stats().read_bytes

    assert windows(3) == windows(0)
    assert decoded


def test_rows_are_read_and_counted_once(many: str) -> None:
    alone, shared = batches_of(many), batches_of(many)
    list(loader(alone, 0))
    list(loader(shared, 4))
    assert shared.stats().rows == alone.stats().rows == ROWS
    assert shared.stats().read_bytes == alone.stats().read_bytes


@pytest.mark.slow
def test_short_passes_end_in_every_worker(many: str) -> None:
    """The worker that makes the batches may end before the trainer has mapped those that others pass on."""
    pipe = ParquetPipe(many, ["id", "name", "list"]).batch(200)
    for _ in range(12):
        assert len(list(loader(pipe, 3))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_passes_that_are_broken_off_give_their_memory_back(many: str, kind: Any, decoded: list[int]) -> None:
    pipe = batches_of(many)
    repeated = kind(pipe, batch_size=None, num_workers=2, persistent_workers=True, prefetch_factor=4)
    for epoch in range(60):  # more than there are regions
        first = next(iter(repeated))
        if epoch % 20 == 0:
            pipe.set_epoch(epoch)
            expected = ids(loader(batches_of(many), 0)) if epoch == 0 else None
            assert expected is None or first["id"].tolist() == expected[:BATCH]
    decoded.clear()
    assert len(ids(repeated)) == ROWS
    assert len(decoded) >= ROWS // BATCH  # no worker had to make its own


@pytest.mark.slow
def test_a_stateful_loader_goes_on_in_the_middle(many: str, decoded: list[int]) -> None:
    whole = ids_by_element(loader(batches_of(many), 0))
    for stop in (1, 2, 5, 40):
        first = StatefulDataLoader(batches_of(many), batch_size=None, num_workers=3)
        begun = iter(first)
        taken = [next(begun)["id"].tolist() for _ in range(stop)]
        state = first.state_dict()
        del begun
        second = StatefulDataLoader(batches_of(many), batch_size=None, num_workers=3)
        second.load_state_dict(state)
        decoded.clear()
        assert taken + ids_by_element(second) == whole
        assert decoded


def test_a_batch_that_fails_is_an_error_and_the_others_arrive(tmp_path: Path) -> None:
    numbers = pa.array([None if n == 50 else float(n) for n in range(100)])
    pq.write_table(pa.table({"id": range(100), "x": numbers}), tmp_path / "nulls.parquet", row_group_size=10)

    def outcomes(workers: int) -> list[Any]:
        found: list[Any] = []
        elements = iter(loader(ParquetPipe(str(tmp_path)).batch(BATCH), workers))
        while True:
            try:
                found.append(next(elements)["id"].tolist())
            except NullValueError:
                found.append("null")
            except StopIteration:
                return found

    assert outcomes(3) == outcomes(0)
    assert outcomes(0).count("null") == 1


def _break_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, begun = relay.Encoder.__call__, []

    def breaking(*arguments: Any) -> Iterator[bytes]:
        begun.append(1)
        if len(begun) > 2:
            raise BufferError
        return encode(*arguments)

    monkeypatch.setattr(relay.Encoder, "__call__", breaking)


def _without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay._Inbox, "descriptor", lambda self: None)


def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_ADDRESS", "/nowhere/at/all")


def _send_no_more_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    send, begun = socket.send_fds, []

    def sending(*arguments: Any) -> int:
        begun.append(1)
        if len(begun) == 2:
            raise OSError(errno.ETOOMANYREFS, "the system carries too many")
        return send(*arguments)

    monkeypatch.setattr(socket, "send_fds", sending)


def start_no_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lets threads of this name fail as they do when there are too many, in forked workers, too."""
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)


def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start_no_thread(monkeypatch, "parquetry-relay")


MISHAPS = [_break_encoding, _without_descriptors, _no_address, _send_no_more_descriptors, _no_thread]


@pytest.mark.slow
@pytest.mark.parametrize("mishap", MISHAPS)
def test_workers_make_their_own_batches_after_a_mishap(
    many: str, mishap: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mishap(monkeypatch)  # in forked workers, too
    monkeypatch.setattr(relay, "_MEETING_S", 0.3)
    for batch_size in (1, BATCH):
        pipe, alone = (ParquetPipe(many).batch(batch_size).take(400) for _ in range(2))
        assert ids(loader(pipe, 3, multiprocessing_context="fork")) == ids(loader(alone, 0))


def test_a_trainer_with_too_many_threads_still_gets_every_batch(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(loader(batches_of(many), 0))
    with monkeypatch.context() as patched:
        start_no_thread(patched, "parquetry-loader")
        assert ids(loader(batches_of(many), 2)) == expected
    assert mapped_regions._mappings.size_bytes
    assert ids(loader(batches_of(many), 1)) == expected  # memory of workers that ended is noticed with that of this one
    assert settled(lambda: mapped_regions._mappings.size_bytes, 0) == 0


def test_a_worker_with_too_many_threads_says_so(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start_no_thread(monkeypatch, "parquetry-trainer")
    with pytest.raises(ResourceError, match=r"can't start new thread.*RLIMIT_NPROC"):
        list(loader(batches_of(many), 2, multiprocessing_context="fork"))


def _stay_away(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    if worker == 1:
        info.dataset._datapipe._meeting = None


def _ask_for_less(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    if worker == 1:
        info.dataset._datapipe._pipeline = info.dataset._datapipe._pipeline.with_stages([]).batch(3)


def test_a_worker_that_does_not_come_is_not_waited_for_long(
    many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_MEETING_S", 0.3)
    log = tmp_path / "log"
    monkeypatch.setattr(relay._LOGGER, "info", lambda text, *given: log.write_text(text % given))
    apart = loader(batches_of(many), 2, worker_init_fn=_stay_away, multiprocessing_context="fork")
    assert ids(apart) == ids(loader(batches_of(many), 0))
    assert "did not all meet" in log.read_text()


@pytest.mark.parametrize("late", [0, 1])
def test_workers_of_a_pass_that_is_broken_off_do_not_wait_for_those_that_have_not_started(
    many: str, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, goes_on = get_context("fork").Event(), get_context("fork").Event()
    connected = relay._connected

    def start(worker: int) -> None:
        if worker == late:
            goes_on.wait(PATIENCE_S)

    def noted(address: str) -> socket.socket:
        waits.set()
        return connected(address)

    monkeypatch.setattr(relay, "_connected", noted)
    monkeypatch.setattr(relay, "_MEETING_S", 10 * PATIENCE_S)
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", PATIENCE_S)  # then torch kills workers that have not ended
    begun: Any = iter(loader(batches_of(many), worker_init_fn=start, multiprocessing_context="fork"))
    assert waits.wait(PATIENCE_S)  # the other worker waits for this one
    stop = begun._workers_done_event.set

    def stop_and_go_on() -> None:
        stop()
        goes_on.set()

    killed = []
    for worker in begun._workers:
        worker.terminate = lambda worker=worker: killed.append(worker) or worker.kill()
    begun._workers_done_event.set = stop_and_go_on
    begun._shutdown_workers()
    assert killed == []


def test_workers_with_different_pipelines_make_their_own_batches(many: str) -> None:
    found = ids_by_element(loader(batches_of(many), 2, worker_init_fn=_ask_for_less))
    assert found[:4:2] == ids_by_element(loader(batches_of(many), 0))[:4:2]
    assert found[1:4:2] == [[3, 4, 5], [9, 10, 11]]


def test_strangers_at_the_meeting_are_turned_away(many: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "\0parquetry-relay-test"
    monkeypatch.setattr(relay, "_ADDRESS", name)

    over = threading.Event()

    def intrude() -> None:
        while not over.is_set():
            with socket.socket(socket.AF_UNIX) as stranger:
                if stranger.connect_ex(name) == 0:
                    stranger.sendall(b"hello")
                    return

    intruder = threading.Thread(target=intrude)
    intruder.start()
    try:
        assert ids(loader(batches_of(many), 2, multiprocessing_context="fork")) == ids(loader(batches_of(many), 0))
    finally:
        over.set()
        intruder.join()


def test_held_batches_keep_their_values(many: str) -> None:
    kept = [(batch["id"], batch["list"]) for batch in loader(ParquetPipe(many).batch(2), 2)]
    assert torch.cat([numbers for numbers, _ in kept]).tolist() == list(range(ROWS))
    assert [each.tolist() for _, lists in kept for each in lists.unbind()] == [list(range(n % 5)) for n in range(ROWS)]


@pytest.mark.parametrize(("files", "multiples"), [(60, 1), (256, 1), (512, 2), (1024, 4), (65536, 4)])
def test_a_producer_keeps_to_the_limit_on_open_files(
    files: int, multiples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_memory._sharing, "most", 0)  # restored afterwards
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    loader_memory.make_for(8)
    assert loader_memory._sharing.most == multiples * loader_memory._MOST_REGIONS


@pytest.mark.slow
def test_passes_leave_no_descriptor_behind(many: str) -> None:
    repeated = loader(batches_of(many), 2, persistent_workers=True)

    def opened(regions: bool) -> int:
        files = [name for worker in repeated._iterator._workers for name in open_files(pid=worker.pid)]  # type: ignore[union-attr]
        return sum((f"parquetry-{mapped_regions.MEMORY_NAME}" in name) == regions for name in files)

    for _ in range(3):
        assert len(ids(repeated)) == ROWS
    before = opened(False)
    for _ in range(12):
        assert len(ids(repeated)) == ROWS
    assert settled(lambda: opened(False), before) <= before
    assert opened(True) <= 2 * loader_memory._MOST_REGIONS + relay._OPEN_REGIONS
