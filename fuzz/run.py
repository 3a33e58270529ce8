"""Fuzzes the targets, each for some time: ``python -m fuzz.run --seconds 300 [TARGET ...]``.

With atheris, coverage guides the runs; without it, they are seeded mutations of the corpus. Each target runs in its own
process, as many at once as there are processors. It may use 1 GiB more memory than it starts with, and 10 s per input.
Failing inputs are written to ``build/fuzz/TARGET``, and the exit status is then 1. The `compiled_targets` are C++, and
need a compiler.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib.util
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType
from typing import Any

import psutil

from . import compiled_targets
from .inputs import CORPUS, changed, corpus_of
from .targets import TARGETS

_FOUND = Path("build/fuzz")
_MEMORY_BYTES = 1 << 30
_INPUT_S = 10
_NAMES = [*TARGETS, *compiled_targets.NAMES]
_GUIDED = importlib.util.find_spec("atheris") is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"targets to fuzz (default: all of them): {', '.join(_NAMES)}")
    parser.add_argument("--seconds", type=float, default=300, help="seconds per target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="fuzz one target, in this process")
    asked = parser.parse_args()
    names = asked.targets or _NAMES
    if unknown := set(names) - set(_NAMES):
        parser.error(f"expected targets of {', '.join(_NAMES)}, got {', '.join(sorted(unknown))}")
    if asked.here:
        _fuzz(names[0], asked.seconds, asked.seed)
        return 0
    print("guided by coverage" if _GUIDED else "not guided: pip install atheris for inputs that follow the coverage")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = {name: pool.submit(_run, name, asked.seconds, asked.seed) for name in names}
        failed = [name for name, run in runs.items() if not _is_sound(name, *run.result())]
    if failed:
        print(f"the inputs that failed are in {_FOUND}: {', '.join(failed)}")
    return 1 if failed else 0


def _run(name: str, seconds: float, seed: int) -> tuple[subprocess.CompletedProcess[str] | None, float]:
    """Runs a target in its own process; returns the run, or ``None`` if this machine cannot run it, and its seconds."""
    begin = time.monotonic()
    if name in TARGETS:
        command = [sys.executable, "-m", "fuzz.run", "--here", name, "--seconds", str(seconds), "--seed", str(seed)]
        with tempfile.TemporaryDirectory(prefix="parquetry-fuzz-") as room:  # the fuzzer ends without cleaning up
            run = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=os.environ | {"TMPDIR": room},
            )
    elif compiled_targets.reason_to_skip():
        return None, 0.0
    else:
        limits = (f"-max_total_time={max(1.0, seconds):.0f}", f"-timeout={_INPUT_S}", f"-seed={seed}")
        run = compiled_targets.fuzz(name, CORPUS / name, _FOUND / name, *limits)
    return run, time.monotonic() - begin


def _is_sound(name: str, run: subprocess.CompletedProcess[str] | None, seconds: float) -> bool:
    """Prints how a target fared; returns ``False`` if an input failed."""
    if run is None:
        print(f"{name}: skipped, {compiled_targets.reason_to_skip()}", flush=True)
        return True
    if run.returncode:
        print(run.stdout)
        print(f"{name}: FAILED ({run.returncode}) after {seconds:.0f} s", flush=True)
        return False
    inputs = re.search(r"^(?:Done )?(\d+) (?:runs|inputs)", run.stdout, re.MULTILINE)
    assert inputs is not None, run.stdout
    print(f"{name}: sound, {int(inputs[1]):,} inputs in {seconds:.0f} s", flush=True)
    return True


def _fuzz(name: str, seconds: float, seed: int) -> None:
    faulthandler.enable()
    logging.disable()  # a damaged file causes a warning
    warnings.simplefilter("ignore")
    reached = _modules_of(name)
    room = psutil.Process().memory_info().vms + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    found = _FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    if _GUIDED:
        _guided(name, reached, found, seconds, seed)
    else:
        _unguided(name, found, seconds, seed)


def _modules_of(name: str) -> set[str]:
    """Runs the corpus, which also creates everything that is created once, and returns the modules of ours that ran."""
    names: set[str] = set()
    sys.setprofile(lambda frame, *_: names.add(frame.f_globals.get("__name__", "")))
    try:
        for data in corpus_of(name):
            TARGETS[name](data)
    finally:
        sys.setprofile(None)
    return {name for name in names if name.startswith("parquetry.")}


def _guided(name: str, reached: set[str], found: Path, seconds: float, seed: int) -> None:
    import atheris

    for function in gc.get_objects():  # `instrument_all` takes minutes, and the whole package ten seconds
        if isinstance(function, FunctionType) and function.__module__ in reached:
            atheris.instrument_func(function)
    corpus = found / "corpus"
    corpus.mkdir(exist_ok=True)
    options = [
        f"-seed={seed}",
        f"-max_total_time={seconds:.0f}",
        f"-timeout={_INPUT_S}",
        "-max_len=20000",
        "-rss_limit_mb=0",
    ]
    atheris.Setup(
        [name, *options, f"-artifact_prefix={found}/", str(corpus), str(CORPUS / name)],
        TARGETS[name],
    )
    atheris.Fuzz()


def _unguided(name: str, found: Path, seconds: float, seed: int) -> None:
    draw, corpus = random.Random(seed), corpus_of(name)
    end, runs = time.monotonic() + seconds, 0
    signal.signal(signal.SIGALRM, _too_long)
    while time.monotonic() < end:
        data = changed(draw, corpus)
        signal.alarm(_INPUT_S)
        try:
            TARGETS[name](data)
        except BaseException:
            traceback.print_exc()
            (found / f"crash-{runs}").write_bytes(data)
            sys.exit(1)
        finally:
            signal.alarm(0)
        runs += 1
    print(f"{runs} inputs")


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"an input took longer than {_INPUT_S} s")


if __name__ == "__main__":
    sys.exit(main())
