"""A store that fails now and then: reads are retried, and the rows equal those of a reliable store."""

from __future__ import annotations

import errno
import itertools
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from builders import build
from delta_tables import bitmap, framed
from fsspec.implementations.memory import MemoryFile
from memory_store import Store
from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.deletes import deleted_rows
from parquetry.common.dataset.row_groups import RowGroups
from parquetry.common.dataset.table import BITMAP, RowDeletes, Table, TableFile
from parquetry.common.storage import hedged_reads, retries
from parquetry.common.storage.file_versions import FileVersion
from parquetry.common.storage.retries import ATTEMPTS, FEW_ATTEMPTS, is_transient, retry_if_damaged, with_retries
from parquetry.common.storage.store_answers import StoreError, told
from parquetry.common.tables.delta_log import live_files

Fault = Callable[[], Exception]


class AnswerError(Exception):
    """An error as raised by aiohttp, gcsfs and others."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status}, url='https://store/part?X-Signature=secret'")
        self.status = status


class ClientError(Exception):
    """An error as raised by botocore."""

    def __init__(self, status: int) -> None:
        super().__init__("An error occurred")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class FaultyStore(Store):
    """A store whose reads fail with ``faults``, one after the other; ``None`` = the read succeeds."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.faults: Iterator[Fault | None] = iter(())

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        store = self

        class File(MemoryFile):
            def read(self, size: int = -1) -> bytes:
                fault = next(store.faults, None)
                if fault is not None:
                    raise fault()
                return bytes(super().read(size))

        return File(self, path, self.files[path])


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    built = build(tmp_path, [[5, 5], [5]], names=("id", "tags"))
    result = FaultyStore(name=str(tmp_path), says="tag")  # about which nothing is known yet
    for path in sorted(Path(built.url).glob("*.parquet")):
        result.put_file_bytes(f"data/{path.name}", path.read_bytes())
    return result


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)


BUSY: dict[str, Fault] = {
    "503 that fsspec calls missing": lambda: _caused(FileNotFoundError("part"), AnswerError(503)),
    "time-out": lambda: TimeoutError(),
    "reset": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "no route": lambda: OSError(errno.ENETUNREACH, "Network is unreachable"),
    "no name for a moment, which fsspec calls missing": lambda: _caused(
        FileNotFoundError("part"),
        OSError("Cannot connect to host a:443 ssl:default [Temporary failure in name resolution]"),
    ),
    "503": lambda: AnswerError(503),
    "SlowDown": lambda: OSError(
        "An error occurred (SlowDown) when calling GetObject: Please reduce your request rate."
    ),
    "500 of botocore": lambda: ClientError(500),
    "arrow": lambda: OSError("When reading information: AWS Error NETWORK_CONNECTION during HeadObject operation"),
    "cause": lambda: _caused(RuntimeError("it failed"), AnswerError(429)),
    "cut": lambda: OSError("Tried reading 100 bytes starting at position 4 from file but only got 50"),
}


def _pipeline(store: FaultyStore) -> Pipeline:
    return Pipeline("data", filesystem=store, executor="threads", workers=1)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("fault", BUSY.values(), ids=BUSY)
def test_rows_and_order_equal_those_of_a_store_that_does_not_fail(store: FaultyStore, fault: Fault) -> None:
    expected = [row["id"] for row in _pipeline(store).shuffle(4, seed=1)]
    store.faults = iter([fault] * (FEW_ATTEMPTS - 1))
    iterator = iter(_pipeline(store).shuffle(4, seed=1))
    assert [row["id"] for row in iterator] == expected
    assert iterator.stats().retries == FEW_ATTEMPTS - 1
    store.put_file_bytes("data/another.parquet", store.files["data/part-000.parquet"])
    store.faults = iter([fault])  # for its footer
    assert len(list(_pipeline(store))) == len(expected) + 10
    assert next(store.faults, "all") == "all"


