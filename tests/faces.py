"""The faces of one pipeline: each runs it its own way and gives the same plain Python elements."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pytest

from parquetry.common import Pipeline, RaggedArray
from parquetry.common.engine.outputs import Element, OutputField, flatten, nest


class Face(Protocol):
    """A way to read a pipeline.

    Attributes:
        name: for test ids.
        nulls: whether it has a form for nulls.
    """

    name: str
    nulls: bool

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        """What the ``iteration``-th iterator gives, as plain Python: rows are dicts, batches lists of rows."""


class NumpyFace:
    """`Pipeline` itself, on one of its executors."""

    nulls = True

    def __init__(self, executor: str, workers: int | None = None) -> None:
        self.name = executor if workers is None else f"{executor}-{workers}"
        self._options: dict[str, Any] = {"executor": executor, **({} if workers is None else {"workers": workers})}

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        pipeline = pipeline.with_options(**self._options)
        element = pipeline.element
        for _ in range(iteration):
            iter(pipeline)
        with_iterator = iter(pipeline)
        try:
            return [_plain_element(element, value, _check_numpy) for value in with_iterator]
        finally:
            with_iterator.close()


class TensorFlowFace:
    """`ParquetDataset`."""

    name = "tensorflow"
    nulls = False

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        import_framework("tensorflow")
        from parquetry.tf_plugin import ParquetDataset

        dataset = ParquetDataset.from_pipeline(pipeline)
        for _ in range(iteration):
            next(iter(dataset))
        return [_plain_element(pipeline.element, value) for value in dataset]


class TorchFace:
    """`ParquetPipe`."""

    name = "torch"
    nulls = False

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        from parquetry.torch_plugin import ParquetPipe

        pipe = ParquetPipe.from_pipeline(pipeline)
        for _ in range(iteration):
            next(iter(pipe))
        return [_plain_element(pipeline.element, value) for value in pipe]


THREADS = NumpyFace("threads")
SIDECAR = NumpyFace("sidecar")


def installed_faces() -> list[Face]:
    """Every face whose framework is installed."""
    faces: list[Face] = [THREADS, SIDECAR]
    for face, framework in ((TensorFlowFace(), "tensorflow"), (TorchFace(), "torch")):
        if importlib.util.find_spec(framework) is not None:
            faces.append(face)
    return faces


def import_framework(name: str) -> Any:
    """A framework, whose own import may warn; skips the test if it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def plain(value: Any) -> Any:
    """Any value of any face in plain Python; NaN as the text ``nan``, so that it equals itself."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, np.ma.MaskedArray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | RaggedArray):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(part) for part in value] if value.ndim else plain(value[()])
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if hasattr(value, "to_list"):  # tf.RaggedTensor
        return plain(value.to_list())
    if hasattr(value, "numpy") and not getattr(value, "is_nested", False):
        return plain(value.numpy())
    if hasattr(value, "unbind"):
        return [plain(part) for part in value.unbind()]
    if isinstance(value, float) and value != value:
        return "nan"
    return value


def _plain_element(element: Element, value: Any, look: Any = None) -> Any:
    columns = []
    for output, part in zip(element.outputs, flatten(element.outputs, value), strict=True):
        if look is not None:
            look(output, part, element.batched)
        columns.append(_text(plain(part)) if output.kind == "text" else plain(part))
    if not element.batched:
        return nest(element.outputs, columns)
    return [nest(element.outputs, list(row)) for row in zip(*columns, strict=True)]


def _text(value: Any) -> Any:
    """TensorFlow has one type for text and bytes."""
    if isinstance(value, list):
        return [_text(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def _check_numpy(output: OutputField, value: Any, batched: bool) -> None:
    """What the element promises about dtype and shape holds for every value."""
    for leaf in _leaves(value):
        assert leaf.dtype == output.dtype or output.kind != "dense", (
            f"{output.name}: promised {output.dtype}, got {leaf.dtype}"
        )
        shapes = leaf.shapes.tolist() if isinstance(leaf, RaggedArray) else [leaf.shape] if output.ragged else []
        for shape in shapes:
            fits = len(shape) == len(output.shape) and all(
                w in (None, g) for w, g in zip(output.shape, shape, strict=True)
            )
            assert fits, f"{output.name}: promised {output.shape}, got {shape}"
    if isinstance(value, np.ndarray) and not output.ragged:
        promised = (None, *output.element_shape) if batched else output.element_shape
        if value.dtype != object or output.kind != "dense":
            assert len(value.shape) == len(promised), f"{output.name}: promised {promised}, got {value.shape}"
            assert all(want in (None, got) for want, got in zip(promised, value.shape, strict=True))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray) and value.dtype == object:
        for part in value.reshape(-1):
            yield from _leaves(part)
    elif isinstance(value, np.ndarray | np.generic | RaggedArray):
        yield value
