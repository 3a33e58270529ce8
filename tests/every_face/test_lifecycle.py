"""A trainer's lifecycle in every face: ends leave nothing behind, held values stay valid, failures can restart."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import Built, built_once
from faces import SIDECAR, THREADS, NodeFace, TensorFlowFace, TorchFace, plain_element
from processes import PATIENCE_S, command_of, gone

from parquetry.common import Pipeline

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"
)

NEEDS = {"tensorflow": "tensorflow", "ParquetIterable": "torch", "ParquetPipe": "torch", "node": "torchdata"}


def faces(*chosen: Any) -> Any:
    """Parametrizes ``face`` over the faces whose framework is installed."""
    there = [face for face in chosen if importlib.util.find_spec(NEEDS.get(face.name.partition("-")[0], "numpy"))]
    return pytest.mark.parametrize("face", there, ids=lambda face: face.name)


EVERY = (THREADS, SIDECAR, TensorFlowFace(), TorchFace(), TorchFace(kind="ParquetPipe"), NodeFace())
ONE_OF_EACH = (SIDECAR, TensorFlowFace(), TorchFace(kind="ParquetPipe"))
built = built_once([[20, 13], [7, 0, 30], [30]])


def ids(pipeline: Pipeline, elements: Any) -> list[int]:
    return [row["id"] for element in elements for row in plain_element(pipeline.element, element)]


# --- the end of a trainer ---

TRAINER = """
import os, signal, sys
import psutil
{imports}

if __name__ == "__main__":
    url, how = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    iterator = iter({elements})
    next(iterator)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    if how == "raise":
        raise KeyError("the training loop failed")
    if how == "os._exit":
        os._exit(0)
    if how == "Ctrl-C":
        os.kill(os.getpid(), signal.SIGINT)
    while True:
        next(iterator)
"""
PIPELINE = (
    "from parquetry.common import Pipeline",
    'Pipeline(url, ["id", "image"], executor="sidecar", workers=2).repeat().batch(4)',
)
DATASET = (
    "from parquetry.tf_plugin import ParquetDataset",
    'ParquetDataset(url, ["id", "image", "tags"], workers=2).repeat().batch(4)',
)
MAPPED = (DATASET[0], f'{DATASET[1]}.map(lambda row: row["id"]).prefetch(2)')
TORCH = "from torch.utils.data import DataLoader\nfrom parquetry.torch_plugin import ParquetPipe"
PIPE = (TORCH, 'ParquetPipe(url, ["id", "image"], executor="sidecar", workers=2).repeat().batch(4)')


def loader(start: str) -> tuple[str, str]:
    pipe = 'ParquetPipe(url, ["id", "image"]).repeat().batch(4)'
    return TORCH, f'DataLoader({pipe}, batch_size=None, num_workers=2, multiprocessing_context="{start}")'


ENDS: dict[str, tuple[str, tuple[str, str], str]] = {
    "Pipeline-SIGTERM": ("numpy", PIPELINE, "SIGTERM"),
    "Pipeline-SIGKILL": ("numpy", PIPELINE, "SIGKILL"),
    "Pipeline-os._exit": ("numpy", PIPELINE, "os._exit"),
    "Pipeline-raise": ("numpy", PIPELINE, "raise"),
    "Pipeline-Ctrl-C": ("numpy", PIPELINE, "Ctrl-C"),
    "TensorFlow-SIGKILL": ("tensorflow", DATASET, "SIGKILL"),
    "TensorFlow-raise": ("tensorflow", DATASET, "raise"),
    "TensorFlow-Ctrl-C": ("tensorflow", MAPPED, "Ctrl-C"),
    "ParquetPipe-Ctrl-C": ("torch", PIPE, "Ctrl-C"),
    "fork-SIGTERM": ("torch", loader("fork"), "SIGTERM"),
    "fork-Ctrl-C": ("torch", loader("fork"), "Ctrl-C"),
    "spawn-os._exit": ("torch", loader("spawn"), "os._exit"),
    "forkserver-raise": ("torch", loader("forkserver"), "raise"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_the_end_of_a_trainer_is_the_end_of_all_it_started(built: Built, tmp_path: Path, case: str) -> None:
    needs, (imports, elements), how = ENDS[case]
    if not importlib.util.find_spec(needs):
        pytest.skip(f"needs {needs}")
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(TRAINER.format(imports=imports, elements=elements)))
    with tempfile.TemporaryDirectory() as temporary:  # a fork server's socket needs a shorter path than `tmp_path`
        _check_end(script, built.url, how, Path(temporary), of_torch="DataLoader(" in elements)


def _check_end(script: Path, url: str, how: str, temporary: Path, *, of_torch: bool) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), url, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert trainer.stdout is not None
    children = [int(pid) for pid in trainer.stdout.readline().split()]
    if how in ("SIGTERM", "SIGKILL"):
        (trainer.terminate if how == "SIGTERM" else trainer.kill)()
    try:
        _, errors = trainer.communicate(timeout=PATIENCE_S)
    finally:
        trainer.kill()
    # A reader and two workers, or two loader workers, which check every 5 s whether their parent is alive.
    assert len(children) >= (2 if of_torch else 3), errors
    assert gone(children) == []
    assert ("the training loop failed" in errors) == (how == "raise")
    assert "sidecar" not in errors
    left = {path.name for path in temporary.rglob("*") if "autograph" not in path.name}  # TensorFlow's own, from `map`
    assert not any("parquetry" in name for name in left)
    assert of_torch or left <= {"__pycache__"}


STOPPED = """
import os, signal, sys, threading
import psutil
{imports}

