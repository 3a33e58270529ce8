"""Puts faults of the past back into a copy of the project, one at a time, and runs the fast tests on it.

Each file in ``faults/`` is a patch, for ``git apply``, below a few lines that say what goes wrong and which tests fail::

    Fault: A filter by the time 0 loses its rows if the column also holds the smallest int64.
    Noticed by: tests/common/plan/selection/test_times.py::test_the_smallest_time_sorts_first

    diff --git a/common/plan/selection/times.py b/common/plan/selection/times.py
    ...

The tests named by a fault run first. If none of them fails, all fast tests run. A fault that no test notices ends the
program with status 1: repair the check.

    $ python -m tests.faults_put_back                     # all of them
    $ python -m tests.faults_put_back smallest-time       # one
    $ python -m tests.faults_put_back --whole             # with all fast tests, whatever the faults name
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults")
FAST = "not slow and not nightly"  # as in the Makefile
TEST_FAILED = 1  # pytest's status; others mean that it could not run the tests
STOPPED = 2  # with -x, pytest-xdist ends so at the first failure, but pytest also if it cannot collect tests
_PACKAGES = ("common", "tf_plugin", "torch_plugin")


@dataclass(frozen=True)
class Fault:
    """A fault of the past.

    Attributes:
        path: the patch.
        text: what goes wrong, in a sentence.
        tests: the tests that notice, as pytest names them.
        files: the files that the patch changes, relative to the root.
    """

    path: Path
    text: str
    tests: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem


def read_faults() -> list[Fault]:
    """Returns all faults, by name.

    Raises:
        ValueError: a patch does not say what goes wrong, or names no test.
    """
    return [_read_fault(path) for path in sorted(FAULTS.glob("*.patch"))]


def _read_fault(path: Path) -> Fault:
    head, _, patch = path.read_text(encoding="utf-8").partition("\ndiff --git ")
    text = re.search(r"^Fault: (.+)$", head, re.MULTILINE)
    tests = re.findall(r"^Noticed by: (\S+)$", head, re.MULTILINE)
    if text is None or not tests:
        raise ValueError(f"{path.name}: expected the lines 'Fault: ...' and 'Noticed by: ...' above the patch.")
    return Fault(path, text[1], tuple(tests), tuple(re.findall(r"^--- a/(\S+)$", patch, re.MULTILINE)))


def table() -> str:
    """Returns the faults and the tests that notice them, as the table of ``tests/README.md``."""
    rows = (f"| {fault.text} | {', '.join(map(_link, fault.tests))} |" for fault in read_faults())
    return "\n".join(["| fault | noticed by |", "|---|---|", *rows])


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[`{name.partition('[')[0]}`]({Path(path).relative_to('tests').as_posix()})"


def apply_patch(fault: Fault, root: Path, *, reverse: bool = False, check: bool = False) -> None:
    """Changes the files below ``root`` as the patch says, or only checks that they could be changed.

    Raises:
        RuntimeError: the patch does not fit the files.
    """
    options = [*(["--reverse"] if reverse else []), *(["--check"] if check else [])]
    result = subprocess.run(["git", "apply", *options, str(fault.path)], cwd=root, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{fault.path.name} does not fit the sources. Write it anew: {result.stderr.strip()}")


class Copy:
    """A copy of the project whose tests import the copy's packages. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "project"
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        libraries = [*ROOT.glob("common/base/native/built/*.so"), *ROOT.glob("tf_plugin/*.so")]
        for path in [*(ROOT / name for name in names if name), *libraries]:
            if path.is_file():
                target = self._root / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        imports = folder / "imports"  # before the packages that are installed as editable
        (imports / "parquetry").mkdir(parents=True)
        for name in _PACKAGES:
            (imports / "parquetry" / name).symlink_to(self._root / name)
        for path in (self._root / "parquetry").glob("*.py"):
            (imports / "parquetry" / path.name).symlink_to(path)
        # Without the current directory, whose folder parquetry holds no packages.
        paths = os.pathsep.join([str(imports), str(self._root)])
        self._environment = {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}

    @contextmanager
    def fault_put_back(self, fault: Fault) -> Iterator[None]:
        apply_patch(fault, self._root)
        try:
            for package in ("common/base/native", "tf_plugin/kernels"):
                if any(name.startswith(package) for name in fault.files):
                    self._python("-m", f"parquetry.{package.removesuffix('/kernels').replace('/', '.')}.build")
            yield
        finally:
            apply_patch(fault, self._root, reverse=True)

    def first_failure(self, *arguments: str) -> str | None:
        """Returns the first test that fails, or None.

        Raises:
            RuntimeError: pytest could not run the tests.
        """
        result = self._python("-m", "pytest", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", *arguments)
        failed = re.search(r"^(FAILED|ERROR) (.+?)(?: - .*)?$", result.stdout, re.MULTILINE)
        is_stopped = result.returncode == STOPPED and failed is not None and failed[1] == "FAILED"
        if result.returncode not in (0, TEST_FAILED) and not is_stopped:
            raise RuntimeError(f"pytest ended with status {result.returncode}:\n{result.stdout}{result.stderr}")
        return failed[2] if failed else None

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self._root, env=self._environment, capture_output=True, text=True)


def noticed_by(fault: Fault, copy: Copy, *, whole: bool) -> str | None:
    """Returns the first of the fast tests that fails with the fault put back."""
    with copy.fault_put_back(fault):
        named = None if whole else copy.first_failure("-n", "0", "-m", FAST, *fault.tests)
        return named or copy.first_failure("-n", "2", "--dist", "worksteal", "-m", FAST)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Faults; all by default.")] = None,
    whole: Annotated[bool, typer.Option(help="Run all fast tests, not those that a fault names.")] = False,
    show_table: Annotated[bool, typer.Option("--table", help="Print the table for tests/README.md.")] = False,
) -> None:
    """Puts faults of the past back into a copy, one at a time, and says which fast test notices each."""
    if show_table:
        print(table())
        return
    faults = [fault for fault in read_faults() if not names or fault.name in names]
    if unknown := {*(names or ())} - {fault.name for fault in faults}:
        raise typer.BadParameter(f"no such fault: {', '.join(sorted(unknown))}")
    copies = SimpleQueue[Copy]()
    processors = min(os.cpu_count() or 1, len(faults))

    def try_fault(fault: Fault) -> str | None:
        copy = copies.get()
        try:
            return noticed_by(fault, copy, whole=whole)
        finally:
            copies.put(copy)

    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="parquetry-faults-") as folder, ThreadPoolExecutor(processors) as pool:
        for number in range(processors):
            copies.put(Copy(Path(folder) / str(number)))
        for fault, test in zip(faults, pool.map(try_fault, faults), strict=True):
            print(f"{fault.name}: {test or 'NOT NOTICED'}", flush=True)
            unnoticed += test is None
    print(f"{len(faults) - unnoticed} of {len(faults)} faults were noticed.")
    raise SystemExit(unnoticed > 0)


if __name__ == "__main__":
    typer.run(main)
