"""Iterators and their sidecars: starting, reusing, cancelling, failing, dying."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tensorflow as tf
from ids import ids
from processes import PATIENCE_S, eventually, gone, open_files

from parquetry.tf_plugin.iterator import EagerIterator

FOR_LONG = str(10 * PATIENCE_S)


def test_cardinality_is_exact(fake_dataset: Callable[..., Any]) -> None:
    assert len(fake_dataset(rows=10)) == 3
    assert len(fake_dataset(rows=10, batched=False)) == 10
    assert fake_dataset(rows=-1).cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(fake_dataset(rows=10).map(lambda batch: batch["id"]).prefetch(1)) == 3


def test_the_next_epoch_reuses_the_sidecar(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path))
    assert len(dataset) == 3
    for _ in range(3):
        assert ids(dataset) == list(range(12))
    assert len(log.pids) == 1
    assert [start["iteration"] for start in log.starts] == [0, 1, 2]


def test_an_iterator_dropped_early_gives_its_sidecar_back(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path), rows=-1)
    for epoch in range(3):
        iterator = iter(dataset)
        assert next(iterator)["id"].numpy().tolist() == [0, 1, 2, 3]
        del iterator
        assert sum("stop" in event for event in log.events) <= epoch + 1
    assert len(log.pids) == 1
    assert {"stop": 1, "pid": log.pids[0]} in log.events


def test_each_iterator_is_another_iteration(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(epoch_offset=100)
    assert [ids(dataset)[0] for _ in range(3)] == [0, 100, 200]
    assert ids(fake_dataset(epoch_offset=100))[0] == 0


def test_options_that_rewrite_the_graph_keep_the_count(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(epoch_offset=100)
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = True
    options.autotune.enabled = True
    options.threading.private_threadpool_size = 2
    dataset = dataset.map(lambda batch: batch).with_options(options)
    assert [ids(dataset)[0] for _ in range(3)] == [0, 100, 200]


def test_many_iterators_run_side_by_side(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path), epoch_offset=100)
    iterators = [iter(dataset) for _ in range(6)]
    found = [[next(iterator)["id"].numpy()[0] for iterator in iterators] for _ in range(3)]
    assert found == [[100 * number + first for number in range(6)] for first in (0, 4, 8)]
    assert len(log.pids) == 6


def test_an_equal_dataset_made_again_finds_the_idle_sidecar_and_begins_at_its_first_epoch(
    fake_dataset: Callable[..., Any], log: Any
) -> None:
    first = fake_dataset(log=str(log.path), epoch_offset=100)
    assert [ids(first)[0] for _ in range(2)] == [0, 100]
    assert ids(fake_dataset(log=str(log.path), epoch_offset=100))[0] == 0
    assert ids(fake_dataset(log=str(log.path), epoch_offset=100, name="of another version"))[0] == 0
    assert len(log.pids) == 2


@pytest.mark.slow
def test_as_many_sidecars_stay_idle_as_were_in_use_at_once(
    fake_dataset: Callable[..., Any], log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", FOR_LONG)
    sources = [fake_dataset(log=str(log.path), name=str(number)) for number in range(7)]
    together = tf.data.Dataset.zip(tuple(sources))
    for _ in range(3):
        assert sum(1 for _ in together) == 3
    assert len(log.pids) == 7


@pytest.mark.slow
def test_no_more_than_a_few_sidecars_stay_idle(
    fake_dataset: Callable[..., Any], log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "0.001")  # other tests' sidecars were not used recently
    ids(fake_dataset(log=str(log.path), name="before"))
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", FOR_LONG)
    log.path.unlink()
    for number in range(6):
        ids(fake_dataset(log=str(log.path), name=str(number)))
    assert eventually(lambda: not psutil.pid_exists(log.pids[0]))
    assert psutil.pid_exists(log.pids[-1])


@pytest.mark.slow
def test_an_idle_sidecar_ends_after_a_while(
    fake_dataset: Callable[..., Any], log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", FOR_LONG)
    ids(fake_dataset(log=str(log.path), name="first"))
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "0.2")
    ids(fake_dataset(log=str(log.path), name="second"))
    first, second = log.pids
    assert eventually(lambda: not psutil.pid_exists(second))
    assert psutil.pid_exists(first)  # which would have ended before, if both had the same time


def test_dropping_an_iterator_ends_a_wait(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path), hang_at=2)
    iterator = iter(dataset.prefetch(4))
    assert [next(iterator)["id"].numpy()[0] for _ in range(2)] == [0, 4]
    del iterator  # waits for prefetch's thread, which is waiting for the third batch
    assert [number for number, _ in zip(ids(dataset.take(2)), range(8), strict=True)] == list(range(8))


def test_dropping_an_iterator_ends_the_wait_for_its_start(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path), silent_start=True)
    options = tf.data.Options()
    options.experimental_warm_start = True  # prefetch asks at once
    iterator = iter(dataset.prefetch(1).with_options(options))
    del iterator
    assert [start["iteration"] for start in log.starts] in ([], [0])


def test_an_error_arrives_with_its_message_and_class(fake_dataset: Callable[..., Any]) -> None:
    errors = {
        "PipelineError": tf.errors.InvalidArgumentError,
        "EmptySelectionError": tf.errors.InvalidArgumentError,
        "SchemaError": tf.errors.InvalidArgumentError,
        "DatasetError": tf.errors.FailedPreconditionError,
        "DecodeError": tf.errors.DataLossError,
        "ResourceError": tf.errors.ResourceExhaustedError,
        "TransformError": tf.errors.InternalError,
        "ErrorOfTomorrow": tf.errors.InternalError,
    }
    for name, kind in errors.items():
        error = {"error": name, "message": f'{name} of field "é\u4e2d😀": got 3.\nDo that.'}
        iterator = iter(fake_dataset(error_at=1, error=error))
        next(iterator)
        with pytest.raises(kind, match=r'of field "é中😀": got 3\.\nDo that\.'):
            next(iterator)


def test_an_error_ends_the_iterator_but_not_the_dataset(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path), error_at=2, error={"error": "DecodeError", "message": "bad"})
    for _ in range(2):
        iterator = iter(dataset)
        next(iterator)
        next(iterator)
        with pytest.raises(tf.errors.DataLossError, match="bad"):
            next(iterator)
        assert list(iterator) == []
    assert len(log.pids) == 1
    assert len(list(dataset.ignore_errors())) == 2


ONE = {"error": "DecodeError", "message": "this one"}


@pytest.mark.parametrize("batched", [True, False])
def test_an_element_that_fails_is_passed_over(fake_dataset: Callable[..., Any], batched: bool) -> None:
    dataset = fake_dataset(rows=20, batch=4, batched=batched, fails_at=[1, 2, 4 if batched else 12], error=ONE)
    iterator, found, failed = iter(dataset), [], 0
    while True:
        try:
            found += next(iterator)["id"].numpy().reshape(-1).tolist()
        except tf.errors.DataLossError:
            failed += 1
        except StopIteration:
            break
    lost = {*range(4, 12), *range(16, 20)} if batched else {12}  # a chunk of rows is one message
    assert failed == (3 if batched else 1)
    assert found == [number for number in range(20) if number not in lost]


@pytest.mark.slow
@pytest.mark.parametrize("ignore", [lambda data: data.ignore_errors(), tf.data.experimental.ignore_errors()])
def test_errors_of_elements_are_ignored_and_the_end_of_an_iteration_is_an_end(
    fake_dataset: Callable[..., Any], ignore: Callable[[Any], Any]
) -> None:
    dataset = fake_dataset(rows=40, fails_at=[0, 3], error=ONE, exit_at=7)
    kept = [number for number in range(28) if number // 4 not in (0, 3)]
    assert ids(ignore(dataset)) == kept
    assert ids(ignore(dataset.map(lambda batch: batch).prefetch(2)).repeat(2)) == [*kept, *kept]


def test_a_checkpoint_counts_elements_that_failed(fake_dataset: Callable[..., Any], tmp_path: Path) -> None:
    dataset = fake_dataset(rows=24, fails_at=[1, 2], error=ONE).ignore_errors()
    iterator = iter(dataset)
    found = [next(iterator)["id"].numpy()[0] for _ in range(2)]
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "state"))
    other = iter(dataset)
    tf.train.Checkpoint(iterator=other).read(path).assert_consumed()
    assert found == [0, 12]
    assert [batch["id"].numpy()[0] for batch in other] == [16, 20]


def test_an_error_while_opening_arrives(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(open_error={"error": "DatasetError", "message": "file 'x': not there."})
    with pytest.raises(tf.errors.FailedPreconditionError, match="file 'x': not there"):
        next(iter(dataset))
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({"kill_at": 1}, r"signal 9 \(Killed\)"),
        ({"exit_at": 1}, "exit status 7"),
        ({"exit_at_open": 3}, "exit status 3"),
    ],
)
@pytest.mark.timeout(method="thread")
def test_the_death_of_a_sidecar_is_an_error_with_its_last_words(
    fake_dataset: Callable[..., Any], log: Any, options: dict[str, int], ending: str
) -> None:
    dataset = fake_dataset(log=str(log.path), stderr="the disk is on fire", **options)
    with pytest.raises(tf.errors.InternalError, match=rf"ended unexpectedly: {ending}(.|\n)*the disk is on fire"):
        list(dataset)
    assert not any(psutil.pid_exists(pid) for pid in log.pids)  # also reaped: no zombie


@pytest.mark.timeout(method="thread")
def test_killing_a_sidecar_ends_a_wait_that_is_underway(fake_dataset: Callable[..., Any], log: Any) -> None:
    iterator = iter(fake_dataset(log=str(log.path), hang_at=1))
    next(iterator)
    failures: list[Exception] = []

    def wait() -> None:
        try:
            next(iterator)
        except tf.errors.InternalError as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    os.kill(log.pids[0], signal.SIGKILL)
    waiter.join()
    assert "signal 9" in str(failures[0])


def test_a_dead_idle_sidecar_is_replaced(fake_dataset: Callable[..., Any], log: Any) -> None:
    dataset = fake_dataset(log=str(log.path))
    ids(dataset)
    process = psutil.Process(log.pids[0])
    process.kill()
    gone([process.pid])
    assert ids(dataset) == list(range(12))
    assert len(log.pids) == 2


def test_a_program_that_is_not_there_is_an_error_that_says_what_to_set(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(command=["no-such-python"])
    expected = r"cannot run 'no-such-python': No such file.*Set PARQUETRY_PYTHON"
    with pytest.raises(tf.errors.InternalError, match=expected):
        next(iter(dataset))


def test_the_environment_chooses_the_python(fake_dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_PYTHON", "another-python")
    with pytest.raises(tf.errors.InternalError, match="cannot run 'another-python'"):
        next(iter(fake_dataset()))


def test_a_sidecar_inherits_nothing_but_its_socket(fake_dataset: Callable[..., Any], log: Any) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    iterator = iter(fake_dataset(log=str(log.path), rows=-1))
    next(iterator)
    sockets = open_files("socket:", log.pids[0])
    os.close(reading)
    os.close(writing)
    assert len(sockets) == 1
    assert os.getpgid(log.pids[0]) == log.pids[0]


def test_python_iterates_as_tf_data_does_whatever_the_element_looks_like(fake_dataset: Callable[..., Any]) -> None:
    base = fake_dataset(rows=10)
    ragged = tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2])
    shapes: list[Callable[[Any], Any]] = [
        lambda batch: {"z": batch["id"], "a": {"y": batch["id"] + 1, "b": (batch["id"] + 2, ragged)}},
        lambda batch: (batch["id"], {2: batch["id"] + 1, -1: ragged}),
        lambda batch: batch["id"],
    ]
    for shape in shapes:
        dataset = base.map(shape)
        found, expected = list(EagerIterator(dataset)), list(dataset)
        tf.nest.assert_same_structure(found, expected, expand_composites=True)
        ours, theirs = (tf.nest.flatten(elements, expand_composites=True) for elements in (found, expected))
        assert [one.numpy().tolist() for one in ours] == [one.numpy().tolist() for one in theirs]
        pairs = zip(found, expected, strict=True)
        assert all(list(one) == list(other) for one, other in pairs if isinstance(one, dict))