if __name__ == "__main__":
    url, how = sys.argv[1:]
    iterators = []

    def begin():
        iterators.append(iter({elements}))
        next(iterators[0])

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    children = psutil.Process().children(recursive=True)
    for _ in range(20):  # the thread that began has ended, and the processes have not
        next(iterators[0])
    assert all(child.is_running() for child in children)
    for child in children:
        child.suspend()
    print(*(child.pid for child in children), flush=True)
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not end children")
@pytest.mark.parametrize("how", ["SIGKILL", "return"])
@pytest.mark.parametrize("face", ["Pipeline", "TensorFlow"])
def test_stopped_processes_end_with_their_trainer_and_not_with_the_thread_that_began(
    built: Built, tmp_path: Path, face: str, how: str
) -> None:
    if face == "TensorFlow" and not importlib.util.find_spec("tensorflow"):
        pytest.skip("needs tensorflow")
    imports, elements = DATASET if face == "TensorFlow" else PIPELINE
    script = tmp_path / "trainer.py"
    script.write_text(STOPPED.format(imports=imports, elements=elements))
    trainer = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), built.url, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = trainer.communicate(timeout=PATIENCE_S)  # its children hold its stderr, unless they have ended
    finally:
        trainer.kill()
    children = [int(pid) for pid in output.split()]
    assert len(children) >= 3, errors  # a reader and its workers
    assert gone(children) == []
    assert trainer.returncode == (-signal.SIGKILL if how == "SIGKILL" else 0), errors