@pytest.mark.parametrize("damaged", [FEW_ATTEMPTS - 1, FEW_ATTEMPTS])
def test_damage_on_the_way_is_read_again(store: FaultyStore, damaged: int) -> None:
    calls = iter(range(FEW_ATTEMPTS))

    def read() -> str:
        if next(calls) < damaged:
            raise DatasetError("part-000") from OSError("invalid page header")
        return "rows"

    remote = pafs.PyFileSystem(pafs.FSSpecHandler(store))
    if damaged < FEW_ATTEMPTS:
        assert retry_if_damaged(remote, read, "part-000") == "rows"
    else:
        with pytest.raises(DatasetError, match="part-000"):
            retry_if_damaged(remote, read, "part-000")
    assert next(calls, None) is None


def test_a_fault_that_stays_is_an_error_that_says_what_to_check(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    len(_pipeline(store))
    store.faults = iter([BUSY["503"]] * 1000)
    with pytest.raises(DatasetError) as caught:
        list(_pipeline(store))
    assert f"the store failed {ATTEMPTS} times, most recently: 503, url='https://store/part'" in str(caught.value)
    assert "row group" in str(caught.value)
    assert "Check the network" in str(caught.value)
    assert "secret" not in str(caught.value) + caplog.text
    store.put_file_bytes("data/another.parquet", store.files["data/part-000.parquet"])
    with pytest.raises(DatasetError, match=r"another\.parquet: the footer cannot be read, the store failed 8 times"):
        list(_pipeline(store))


@pytest.mark.parametrize(
    "error",
    [
        OSError("Parquet magic bytes not found in footer"),
        OSError("expected 500 rows, got 503"),
        MemoryError(),
        KeyError("status"),
    ],
)
def test_errors_that_would_repeat_are_raised_at_once(store: FaultyStore, error: Exception) -> None:
    asked = []

    def read() -> None:
        asked.append(1)
        raise error

    assert not is_transient(error)
    with pytest.raises(type(error)) as caught:
        with_retries(_arrow(store), read, "file")
    assert caught.value is error
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (FileNotFoundError("part-000.parquet"), "no longer there"),
        (_caused(FileNotFoundError("part-000.parquet"), AnswerError(404)), "no longer there"),
        (AnswerError(404), "no longer there"),
        (AnswerError(410), "no longer there"),
        (OSError("AWS Error NO_SUCH_KEY during GetObject operation"), "no longer there"),
        (PermissionError("AccessDenied: timed out session"), "credentials"),
        (ClientError(403), "credentials"),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), "credentials"),
        (OSError("AWS Error UNKNOWN (HTTP status 301) during HeadObject"), "Name its region"),
        (OSError(errno.EREMCHG, "Moved Permanently"), "Name its region"),
        (AnswerError(501), "Check the network"),
    ],
)
def test_an_answer_of_the_store_is_given_at_once_with_its_remedy(
    store: FaultyStore, error: Exception, advice: str
) -> None:
    asked = []

    def read() -> None:
        asked.append(1)
        raise error

    assert not is_transient(error)
    with pytest.raises(StoreError, match="the store answered") as caught:
        with_retries(_arrow(store), read, "file")
    assert advice in caught.value.advice
    assert len(asked) == 1
    len(_pipeline(store))
    store.faults = iter([lambda: error] * 1000)
    with pytest.raises(DatasetError, match=rf"part-000\.parquet, row group 0: cannot be read.*{advice}") as failed:
        list(_pipeline(store))
    assert "damaged" not in str(failed.value)
    assert "secret" not in "".join(traceback.format_exception(failed.value))


def test_a_cut_answer_is_asked_for_a_few_times_and_a_local_file_once(store: FaultyStore) -> None:
    for filesystem, count in ((_arrow(store), FEW_ATTEMPTS), (pafs.LocalFileSystem(), 1)):
        asked = []

        def read(asked: list[int] = asked) -> None:
            asked.append(1)
            raise BUSY["cut"]()

        with pytest.raises(OSError, match="but only got 50"):
            with_retries(filesystem, read, "file")
        assert len(asked) == count


def test_an_error_is_reported_on_one_line_without_signatures() -> None:
    assert told(OSError("GET https://a/b?sig=1&c=2\n failed. ")) == "GET https://a/b failed"
    refused = _caused(FileNotFoundError("https://a/b"), OSError("Cannot connect to host a:443"))
    assert told(refused) == "https://a/b (Cannot connect to host a:443)"
    assert told(TimeoutError()) == "TimeoutError"


