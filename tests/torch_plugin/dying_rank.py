"""Runs a script as one rank of torchrun's group: ``dying_rank.py RANK STEP SCRIPT ARGUMENTS``.

This rank of the first group is killed in this step of its optimizer, as by a machine that fails.
"""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_pre_hook


def die_in_step(last: int) -> None:
    steps = itertools.count(1)

    def count(*_: object) -> None:
        if next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_pre_hook(count)


if __name__ == "__main__":
    rank, step, script, *arguments = sys.argv[1:]
    if os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        die_in_step(int(step))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