LOADER = """
import os, signal, sys, threading
import psutil
from torch.utils.data import DataLoader
from parquetry.torch_plugin import ParquetPipe

if __name__ == "__main__":
    url, start, how = sys.argv[1:]
    pipe = ParquetPipe(url, ["id", "image"], executor="sidecar", workers=1).repeat().batch(4)
    iterators = []

    def begin():
        iterators.append(iter(DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context=start)))
        for _ in range(4):  # from both workers: all processes have begun
            next(iterators[0])

    if how == "thread ends":
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    else:
        begin()
    ours = {worker.pid for worker in iterators[0]._workers}
    for worker in list(ours):  # not Python's own resource tracker
        ours.update(child.pid for child in psutil.Process(worker).children(recursive=True))
    if how == "thread ends":
        for _ in range(50):
            next(iterators[0])
        assert all(map(psutil.pid_exists, ours))
    else:
        for pid in ours:
            os.kill(pid, signal.SIGSTOP)
    print(*ours, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not end children")
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize("how", ["stopped", "thread ends"])
@pytest.mark.parametrize("start", ["fork", "spawn"])  # a fork server stays as long as its stopped workers do
def test_stopped_loader_workers_end_with_their_trainer_and_not_with_a_thread(
    built: Built, tmp_path: Path, start: str, how: str
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(LOADER)
    trainer = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), built.url, start, how], stdout=subprocess.PIPE, text=True
    )
    try:
        output, _ = trainer.communicate(timeout=PATIENCE_S)
    finally:
        trainer.kill()
    processes = [int(pid) for pid in output.split()]
    assert len(processes) >= 6  # two loader workers with a reader and its workers each
    assert gone(processes) == []


# --- held values ---

CHEAP = ("id", "small", "vector", "drive")  # decoded in the threads of a sidecar's reader
COSTLY = ("id", "image", "points", "tags")  # decoded in its worker processes


@faces(*EVERY)
@pytest.mark.parametrize("fields", [CHEAP, COSTLY], ids=["cheap", "costly"])
def test_elements_that_are_held_stay_valid_and_stall_nothing(built: Built, face: Any, fields: tuple[str, ...]) -> None:
    pipeline = built.pipeline(*fields, workers=1).repeat(3).batch(2)
    expected = THREADS.elements(pipeline)
    begin = face.passes(pipeline)
    hoard = list(begin())
    assert len(hoard) > 100  # far more than there are slots
    for _ in begin():  # others come and go while all are held
        pass
    del begin
    gc.collect()
    for _ in face.passes(pipeline)():
        pass
    assert [plain_element(pipeline.element, element) for element in hoard] == expected


@faces(*EVERY)
def test_rows_outlive_their_iterator_and_dataset(built: Built, face: Any) -> None:
    pipeline = built.pipeline("id", "vector", workers=1)
    iterator = face.passes(pipeline)()
    held = [next(iterator) for _ in range(30)]
    del iterator
    gc.collect()
    for _ in face.passes(pipeline)():
        pass
    wanted = [(row["id"], row["vector"]) for row in built.plain[:30]]
    rows = [plain_element(pipeline.element, row) for row in held]
    assert [(row["id"], row["vector"]) for row in rows] == wanted


# --- several iterators, and abandoned ones ---


@pytest.mark.slow
@faces(*EVERY)
def test_nested_loops_and_breaks_disturb_nobody(built: Built, face: Any) -> None:
    pipeline = built.pipeline("id", "image", workers=1).batch(40)
    batches = [list(range(at, min(at + 40, 100))) for at in range(0, 100, 40)]
    outer = face.passes(pipeline)
    inner = face.passes(pipeline) if isinstance(face, NodeFace) else outer  # a node is its own iterator

    def numbers(begin: Callable[[], Iterator[Any]]) -> Iterator[list[int]]:
        return (ids(pipeline, [element]) for element in begin())

    assert [(a, b) for a in numbers(outer) for b in numbers(inner)] == list(itertools.product(batches, batches))
    if inner is outer:
        assert list(zip(numbers(outer), numbers(outer), strict=True)) == list(zip(batches, batches, strict=True))
    for stop in (1, 2, 1, 1):
        assert list(itertools.islice(numbers(outer), stop)) == batches[:stop]
        gc.collect()
    assert list(numbers(outer)) == batches


@pytest.mark.slow
@faces(*ONE_OF_EACH)
def test_threads_may_iterate_one_dataset_at_the_same_time(built: Built, face: Any) -> None:
    pipeline = built.pipeline("id", "small", workers=1).batch(7)
    begin = face.passes(pipeline)
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(ids(pipeline, begin()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(100))] * 4


# --- failures ---


@faces(THREADS, *ONE_OF_EACH, NodeFace(), TorchFace(1))
def test_a_pass_that_failed_names_the_row_and_is_followed_by_a_clean_one(
    built: Built, tmp_path: Path, face: Any
) -> None:
    flag = tmp_path / "fail"
    flag.touch()

    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 50 and os.path.exists(flag):
            raise ValueError("not today")
        return row

    pipeline = built.pipeline("id", workers=2).transform(fails).batch(4)
    begin = face.passes(pipeline)
    iterator = begin()
    assert ids(pipeline, itertools.islice(iterator, 12)) == list(range(48))
    message = (
        r"(?s)transform .*fails failed for file .*part-001\.parquet, row group 2, row 10: ValueError\('not today'\).*"
        r"Traceback.*line \d+, in fails"
    )
    with pytest.raises(Exception, match=message) as caught:
        next(iterator)
    assert type(caught.value).__name__ in ("TransformError", "InternalError")
    del iterator, caught
    flag.unlink()
    assert ids(pipeline, begin()) == list(range(100))


@pytest.mark.slow
@pytest.mark.usefixtures("new_sidecars")
@pytest.mark.parametrize("fields", [CHEAP, COSTLY], ids=["cheap", "costly"])
@faces(*ONE_OF_EACH)
def test_the_death_of_the_sidecar_is_an_error_with_its_status(built: Built, face: Any, fields: tuple[str, ...]) -> None:
    pipeline = built.pipeline(*fields, executor="sidecar", workers=2, restarts=0).repeat().batch(4)
    before = set(psutil.Process().children())
    begin = face.passes(pipeline)
    iterator = begin()
    held = next(iterator)
    (reader,) = (child for child in set(psutil.Process().children()) - before if _is_sidecar(child))
    children = [reader.pid, *(child.pid for child in reader.children(recursive=True))]
    reader.kill()
    with pytest.raises(
        Exception,
        match=rf"sidecar \(process {reader.pid}\) (died: killed by SIGKILL(?s:.*)Begin a new iteration|ended unexpectedly: signal 9)",
    ) as caught:
        for _ in iterator:
            pass
    assert type(caught.value).__name__ in ("SidecarError", "InternalError")
    assert gone(children) == []
    first = [row["id"] for row in plain_element(pipeline.element, held)]  # the user's values remain
    with pytest.raises(StopIteration):
        next(iterator)
    assert ids(pipeline, itertools.islice(begin(), 1)) == first  # another one starts


def _is_sidecar(process: psutil.Process) -> bool:
    return "parquetry.common.sidecar" in command_of(process)