def _arrow(store: FaultyStore) -> Any:
    return pafs.PyFileSystem(pafs.FSSpecHandler(store))


def test_a_read_that_is_never_answered_changes_no_row(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [row["id"] for row in _pipeline(store)]
    answers = threading.Event()
    monkeypatch.setattr(hedged_reads, "SLOW_S", 0.05)
    store.faults = iter([None, lambda: OSError(f"answered: {answers.wait(PATIENCE_S)}")])
    iterator = iter(_pipeline(store))
    assert [row["id"] for row in iterator] == expected
    assert iterator.stats().retries >= 1
    answers.set()


def test_a_store_that_never_answers_is_an_error(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    len(_pipeline(store))
    answers = threading.Event()
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.01)
    store.faults = iter([lambda: OSError(f"answered: {answers.wait(PATIENCE_S)}")] * 1000)
    with pytest.raises(DatasetError, match=r"failed 8 times, most recently: the store timed out: expected a response"):
        list(_pipeline(store))
    answers.set()


def test_the_attempts_at_a_read_have_a_time_limit_in_total(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    len(_pipeline(store))
    answers = threading.Event()
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.06)
    monkeypatch.setattr(hedged_reads, "PATIENCE_S", 1.1)  # which two attempts leave less than a second of
    store.faults = iter([lambda: OSError(f"answered: {answers.wait(PATIENCE_S)}")] * 1000)
    with pytest.raises(DatasetError, match=r"failed [12] times, most recently: the store timed out"):
        list(_pipeline(store))
    answers.set()


def test_rows_do_not_change_if_the_store_loses_one_read_in_six(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [row["id"] for row in _pipeline(store).repeat(20)]
    answers, reads = threading.Event(), itertools.count(1)
    monkeypatch.setattr(hedged_reads, "SLOW_S", 0.02)
    monkeypatch.setattr(retries, "ATTEMPTS", 1)  # all within one attempt at each read

    def fault() -> Exception:
        return OSError(f"answered: {answers.wait(PATIENCE_S)}")

    store.faults = (fault if next(reads) % 6 == 0 else None for _ in itertools.repeat(None))
    assert [row["id"] for row in _pipeline(store).repeat(20)] == expected
    answers.set()


def test_a_checkpoint_of_a_delta_table_is_read_again(store: FaultyStore) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"add": [{"path": f"{number}.parquet", "size": number} for number in range(3)]}), sink)
    store.put_file_bytes("table/_delta_log/00000000000000000000.checkpoint.parquet", sink.getvalue().to_pybytes())
    store.faults = iter([BUSY["503"]])
    assert [file["path"] for file in live_files(_arrow(store), "table", 0)] == ["0.parquet", "1.parquet", "2.parquet"]
    assert next(store.faults, "all") == "all"
    store.faults = iter([BUSY["503"]] * 1000)
    with pytest.raises(DatasetError, match=r"Delta checkpoint .*the store failed 8 times.*Check the network"):
        live_files(_arrow(store), "table", 0)


def test_deleted_rows_are_read_again(store: FaultyStore) -> None:
    data = bitmap([1, 5])
    store.put_file_bytes("table/vector.bin", framed(data))
    item = RowDeletes(kind=BITMAP, path="table/vector.bin", offset=0, size_bytes=len(data), count=2)
    file = TableFile(version=FileVersion(path="table/a.parquet", size_bytes=1), location="a.parquet", deletes=(0,))
    table = Table(kind="delta", root="table", identity="", version="0", columns=(), files=(file,), deletes=(item,))
    one = np.zeros(1, np.int64)
    groups = RowGroups(file=one, group=one, rows=np.array([10]))
    dataset: Any = SimpleNamespace(filesystem=_arrow(store), table=table, row_groups=groups)
    store.faults = iter([BUSY["503"]])
    assert deleted_rows(dataset)[0].tolist() == [1, 5]
    assert next(store.faults, "all") == "all"
