"""Fixtures for the TensorFlow face: TensorFlow itself, and datasets over a fake sidecar that needs no files."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # TensorFlow's own use of numpy and protobuf
    import tensorflow as tf

from parquetry.common.schema.element import Element, OutputField
from parquetry.tf_plugin.source import new_dataset_key, source_dataset

FAKE = Path(__file__).with_name("fake_sidecar.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kills hanging tests from a thread: they hang inside TensorFlow, which handles no signals."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.versions)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(method="thread"))


@pytest.fixture(scope="session", autouse=True)
def _few_idle_sidecars() -> Iterator[None]:
    before = os.environ.get("PARQUETRY_SIDECAR_IDLE_S")
    os.environ["PARQUETRY_SIDECAR_IDLE_S"] = "5"
    yield
    if before is None:
        del os.environ["PARQUETRY_SIDECAR_IDLE_S"]
    else:
        os.environ["PARQUETRY_SIDECAR_IDLE_S"] = before


@pytest.fixture(autouse=True)
def _no_global_seed() -> Iterator[None]:
    """Resets TensorFlow's global seed after each test."""
    yield
    tf.compat.v1.set_random_seed(None)


def output(
    name: str,
    shape: tuple[int | None, ...] = (),
    dtype: Any = "int64",
    *,
    kind: str = "dense",
    window: int | None = None,
    offset: int | None = None,
) -> OutputField:
    """Returns a field of a fake; values of row ``n`` are ``n`` (or ``row-n``), variable axes have length ``n % 4``."""
    path = (name,) if offset is None else (offset, name)
    delivered = np.dtype(object) if kind != "dense" else np.dtype(dtype)
    return OutputField(path=path, kind=kind, dtype=delivered, shape=shape, window=window)  # type: ignore[arg-type]


def fake_request(
    outputs: tuple[OutputField, ...],
    *,
    rows: int = 12,
    batch: int = 4,
    batched: bool = True,
    slots: int = 6,
    promise_slots: bool = True,
    epoch_offset: int = 0,
    name: str = "a",
    null: str = "",
    **more: Any,
) -> str:
    """Returns the request for a fake.

    Args:
        rows: rows in the dataset; -1 = endless.
        batch: rows per message.
        promise_slots: whether STARTED reports the number of slots.
        epoch_offset: row numbers of iteration ``i`` start at ``i * epoch_offset``.
        name: states with another name are refused.
        null: a field with nulls.
        more: ``merge``: maximum batches per message; ``unknown`` length with a ``leap`` of elements skipped at
        ``leap_at``; faults, and ``log``: a file that records what the fake receives; see `Fake`.
    """
    fields = [
        {
            "kind": "dense" if item.kind == "dense" else "text",
            "dtype": item.dtype.name,
            "shape": list(item.shape),
            "window": item.window,
            "null": item.name == null,
        }
        for item in outputs
    ]
    spec = {
        "rows": rows,
        "batch": batch,
        "batched": batched,
        "slots": slots,
        "promise_slots": promise_slots,
        "epoch_offset": epoch_offset,
        "name": name,
        "fields": fields,
        **more,
    }
    return json.dumps({"fake": spec})


def fake_dataset(
    *outputs: OutputField, static_batch: bool = False, command: list[str] | None = None, state: str = "", **options: Any
) -> tf.data.Dataset:
    """Returns a dataset over a fake sidecar; options as in `fake_request`."""
    outputs = outputs or (output("id"),)
    request = fake_request(outputs, **options)
    batch_size = options.get("batch", 4) if options.get("batched", True) else None
    element = Element(outputs=outputs, batch_size=batch_size, static_batch=static_batch)
    return source_dataset(
        element,
        request,
        dataset_key=new_dataset_key(request),
        state=state,
        command=command or [sys.executable, str(FAKE)],
    )


class Log:
    """The messages that a fake received, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def events(self) -> list[dict[str, Any]]:
        """Returns all messages so far, each with the fake's process id."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Returns the STARTs."""
        return [event for event in self.events if "iteration" in event]

    @property
    def pids(self) -> list[int]:
        """Returns the processes, each once, in the order of their first START."""
        return list(dict.fromkeys(event["pid"] for event in self.starts))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log; pass ``log=str(log.path)`` to `fake_dataset`."""
    return Log(tmp_path / "events")


@pytest.fixture(name="fake_dataset")
def _fake_dataset() -> Callable[..., tf.data.Dataset]:
    return fake_dataset


@pytest.fixture(name="output")
def _output() -> Callable[..., OutputField]:
    return output


@pytest.fixture(name="fake_request")
def _fake_request() -> Callable[..., str]:
    return fake_request


def in_shared_memory(tensor: tf.Tensor) -> bool:
    """Whether a tensor's data lies in a slot of a fake sidecar."""
    address = tensor._numpy().__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return "fake-slot" in line
    return False


@pytest.fixture(name="in_shared_memory")
def _in_shared_memory() -> Callable[[tf.Tensor], bool]:
    return in_shared_memory
