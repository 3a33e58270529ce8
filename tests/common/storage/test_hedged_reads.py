"""A slow read is retried once, and a read that never answers fails."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
from processes import PATIENCE_S, exit_status_of_fork

from parquetry.common.base.metrics.counters import Count, Counters, add, counting
from parquetry.common.storage import hedged_reads
from parquetry.common.storage.hedged_reads import hedged_read
from parquetry.common.storage.latencies import latencies_of
from parquetry.common.storage.request_slots import held_here


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long for a read that ends by itself."""
    for name in ("SLOW_S", "SILENT_S", "QUESTION_S"):
        monkeypatch.setattr(hedged_reads, name, PATIENCE_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedged_reads, "SLOW_S", 0.02)


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Reads wait for this event; the test ends only after they do."""
    event = threading.Event()
    yield event
    event.set()


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "parquetry-store"]


def test_an_answer_and_an_error_come_as_they_are() -> None:
    assert hedged_read(lambda: [1], "a file") == [1]
    with pytest.raises(KeyError, match="gone"):
        hedged_read(lambda: {}["gone"], "a file")


def test_one_thread_serves_all_reads_of_a_thread() -> None:
    found = {hedged_read(threading.get_ident, "a file") for _ in range(20)}
    assert len(found) == 1
    assert threading.get_ident() not in found


@pytest.mark.usefixtures("impatient")
def test_a_straggler_is_overtaken(stuck: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    calls = iter([True, False])
    counters = Counters()

    def read() -> str:
        if next(calls):
            stuck.wait(PATIENCE_S)
            return "late"
        return "soon"

    with counting(counters):
        assert hedged_read(read, "file a, row group 3") == "soon"
    assert "file a, row group 3: no response from the store" in caplog.text
    assert counters.totals()[Count.RETRIES] == 1


@pytest.mark.usefixtures("impatient")
def test_a_second_read_that_fails_leaves_time_for_the_first(stuck: threading.Event) -> None:
    calls = iter([True, False])

    def read() -> str:
        if next(calls):
            stuck.wait(PATIENCE_S)
            return "late"
        stuck.set()
        raise OSError("busy")

    assert hedged_read(read, "a file") == "late"


@pytest.mark.usefixtures("impatient")
def test_each_lost_request_is_replaced_though_the_share_of_hedged_ones_is_used_up(
    stuck: threading.Event, tmp_path: object
) -> None:
    endpoint, calls = f"test {tmp_path}", []
    while latencies_of(endpoint).may_ask_twice():
        pass

    def read() -> int:
        calls.append(1)
        return len(calls) if len(calls) == 5 or stuck.wait(PATIENCE_S) else 0

    assert hedged_read(read, "a file", endpoint=endpoint) == 5


def test_the_thread_of_a_read_that_timed_out_ends_with_it_though_the_error_is_kept(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.02)
    threads: list[threading.Thread] = []

    def read() -> None:
        threads.append(threading.current_thread())
        stuck.wait(PATIENCE_S)

    with pytest.raises(TimeoutError) as raised:
        hedged_read(read, "a file")
    stuck.set()
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()
    assert raised.value.__traceback__ is not None


def test_a_request_that_nobody_waits_for_is_cancelled(impatient: None, stuck: threading.Event) -> None:
    cancelled, calls = threading.Event(), iter([True, False])

    def read() -> str:
        if next(calls):
            held = held_here()
            assert held is not None
            with held.when_closed(cancelled.set):
                cancelled.wait(PATIENCE_S)
            return "late"
        return "soon"

    assert hedged_read(read, "a file") == "soon"
    assert cancelled.wait(PATIENCE_S)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("limit", "is_question"), [("SILENT_S", False), ("QUESTION_S", True)])
def test_silence_is_a_time_out_and_sooner_for_a_question_than_for_a_read(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, limit: str, is_question: bool
) -> None:
    monkeypatch.setattr(hedged_reads, limit, 0.05)
    with pytest.raises(TimeoutError, match="expected a response within 0 s, got none"):
        hedged_read(lambda: stuck.wait(PATIENCE_S), "a file", is_question=is_question)


def test_a_slow_listing_is_told_of_while_it_goes_on(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hedged_reads, "_SLOW_LISTING_S", 0.0)
    warn = hedged_reads._LOGGER.warning
    monkeypatch.setattr(hedged_reads._LOGGER, "warning", lambda *told: (warn(*told), stuck.set()))
    assert hedged_read(lambda: stuck.wait(PATIENCE_S), "dataset 's3://lake'", is_listing=True)
    assert "dataset 's3://lake': the store is still listing files after 0 s" in caplog.text


def test_large_reads_may_take_longer(stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.0)
    threading.Timer(0.1, stuck.set).start()
    assert hedged_read(lambda: stuck.wait(PATIENCE_S), "a file", size_bytes=3_000_000_000)


def test_a_listing_may_take_minutes_and_is_made_once(stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.0)
    threading.Timer(0.1, stuck.set).start()
    calls = []
    assert hedged_read(lambda: calls.append(1) or stuck.wait(PATIENCE_S), "a directory", is_listing=True)
    assert len(calls) == 1


def test_reads_count_where_their_caller_counts() -> None:
    counters = Counters()
    with counting(counters):
        hedged_read(lambda: add(Count.CACHE_HITS, 2), "a file")
    hedged_read(lambda: add(Count.CACHE_HITS, 5), "a file")
    assert counters.totals()[Count.CACHE_HITS] == 2


def test_threads_end_with_the_thread_that_they_read_for() -> None:
    before = set(helpers())
    caller = threading.Thread(target=lambda: hedged_read(int, "a file"))
    caller.start()
    caller.join()
    gc.collect()
    for thread in set(helpers()) - before:
        thread.join(PATIENCE_S)
    assert set(helpers()) <= before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns about forks in threaded processes
def test_a_forked_process_reads_with_threads_of_its_own() -> None:
    hedged_read(int, "a file")
    assert exit_status_of_fork(lambda: hedged_read(lambda: 7, "a file") == 7) == 0
