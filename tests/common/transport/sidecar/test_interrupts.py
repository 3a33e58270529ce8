"""Ctrl-C while a sidecar plans, selects, or makes its first block."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from builders import Built, built_once
from processes import Trainer, gone

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"
)

TRAINER = """
import os, signal, sys, threading
from parquetry.common import Pipeline

fifo, url, where = sys.argv[1:]


def never_ends(*_):
    with open(fifo, "w") as told:
        print(os.getpid(), os.getppid(), file=told)
    threading.Event().wait()


signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
pipeline = Pipeline(url, "id", executor="sidecar", workers=1)
pipeline = pipeline.transform(never_ends) if where == "transform" else pipeline.where(never_ends, fields=["id"])
for _ in range(2):
    try:
        next(iter(pipeline))
    except KeyboardInterrupt:
        print("interrupted")
"""
built = built_once([[20, 13]], names=("id", "label"))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["transform"])
def test_a_wait_for_the_sidecar_is_interrupted(built: Built, tmp_path: Path, where: str) -> None:
    with Trainer(TRAINER, tmp_path, built.url, where) as trainer:
        waiting = []
        for _ in range(2):
            waiting += trainer.told()  # the second time in another sidecar, since the first may never end
            trainer.process.send_signal(signal.SIGINT)
        assert (trainer.output(), trainer.errors()) == ("interrupted\n" * 2, "")
    assert gone(waiting) == []
