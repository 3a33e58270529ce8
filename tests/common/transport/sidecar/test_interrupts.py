"""Ctrl-C while a sidecar plans, selects, or makes its first block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import Built, build
from processes import WITHIN_S, gone

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"
)

TRAINER = """
import os, signal, sys, threading
from parquetry.common import Pipeline

url, fifo, where = sys.argv[1:]


def never_ends(*_):
    with open(fifo, "w") as told:
        print(os.getpid(), os.getppid(), file=told)
    threading.Event().wait()


signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
pipeline = Pipeline(url, "id", executor="sidecar", workers=1)
pipeline = pipeline.transform(never_ends) if where == "transform" else pipeline.where(never_ends, fields=["id"])
try:
    next(iter(pipeline))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("interrupts"), [[20, 13]], names=("id", "label"))


@pytest.mark.parametrize("where", ["transform"])
def test_a_wait_for_the_sidecar_is_interrupted(built: Built, tmp_path: Path, where: str) -> None:
    fifo, script = tmp_path / "fifo", tmp_path / "train.py"
    os.mkfifo(fifo)
    script.write_text(TRAINER)
    with subprocess.Popen(
        [sys.executable, str(script), built.url, str(fifo), where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as trainer:
        waiting = {int(number) for number in fifo.read_text().split()} - {trainer.pid, os.getpid()}
        trainer.send_signal(signal.SIGINT)
        try:
            output, errors = trainer.communicate(timeout=30)
        finally:
            trainer.kill()
    assert (output, errors) == ("interrupted\n", "")
    assert gone(list(waiting), WITHIN_S) == []
