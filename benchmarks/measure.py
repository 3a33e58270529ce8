"""The process of one contender: opens it, and measures a stretch whenever the parent asks.

Takes the contender's module and a `Case` as arguments, and commands as lines on standard input. Answers each with one
JSON line on the original standard output (libraries that print go to standard error). Each measured stretch follows an
unmeasured one, which uses up what the contender read ahead while it waited. Runs in the contender's environment: it
needs numpy and psutil, but not parquetry.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from .workloads import Case

_REPEATS = 5
_QUIET_S = 0.2
_REPEATED = ("warm", "resume at 90 %")  # interleaved; the median counts


def main() -> None:
    """Answers commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("case")
    parser.add_argument("--cores", type=int, default=0)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])  # before libraries count processors
    try:
        _serve(arguments.module, arguments.case, answers)
    except ImportError as error:
        traceback.print_exc()
        _answer(answers, event="missing", message=str(error))
    except BaseException as error:
        traceback.print_exc()
        _answer(answers, event="failed", message=f"{type(error).__name__}: {error}")
    answers.flush()
    os._exit(0)  # peers' threads and loader processes do not always exit on their own


def _serve(module_name: str, case_text: str, answers: TextIO) -> None:
    from .workloads import Case

    case = Case.from_json(case_text)
    module = importlib.import_module(f"benchmarks.contenders.{module_name}")
    settings = module.SETTINGS[case.variant]
    if case.workload.kind == "seconds":
        _answer(answers, event="ready", settings=settings)
        sys.stdin.readline()
        seconds = _steps(module, case)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # counts memory that has been freed since
        _answer(answers, event="steps", seconds=seconds, memory_bytes=max(peak, _memory()["memory_bytes"]))
        return
    if case.trains:
        from .training_steps import start_training

        start_training(case)
    began = time.perf_counter()
    batches = module.batches(case)
    rows = next(batches)
    first_batch_s = time.perf_counter() - began
    first_pass: dict[str, float] = {}
    if case.workload.first_pass:
        while rows < case.delivered:
            rows += next(batches)
        first_pass = {"first_pass_s": time.perf_counter() - began, "first_pass_read_bytes": _read_bytes()}
    _answer(answers, event="ready", settings=settings, first_batch_s=first_batch_s, **first_pass)
    for line in sys.stdin:
        command = json.loads(line)
        _answer(answers, event="measured", **measure(batches, **command))


def measure(batches: Iterator[int], *, warm_s: float, span_s: float) -> dict[str, float]:
    """Takes batches for an unmeasured while, then for a measured one; both end on batch boundaries."""
    from .resources import usage
    from .touch import training_step

    step = training_step()
    _take(batches, warm_s)
    step_s = getattr(step, "seconds", 0.0)
    before = usage(os.getpid(), with_memory=False)
    rows, steps, elapsed_s = _take(batches, span_s)
    after = usage(os.getpid(), with_memory=False)
    return {
        "rows": rows,
        "batches": steps,
        "elapsed_s": elapsed_s,
        "step_s": getattr(step, "seconds", 0.0) - step_s,
        "cpu_s": after.cpu_s - before.cpu_s,
        "read_bytes": after.read_bytes - before.read_bytes,
        **_memory(),
    }


def _take(batches: Iterator[int], seconds: float) -> tuple[int, int, float]:
    rows, steps, elapsed_s = 0, 0, 0.0
    began = time.perf_counter()
    while elapsed_s < seconds:
        rows += next(batches)
        steps += 1
        elapsed_s = time.perf_counter() - began
    return rows, steps, elapsed_s


def _steps(module: ModuleType, case: Case) -> dict[str, float]:
    """Returns the seconds of each step that the module supports."""
    steps = module.steps(case) if hasattr(module, "steps") else _peer_steps(module, case)
    seconds = {name: [_timed(step)] for name, step in steps.items()}  # first run in order: cold comes first
    for _ in range(_REPEATS):
        for name in [name for name in _REPEATED if name in steps]:
            seconds[name].append(_timed(steps[name]))
    # The first warm start may still load something, so it is dropped. Steps that only prepare others are not reported.
    return {name: statistics.median(found[1:] or found) for name, found in seconds.items() if name[0] != "_"}


def _peer_steps(module: ModuleType, case: Case) -> dict[str, Callable[[], Any]]:
    start = _starter(module, case)
    steps: dict[str, Callable[[], Any]] = {"cold": start, "warm": start}
    if hasattr(module, "resume_steps"):
        made: list[Callable[[], Any]] = []
        steps["_resume"] = lambda: made.append(module.resume_steps(case))
        steps["resume at 90 %"] = lambda: made[0]()
    return steps


def _starter(module: ModuleType, case: Case) -> Callable[[], Any]:
    opened: list[Any] = []

    def start() -> None:
        opened.clear()  # closes the previous one, as at the end of an epoch
        batches = module.batches(case)
        next(batches)
        opened.append(batches)

    return start


def _timed(step: Callable[[], Any]) -> float:
    time.sleep(_QUIET_S)  # keeps leftover work of the previous step out of this one
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _memory() -> dict[str, int]:
    from .resources import usage

    return {"memory_bytes": usage(os.getpid(), with_memory=True).memory_bytes}


def _read_bytes() -> int:
    from .resources import usage

    return usage(os.getpid(), with_memory=False).read_bytes


def _answer(answers: TextIO, **value: object) -> None:
    answers.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
