"""Signals while TensorFlow waits for a sidecar that plans, selects, or makes its first block."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import Built, build
from processes import WITHIN_S, gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"),
]

TRAINER = """
import os, signal, sys, threading
import tensorflow as tf
from parquetry.tf_plugin import ParquetDataset

url, fifo, where = sys.argv[1:]


def never_ends(*_):
    with open(fifo, "w") as told:
        print(os.getpid(), os.getppid(), file=told)
    threading.Event().wait()


own = lambda *_: print("told", flush=True)
# Ignored where the tests run in the background.
signal.signal(signal.SIGINT, own if "own handler" in where else signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
dataset = ParquetDataset(url, ["id"], workers=1)
dataset = dataset.transform(never_ends) if "transform" in where else dataset.where(never_ends, fields=["id"])
dataset = dataset.prefetch(2) if "prefetch" in where else dataset
try:
    if "fit" in where:
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(dataset.map(lambda row: (tf.zeros([1, 2]), tf.zeros([1, 1]))), verbose=0)
    for batch in dataset:
        raise AssertionError("an element came")
except KeyboardInterrupt:
    print("interrupted", flush=True)
except tf.errors.InternalError as error:
    print("decode worker died" if "decode worker died 3 times" in error.message else error)
print(sum(1 for _ in ParquetDataset(url, ["id"], workers=1)), flush=True)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("interrupts"), [[20, 13]], names=("id", "label"))


def _waiting(built: Built, tmp_path: Path, where: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A trainer that waits for a function that never ends, and the processes that run it."""
    fifo, script = tmp_path / "fifo", tmp_path / "train.py"
    os.mkfifo(fifo)
    script.write_text(TRAINER)
    trainer = subprocess.Popen(
        [sys.executable, str(script), built.url, str(fifo), where],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # TensorFlow's own
        text=True,
    )
    return trainer, [int(number) for number in fifo.read_text().split() if int(number) != trainer.pid]


@pytest.mark.parametrize("where", ["transform", "transform+prefetch", "selection+prefetch", "fit+selection"])
def test_a_loop_is_interrupted_and_the_next_one_works(built: Built, tmp_path: Path, where: str) -> None:
    trainer, waiting = _waiting(built, tmp_path, where)
    with trainer:
        trainer.send_signal(signal.SIGINT)
        try:
            output, _ = trainer.communicate(timeout=30)
        finally:
            trainer.kill()
    assert output == "interrupted\n33\n"
    assert trainer.returncode == 0
    assert gone(waiting, WITHIN_S) == []


def test_sigquit_ends_the_trainer_and_all_it_started_at_once(built: Built, tmp_path: Path) -> None:
    trainer, waiting = _waiting(built, tmp_path, "selection+prefetch")
    with trainer:
        trainer.send_signal(signal.SIGQUIT)
        try:
            trainer.communicate(timeout=30)
        finally:
            trainer.kill()
    assert trainer.returncode == -signal.SIGQUIT
    assert gone(waiting, WITHIN_S) == []


def test_a_handler_of_the_users_own_decides_for_itself(built: Built, tmp_path: Path) -> None:
    trainer, waiting = _waiting(built, tmp_path, "transform+own handler")
    with trainer:
        assert trainer.stdout is not None
        trainer.send_signal(signal.SIGINT)
        assert select.select([trainer.stdout], [], [], 0.8)[0] == []  # the wait goes on
        os.kill(waiting[0], signal.SIGKILL)  # three times, and the sidecar gives up
        try:
            for _ in range(2):
                pid, *_ = (tmp_path / "fifo").read_text().split()
                os.kill(int(pid), signal.SIGKILL)
            output, _ = trainer.communicate(timeout=30)
        finally:
            trainer.kill()
    assert output == "told\ndecode worker died\n33\n"
