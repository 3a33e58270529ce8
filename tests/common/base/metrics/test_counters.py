"""Counters: rows of threads and processes add up, epochs start at zero, and no numbers get lost."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from pathlib import Path

import pytest
from processes import exit_status_of_fork

from parquetry.common.base.metrics import counters as module
from parquetry.common.base.metrics.counters import (
    Count,
    Counters,
    Reading,
    add,
    add_time,
    counter_value,
    split_wait,
    waited_for_another,
)
from parquetry.common.base.metrics.tally import Gauge, Tally
from parquetry.common.base.platform.memory_file import memory_file


@pytest.fixture(autouse=True)
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_thread", module._Thread())
    module._counters.set(None)


def shared() -> Counters:
    descriptor = memory_file("counters", module.SIZE_BYTES)
    try:
        return Counters(descriptor)
    finally:
        os.close(descriptor)


def test_a_thread_that_counts_for_nobody_is_ignored() -> None:
    add(Count.ROWS, 5)
    add_time(Count.DECODE_S, 0.0, 1.0)
    assert counter_value(Count.ROWS) == 0


def test_threads_add_up_and_a_thread_of_two_iterations_counts_for_each() -> None:
    one, two = Counters(), Counters()

    def work() -> None:
        one.bind()
        for _ in range(1000):
            add(Count.ROWS, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    two.bind()
    add(Count.ROWS, 7)
    one.bind()
    add(Count.ROWS, 1)
    assert (one.totals()[Count.ROWS], two.totals()[Count.ROWS]) == (4001, 7)


def test_an_epoch_begins_at_zero_but_keeps_what_is_held() -> None:
    counters = Counters()
    held = Gauge(counters)
    held.set(100)
    counters.row()[Count.ROWS] += 5
    counters.begin()
    counters.row()[Count.ROWS] += 2
    held.set(40)
    found = counters.totals()
    assert (found[Count.ROWS], found[Count.MEMORY_BYTES]) == (2, 40)
    assert found[Count.FIRST] < found[Count.BEGAN]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
def test_processes_share_rows_by_descriptor_and_by_fork() -> None:
    counters = shared()
    assert counters.descriptor is not None
    counters.row()[Count.ROWS] += 1

    def count() -> bool:
        counters.row()[Count.ROWS] += 10  # not the parent's row
        Gauge(counters).set(1 << 20)
        return True

    assert exit_status_of_fork(count) == 0
    other = Counters(counters.descriptor)  # like a process that received the descriptor
    other.row()[Count.ROWS] += 100
    found = counters.totals()
    assert found[Count.ROWS] == 111
    assert found[Count.MEMORY_BYTES] == 0  # held by a process that is gone


def test_memory_that_holds_something_else_is_refused() -> None:
    descriptor = os.memfd_create("else")
    try:
        os.write(descriptor, b"\1" * module.SIZE_BYTES)
        with pytest.raises(ValueError, match="expected memory that holds counters"):
            Counters(descriptor)
    finally:
        os.close(descriptor)


def test_rows_of_processes_that_are_gone_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 2)
    counters = shared()
    counters.row()[Count.OWNER] = 2**22 + 1  # no process has this id
    counters.row()[Count.ROWS] += 3
    counters._rows.clear()
    counters.row()
    counters._rows.clear()
    row = counters.row()  # takes over the dead process's row, with its numbers
    row[Count.ROWS] += 1
    assert counters.totals()[Count.ROWS] == 4
    counters._rows.clear()
    counters.row()[Count.ROWS] += 1000  # no row left: this thread is not counted
    assert counters.totals()[Count.ROWS] == 4


def test_a_tally_is_complete_once_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    counters = Counters()
    counters.begin()
    tally = Tally(counters, waits=True)
    for _ in range(3):
        begin, now[0] = now[0], now[0] + 0.25
        tally.add(64, 1, begin)
    begin, now[0] = now[0], now[0] + 0.001
    tally.add(64, 1, begin)
    assert counters.totals()[Count.ELEMENTS] == 3  # the fourth came too soon after
    tally.tell()
    found = counters.totals()
    assert (found[Count.ROWS], found[Count.ELEMENTS]) == (256, 4)
    assert found[Count.FIRST] - found[Count.BEGAN] == 0.25
    assert found[Count.WAIT_S] == pytest.approx(0.501)  # the first is the startup
    assert found[Count.LAST] == now[0]


def test_reading_is_divided_between_sleep_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, busy, delayed = [0.0], [0.0], [0.5]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: busy[0])
    monkeypatch.setattr(module, "_newly_delayed", lambda: delayed[0])
    counters = Counters()
    counters.bind()
    with Reading():
        clock[0], busy[0] = 4.0, 1.0
    found = counters.totals()
    assert (found[Count.STORE_S], found[Count.PARQUET_S]) == (2.5, 1.0)  # it only waited for a CPU for half a second


def test_waiting_for_another_reader_is_not_waiting_for_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(module, "_newly_delayed", lambda: 0.0)
    counters = Counters()
    counters.bind()
    waited_for_another(7.0)
    with Reading():
        waited_for_another(2.5)
        clock[0] = 4.0
    assert counters.totals()[Count.STORE_S] == 1.5


def test_counters_are_found_by_path_and_token_and_no_other_file_is_written_to(tmp_path: Path) -> None:
    counters, other = shared(), shared()
    path = f"/proc/self/fd/{counters.descriptor}"
    found = Counters.at(path, counters.token)
    found.row()[Count.ROWS] += 3
    assert counters.totals()[Count.ROWS] == 3
    foreign = tmp_path / "foreign"
    for content in (b"", b"\0" * module.SIZE_BYTES):
        foreign.write_bytes(content)
        with pytest.raises(ValueError, match="expected memory that holds the requested counters"):
            Counters.at(str(foreign), counters.token)
        assert foreign.read_bytes() == content
    with pytest.raises(ValueError, match="requested counters"):
        Counters.at(f"/proc/self/fd/{other.descriptor}", counters.token)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
def test_a_fork_does_not_share_private_counters() -> None:
    counters = Counters()

    def count() -> bool:
        counters.row()[Count.ROWS] += 10
        return True

    assert exit_status_of_fork(count) == 0
    assert counters.totals()[Count.ROWS] == 0


def test_the_first_element_is_the_earliest_whichever_thread_took_it() -> None:
    counters = Counters()
    counters.begin()
    began = counters.totals()[Count.BEGAN]
    counters.waited(1.0, began + 1)
    thread = threading.Thread(target=counters.waited, args=(2.0, began + 5))
    thread.start()
    thread.join()
    found = counters.totals()
    assert (found[Count.FIRST], found[Count.LAST], found[Count.WAIT_S]) == (began + 1, began + 5, 2.0)


def causes(counters: Counters) -> dict[str, float]:
    """The seconds waited, by cause, without those of no cause."""
    return {each.name: seconds for each, seconds in counters.totals().items() if each.name[:7] == "WAITED_" and seconds}


def test_a_wait_is_split_by_what_the_loader_did_in_it() -> None:
    counters = Counters()
    counters.begin()
    began = counters.totals()[Count.BEGAN]
    row = counters.row()
    row[Count.DECODE_S] += 9  # before the first element
    counters.waited(1.0, began + 1)
    row[Count.BLOCKED_S] += 6
    row[Count.STORE_S] += 9  # three quarters of reading
    row[Count.PARQUET_S] += 3
    row[Count.DECODE_S] += 2
    counters.waited(4.0, began + 6)
    assert causes(counters) == {"WAITED_STORE_S": 2.25, "WAITED_PARQUET_S": 0.75, "WAITED_DECODE_S": 1}
    row[Count.TRANSFORM_S] += 5
    counters.waited(0.5, began + 12)
    row[Count.DECODE_S] += 0.5
    counters.waited(2.0, began + 20)  # longer than all work: the rest has no cause
    assert causes(counters) == {
        "WAITED_STORE_S": 2.25,
        "WAITED_PARQUET_S": 0.75,
        "WAITED_DECODE_S": 1.5,
        "WAITED_TRANSFORM_S": 0.5,
    }
    assert counters.totals()[Count.WAIT_S] == 6.5


def test_reading_is_not_waited_for_longer_than_it_took() -> None:
    # Two threads were blocked for 5 s each, most of it because there was no processor.
    assert split_wait(6.0, [1.0, 0.5, 0.5, 0.0, 0.0, 10.0]) == (1.0, 0.5, 0.5, 0.0, 0.0)
    assert split_wait(6.0, [9.0, 3.0, 0.0, 0.0, 0.0, 0.0]) == (0.0,) * 5  # it ran ahead, and blocked nobody


def test_a_wait_is_split_the_same_if_another_process_works() -> None:
    counters = shared()
    counters.begin()
    began = counters.totals()[Count.BEGAN]
    counters.waited(1.0, began + 1)
    Counters(counters.descriptor).row()[Count.DECODE_S] += 1
    counters.waited(1.0, began + 3)
    assert causes(counters) == {"WAITED_DECODE_S": 1}


def test_short_waits_are_split_together() -> None:
    counters = Counters()
    counters.begin()
    began = counters.totals()[Count.BEGAN]
    counters.waited(1.0, began + 1)
    counters.row()[Count.DECODE_S] += 1
    for number in range(1, 5):
        counters.waited(0.0005, began + 1 + 0.002 * number)
    assert causes(counters) == {}
    counters.waited(0.0005, began + 1.02)
    assert causes(counters) == {"WAITED_DECODE_S": pytest.approx(0.0025)}


def test_what_passes_through_loader_workers_is_waited_for_as_hand_over() -> None:
    counters = Counters()
    counters.begin()
    began = counters.totals()[Count.BEGAN]
    counters.waited(1.0, began + 1, through_workers=True)
    counters.row()[Count.DECODE_S] += 1
    counters.waited(4.0, began + 6, through_workers=True)
    assert causes(counters) == {"WAITED_DECODE_S": 1, "WAITED_HAND_OVER_S": 3}


def test_conversion_in_the_consumers_thread_is_waited_for_as_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.perf_counter()]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    counters = Counters()
    counters.begin()
    tally = Tally(counters, waits=True)
    now[0] += 1.0
    tally.add(8, 1, now[0])
    counters.row()[Count.DECODE_S] += 3
    begin, now[0] = now[0], now[0] + 2.0
    tally.add(8, 1, begin)
    begin, now[0] = now[0], now[0] + 0.5
    tally.hand_over(begin)
    begin, now[0] = now[0], now[0] + 0.25
    tally.add_ready(8, 1, begin, 0)
    assert causes(counters) == {"WAITED_DECODE_S": 2, "WAITED_HAND_OVER_S": 0.75}


def test_copies_to_a_device_are_waited_for_after_the_first_element() -> None:
    counters = Counters()
    counters.begin()
    counters.copied(5.0)
    began = counters.totals()[Count.BEGAN]
    counters.waited(1.0, began + 1)
    counters.copied(0.5)
    found = counters.totals()
    assert causes(counters) == {"WAITED_DEVICE_COPY_S": 0.5}
    assert (found[Count.WAIT_S], found[Count.LAST]) == (0.5, began + 1.5)


def test_pending_counts_complete_the_totals() -> None:
    counters = Counters()
    counters.begin()
    tally = Tally(counters, waits=True)
    tally._told = time.perf_counter() + 60
    tally.add(64, 1, time.perf_counter())
    for _ in range(2):
        found = counters.totals()
        assert found[Count.ROWS] == 0
        tally.complete(found)
        assert (found[Count.ROWS], found[Count.ELEMENTS]) == (64, 1)
        assert found[Count.FIRST] == found[Count.LAST] > found[Count.BEGAN]


def test_the_time_of_one_step_counts_for_those_that_arrived_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    counters = Counters()
    counters.begin()
    tally = Tally(counters, waits=True)
    tally._told = now[0] + 60
    now[0] += 0.5
    tally.add(8, 1, 100.0)
    tally.tell()
    begin, now[0] = now[0], now[0] + 0.001
    assert tally.add_ready(8, 1, begin, 3) == 3
    found = counters.totals()
    tally.complete(found)
    assert (found[Count.ROWS], found[Count.ELEMENTS]) == (16, 2)
    for _ in range(3):
        tally.add_like(8, 1)
    found = counters.totals()
    tally.complete(found)
    assert (found[Count.ROWS], found[Count.ELEMENTS]) == (40, 5)
    assert found[Count.HAND_OVER_S] == found[Count.WAIT_S] == pytest.approx(0.004)
    assert tally.add_ready(8, 1, now[0], 1000) < 100
    now[0] += 1  # a slow consumer can have each step timed, and sees it counted
    assert tally.add_ready(8, 1, now[0], 3) == 0


def test_what_is_collected_while_a_row_is_taken_may_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counters, other = Counters(), Counters()
    free_row = Counters._free_row

    def collected(self: Counters) -> int | None:
        if self is counters:
            other.row()[Count.ROWS] += 1
        return free_row(self)

    monkeypatch.setattr(Counters, "_free_row", collected)
    counters.row()[Count.ROWS] += 1
    assert counters.totals()[Count.ROWS] == other.totals()[Count.ROWS] == 1


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="needs locks of open files")
def test_a_process_that_was_stopped_while_it_took_a_row_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    counters = shared()
    other = os.open(f"/proc/self/fd/{counters.descriptor}", os.O_RDWR)
    fcntl.fcntl(other, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    counters.row()[Count.ROWS] += 5
    os.close(other)
    assert counters.totals()[Count.ROWS] == 0
