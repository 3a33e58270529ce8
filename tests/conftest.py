"""Setup for every test: shared helpers on the path, a separate cache directory, and reproducible property tests."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import cloudpickle
import psutil
import pytest
from hypothesis import HealthCheck, settings

# A new process of numpy spends a tenth of its start on threads that wait for linear algebra. There are hundreds.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Test modules are imported by path (importmode=importlib), so shared helpers must be importable by name.
TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))
from processes import PATIENCE_S  # noqa: E402

# The same examples on every machine and in every run; a deadline would fail on a busy machine.
COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("reproducible", derandomize=True, **COMMON)
settings.register_profile(
    "search", derandomize=False, **COMMON
)  # for --hypothesis-profile=search: new examples each time
settings.load_profile("reproducible")


gc.disable()  # until all tests are collected


def pytest_collection_finish() -> None:
    """Prepares this process for starting hundreds of others.

    `gc.collect` does not scan the permanent objects that imports of tests and frameworks created. Functions of tests
    travel by value, because their modules would import frameworks in each worker.
    """
    gc.freeze()
    gc.enable()
    for module in [*sys.modules.values()]:
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(TESTS):
            cloudpickle.register_pickle_by_value(module)


# Loader workers are forked, so they dump their stacks there too.
_stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
faulthandler.register(signal.SIGUSR1, file=_stacks)


_has_failed = pytest.StashKey[bool]()


def _crash_file(workerinput: dict[str, str]) -> Path:
    """Returns where a test process of pytest-xdist writes its stacks when a signal ends it."""
    name = f"parquetry-crash-{workerinput['testrunuid']}-{workerinput['workerid']}"
    return Path(tempfile.gettempdir()) / name


@pytest.hookimpl(trylast=True)  # after pytest's own, which writes to a stream that a report of tests does not show
def pytest_configure(config: pytest.Config) -> None:
    """Keeps the stacks of a crash for the report of the test that crashed."""
    if hasattr(config, "workerinput"):
        file = _crash_file(config.workerinput).open("w")
        faulthandler.enable(file)
        config.add_cleanup(lambda: (faulthandler.disable(), file.close(), Path(file.name).unlink(missing_ok=True)))


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """Says how the test process ended, and where it was."""
    file = _crash_file(report.node.workerinput)
    with suppress(OSError, AttributeError):
        report.longrepr += f"\nexit status {report.node.gateway._io.popen.wait(PATIENCE_S)}\n{file.read_text()}"
        file.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what forked processes were doing when a test times out."""
    report = yield
    item.stash[_has_failed] = call.excinfo is not None
    if call.excinfo is not None and "Timeout" in str(call.excinfo.value):
        for child in _forked_children():
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGUSR1)
        time.sleep(1)
        _stacks.seek(0)
        report.sections.append(("Stacks of forked processes", _stacks.read()))
    return report


def _forked_children() -> list[psutil.Process]:
    """Returns the children that run this process's command."""
    this = psutil.Process()
    found = []
    for child in this.children():
        with suppress(psutil.NoSuchProcess):
            if child.cmdline() == this.cmdline():
                found.append(child)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """A sidecar serves one environment, and pytest would put each test's name into it."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.fixture(scope="session", autouse=True)
def _own_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps cached selections of other runs from affecting a test."""
    before = os.environ.get("PARQUETRY_CACHE_DIR")
    os.environ["PARQUETRY_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["PARQUETRY_CACHE_DIR"]
    else:
        os.environ["PARQUETRY_CACHE_DIR"] = before


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns one cache for all examples of property tests: leftovers of one example must not change another."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def new_sidecars(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Gives the test a different environment, so sidecars of other tests do not serve it."""
    monkeypatch.setenv("PARQUETRY_TEST", request.node.nodeid)


@pytest.fixture(autouse=True)
def _no_reading_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that an unreferenced iterator stops its threads, however it ended."""
    before = _reading_threads()
    yield
    if request.node.stash[_has_failed]:  # its traceback keeps references
        return
    left = _ended(_reading_threads() - before, 0.02)
    if left:  # an iterator in a cycle
        gc.collect()
        # A collection in one of our threads may delete a DataLoader's iterator, which waits for its workers.
        assert not (alive := [thread.name for thread in _ended(left, PATIENCE_S)]), alive


def _ended(threads: set[threading.Thread], within_s: float) -> set[threading.Thread]:
    """Returns the threads that still work for an iterator after a while."""
    until = time.monotonic() + within_s
    while (working := threads & _reading_threads()) and time.monotonic() < until:
        time.sleep(0.001)
    return working


def _reading_threads() -> set[threading.Thread]:
    return {
        thread for thread in threading.enumerate() if thread.name.startswith(("parquetry-decode", "parquetry-fetch"))
    }
