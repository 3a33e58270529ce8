"""Signals while TensorFlow waits for a sidecar that plans, selects, or makes its first block."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from builders import Built, built_once
from processes import Trainer, gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"),
]

TRAINER = """
import os, signal, sys, threading
import tensorflow as tf
from parquetry.tf_plugin import ParquetDataset

fifo, url, *loops = sys.argv[1:]


def never_ends(*_):
    with open(fifo, "w") as told:
        print(os.getpid(), os.getppid(), file=told)
    threading.Event().wait()


own = lambda *_: print("told", flush=True)
# Ignored where the tests run in the background.
signal.signal(signal.SIGINT, own if "own handler" in loops[0] else signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
for where in loops:
    dataset = ParquetDataset(url, ["id"], workers=1)
    dataset = dataset.transform(never_ends).batch(33) if "transform" in where else dataset.where(never_ends, fields=["id"])
    dataset = dataset.prefetch(2) if "prefetch" in where else dataset
    try:
        if "fit" in where:
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(dataset.map(lambda row: (tf.zeros([1, 2]), tf.zeros([1, 1]))), verbose=0)
        if "graph" in where:
            print(tf.function(lambda rows: next(rows))(iter(dataset)))
        for batch in dataset:
            raise AssertionError("an element came")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except tf.errors.InternalError as error:
        print("decode worker died" if "decode worker died 3 times" in error.message else error)
    print(sum(1 for _ in ParquetDataset(url, ["id"], workers=1)), flush=True)
"""
built = built_once([[20, 13]], names=("id", "label"))


def _trainer(built: Built, directory: Path, *loops: str) -> Trainer:
    """Starts loops one after the other, each waiting for a function that never returns."""
    return Trainer(TRAINER, directory, built.url, *loops)


def test_a_loop_is_interrupted_and_the_next_one_works(built: Built, tmp_path: Path) -> None:
    loops = ["transform", "transform+prefetch", "selection+prefetch", "fit+selection", "graph+transform"]
    waiting = []
    with _trainer(built, tmp_path, *loops) as trainer:
        for _ in loops:
            waiting += trainer.told()
            trainer.process.send_signal(signal.SIGINT)
        assert trainer.output() == "interrupted\n33\n" * len(loops)
    assert trainer.process.returncode == 0
    assert gone(waiting) == []


def test_sigquit_ends_the_trainer_and_all_it_started_at_once(built: Built, tmp_path: Path) -> None:
    with _trainer(built, tmp_path, "selection+prefetch") as trainer:
        waiting = trainer.told()
        trainer.process.send_signal(signal.SIGQUIT)
        trainer.output()
    assert trainer.process.returncode == -signal.SIGQUIT
    assert gone(waiting) == []


@pytest.mark.nightly
def test_a_handler_of_the_users_own_decides_for_itself(built: Built, tmp_path: Path) -> None:
    with _trainer(built, tmp_path, "transform+own handler") as trainer:
        worker, *_ = trainer.told()
        assert trainer.process.stdout is not None
        trainer.process.send_signal(signal.SIGINT)
        assert select.select([trainer.process.stdout], [], [], 0.8)[0] == []  # the wait continues
        os.kill(worker, signal.SIGSEGV)  # like a crashing function: after three times the sidecar gives up
        for _ in range(2):
            worker, *_ = trainer.told()
            os.kill(worker, signal.SIGSEGV)
        assert trainer.output() == "told\ndecode worker died\n33\n"
