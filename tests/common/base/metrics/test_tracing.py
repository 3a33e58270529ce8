"""A trace's events go only to its file, from many threads at once; the file is closed at the end."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from processes import open_files

from parquetry.common.base.metrics import counters as module
from parquetry.common.base.metrics import tracing
from parquetry.common.base.metrics.counters import Count, Counters, add_time


def test_threads_that_change_between_files_write_whole_lines_to_the_right_one(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.touch()

    def work(number: int) -> None:
        for turn in range(50):
            tracing.note(str(paths[(turn + number) % 2]), "abcd"[(turn + number) % 2], turn, turn + 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracing.close()
    assert open_files(str(tmp_path)) == []
    for path, name in zip(paths, "ab", strict=True):
        assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == [name] * 100


def test_a_file_that_has_gone_is_no_error(tmp_path: Path) -> None:
    tracing.note(str(tmp_path / "gone"), "x", 0.0, 1.0)
    assert not tracing.is_open()


def test_a_process_closes_the_file_when_tracing_ends(tmp_path: Path) -> None:
    module._counters.set(None)
    (tmp_path / "spool").touch()
    counters = Counters()
    counters.bind()
    counters.trace(str(tmp_path / "spool"))
    add_time(Count.DECODE_S, 0.0, 1.0)
    assert tracing.is_open()
    counters.trace(None)
    add_time(Count.DECODE_S, 0.0, 1.0)
    assert not tracing.is_open()
