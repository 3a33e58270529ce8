"""The faces of a pipeline: each runs it in its own way and returns the same plain Python elements."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from chains import drawn_case, drawn_mix
from hypothesis import assume
from hypothesis import strategies as st
from oracle import apply

from parquetry.common import Pipeline, RaggedArray
from parquetry.common.base.errors import SchemaError
from parquetry.common.schema.element import Element, OutputField, flatten, nest


class Face(Protocol):
    """A way to read a pipeline. A face whose class has its own verbs also has ``over(url)``, and
    ``resumed(pipeline, steps)``: the elements of an iterator resumed from the state after ``steps`` elements.

    Attributes:
        name: name in test ids.
        nulls: whether it can represent nulls.
    """

    name: str
    nulls: bool

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        """Returns the ``iteration``-th iterator's elements in plain Python: rows as dicts, batches as lists of rows."""

    def passes(self, pipeline: Pipeline) -> Callable[[], Iterator[Any]]:
        """Returns what starts the next pass over one dataset, in the framework's form; the first is epoch 0."""


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
            return [plain_element(element, value, _check_numpy) for value in with_iterator]
        finally:
            with_iterator.close()

    def passes(self, pipeline: Pipeline) -> Callable[[], Iterator[Any]]:
        return pipeline.with_options(**self._options).__iter__

    def resumed(self, pipeline: Pipeline, steps: int) -> Iterator[Any]:
        iterator = iter(pipeline.with_options(**self._options))
        deque(itertools.islice(iterator, steps), maxlen=0)
        return iter(pipeline.with_options(**self._options)).load_state_dict(iterator.state_dict())


class TensorFlowFace:
    """`ParquetDataset`, iterated eagerly, or as numpy."""

    nulls = False

    def __init__(self, *, as_numpy: bool = False) -> None:
        self.name = "tensorflow-numpy" if as_numpy else "tensorflow"
        self._as_numpy = as_numpy

    def over(self, url: str) -> Any:
        """What has the verbs."""
        import_framework("tensorflow")
        from parquetry.tf_plugin import ParquetDataset

        return ParquetDataset(url)

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        import_framework("tensorflow")
        from parquetry.tf_plugin import ParquetDataset

        dataset = ParquetDataset.from_pipeline(pipeline)
        _begin(dataset, iteration)
        elements = list(dataset.as_numpy_iterator() if self._as_numpy else dataset)
        if not self._as_numpy:
            _check_spec(dataset, pipeline, elements)
        return [plain_element(pipeline.element, value, _check_dtype) for value in elements]

    def passes(self, pipeline: Pipeline) -> Callable[[], Iterator[Any]]:
        import_framework("tensorflow")
        from parquetry.tf_plugin import ParquetDataset

        dataset = ParquetDataset.from_pipeline(pipeline)
        return dataset.as_numpy_iterator if self._as_numpy else dataset.__iter__

    def resumed(self, pipeline: Pipeline, steps: int) -> Iterator[Any]:
        import_framework("tensorflow")
        from parquetry.tf_plugin import ParquetDataset

        dataset = ParquetDataset.from_pipeline(pipeline)
        deque(itertools.islice(dataset, steps), maxlen=0)
        return iter(ParquetDataset.from_pipeline(pipeline).load_state_dict(dataset.state_dict(steps)))


class TorchFace:
    """`ParquetIterable` or `ParquetPipe`, alone, or in a ``DataLoader`` with workers."""

    nulls = False

    def __init__(self, workers: int | None = None, *, kind: str = "ParquetIterable") -> None:
        self.name = kind if workers is None else f"{kind}-{workers}"
        self.workers = workers
        self._kind = kind

    @property
    def _face(self) -> Any:
        import parquetry.torch_plugin

        return getattr(parquetry.torch_plugin, self._kind)

    def over(self, url: str) -> Any:
        """What has the verbs."""
        return self._face(url)

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        from torch.utils.data import DataLoader

        rows: Any = self._face.from_pipeline(pipeline)
        if self.workers is not None:
            rows.set_epoch(iteration)
            loader = DataLoader(rows, batch_size=None, num_workers=self.workers)
            return [plain_element(pipeline.element, value, _check_dtype) for value in loader]
        _begin(rows, iteration)
        return [plain_element(pipeline.element, value, _check_dtype) for value in rows]

    def passes(self, pipeline: Pipeline) -> Callable[[], Iterator[Any]]:
        from torch.utils.data import DataLoader

        rows: Any = self._face.from_pipeline(pipeline)
        return (rows if self.workers is None else DataLoader(rows, batch_size=None, num_workers=self.workers)).__iter__

    def resumed(self, pipeline: Pipeline, steps: int) -> Iterator[Any]:
        iterator = iter(self._face.from_pipeline(pipeline))
        deque(itertools.islice(iterator, steps), maxlen=0)
        return iter(self._face.from_pipeline(pipeline).load_state_dict(iterator.state_dict()))


class NodeFace:
    """`ParquetNode`."""

    name = "node"
    nulls = False

    def over(self, url: str) -> Any:
        """What has the verbs."""
        from parquetry.torch_plugin import ParquetNode

        return ParquetNode(url)

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        from parquetry.torch_plugin import ParquetNode

        node = ParquetNode.from_pipeline(pipeline)
        node.set_epoch(iteration)
        node.reset()
        try:
            return [plain_element(pipeline.element, value, _check_dtype) for value in node]
        finally:
            node.close()

    def passes(self, pipeline: Pipeline) -> Callable[[], Iterator[Any]]:
        from parquetry.torch_plugin import ParquetNode

        node = ParquetNode.from_pipeline(pipeline)

        def begin() -> Iterator[Any]:
            node.reset()
            return node

        return begin

    def resumed(self, pipeline: Pipeline, steps: int) -> Iterator[Any]:
        from parquetry.torch_plugin import ParquetNode

        node = ParquetNode.from_pipeline(pipeline)
        node.reset()
        deque(itertools.islice(node, steps), maxlen=0)
        return iter(ParquetNode.from_pipeline(pipeline).load_state_dict(node.state_dict()))


class MapFace:
    """`ParquetMap`, read by number, alone, or in a ``DataLoader`` with workers."""

    nulls = False

    def __init__(self, workers: int | None = None) -> None:
        self.name = "map" if workers is None else f"map-{workers}"
        self.workers = workers

    def over(self, url: str) -> Any:
        """What has the verbs."""
        from parquetry.torch_plugin import ParquetMap

        return ParquetMap(url)

    def elements(self, pipeline: Pipeline, iteration: int = 0) -> list[Any]:
        from torch.utils.data import DataLoader

        from parquetry.torch_plugin import ParquetMap

        rows = ParquetMap.from_pipeline(pipeline)
        rows.set_epoch(iteration)
        loader: Any = rows if self.workers is None else DataLoader(rows, batch_size=None, num_workers=self.workers)
        found = [plain_element(pipeline.element, value, _check_dtype) for value in loader]
        listed = [plain_element(pipeline.element, value) for value in rows[:]]
        assert listed == found
        return found

    def passes(self, pipeline: Pipeline) -> Callable[[], Iterator[Any]]:
        from torch.utils.data import DataLoader

        from parquetry.torch_plugin import ParquetMap

        return DataLoader(ParquetMap.from_pipeline(pipeline), batch_size=None, num_workers=self.workers or 0).__iter__


def _begin(rows: Any, passes: int) -> None:
    """Starts passes and discards their elements; their rows may be null where those of the next pass are not."""
    for _ in range(passes):
        with suppress(Exception):
            next(iter(rows), None)


THREADS = NumpyFace("threads")
SIDECAR = NumpyFace("sidecar")

TORCH_WARNINGS = (
    # Since Python 3.12, forking a process with threads warns; loaders fork by default, and torch's threads suffice.
    r"ignore:This process .* is multi-threaded, use of fork\(\) may lead to deadlocks:DeprecationWarning",
    # Fewer processors than loader workers: true on small machines, and irrelevant here.
    "ignore:This DataLoader will create .* worker processes in total:UserWarning",
    # torchdata 0.11 calls a torch function that torch 2.13 deprecates.
    "ignore:'set_vital' is deprecated:UserWarning:torchdata",
)


def installed_faces() -> list[Face]:
    """Returns every face whose framework is installed."""
    faces: list[Face] = [THREADS, SIDECAR]
    for face, framework in ((TensorFlowFace(), "tensorflow"), (TorchFace(), "torch")):
        if importlib.util.find_spec(framework) is not None:
            faces.append(face)
    return faces


def import_framework(name: str) -> Any:
    """Imports a framework, whose import may warn; skips the test if it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def rows_over(name: str, url: str, **options: Any) -> Any:
    """Returns rows in a form of their own: of ``threads``, ``sidecar``, ``tensorflow``, or a class of `torch_plugin`.

    Skips the test if the framework is not installed.
    """
    if name in ("threads", "sidecar"):
        return Pipeline(url, executor=name, **options)  # type: ignore[arg-type]  # one of the two
    if name == "tensorflow":
        import_framework("tensorflow")
        from parquetry.tf_plugin import ParquetDataset

        return ParquetDataset(url, **options)
    import_framework("torchdata" if name == "ParquetNode" else "torch")
    from parquetry import torch_plugin

    return getattr(torch_plugin, name)(url, **options)


def plain(value: Any) -> Any:
    """Converts any value of any face to plain Python; NaN becomes the text ``nan``, so it equals itself."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, np.ma.MaskedArray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | RaggedArray):
        return [plain(part) for part in value]
    if hasattr(value, "offsets") and not hasattr(value, "dim"):  # a NestedArray, or NestedTensors
        return plain(value.tolist())
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


def plain_element(element: Element, value: Any, look: Any = None) -> Any:
    """Converts an element of any face to plain Python: a row is a dict, a batch is a list of rows."""
    columns = []
    for output, part in zip(element.outputs, _values(element, value), strict=True):
        if look is not None:
            look(output, part, element.batched)
        columns.append(_text(plain(part)) if output.kind == "text" else plain(part))
    if not element.batched:
        return nest(element.outputs, columns)
    return [nest(element.outputs, list(row)) for row in zip(*columns, strict=True)]


def _values(element: Element, value: Any) -> list[Any]:
    """Returns one value per output; checks a tuple against the form the element promises."""
    found: dict[int, Any] = {}

    def take_apart(form: Any, part: Any) -> None:
        if not isinstance(form, tuple):
            found[form] = part
        elif form[0] == "tuple":
            assert isinstance(part, tuple | list)  # torch's loader turns tuples into lists
            assert len(part) == len(form) - 1
            for inner, item in zip(form[1:], part, strict=True):
                take_apart(inner, item)
        else:
            assert list(part) == [key for key, _ in form[1:]]
            for key, inner in form[1:]:
                take_apart(inner, part[key])

    if element.form is None:
        return flatten(element.outputs, value)
    take_apart(element.form, value)
    return [found[number] for number in range(len(element.outputs))]


def _text(value: Any) -> Any:
    """Decodes text: TensorFlow has one type for text and bytes."""
    if isinstance(value, list):
        return [_text(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def _check_numpy(output: OutputField, value: Any, batched: bool) -> None:
    """Checks the dtype and shape that the element promises against every value."""
    for leaf in _leaves(value):
        assert leaf.dtype == output.numpy_dtype or output.kind != "dense", (
            f"{output.name}: promised {output.numpy_dtype}, got {leaf.dtype}"
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


def _check_dtype(output: OutputField, value: Any, batched: bool) -> None:
    """Checks that a framework's values have the dtype the element promises."""
    if output.kind == "dense" and not isinstance(value, list):
        values = getattr(value, "flat_values", value)  # of a tf.RaggedTensor
        values = values.values() if getattr(values, "is_nested", False) else values
        values = values.values if hasattr(values, "offsets") and not hasattr(values, "dim") else values  # NestedTensors
        for leaf in _leaves(np.asarray(values)):
            assert leaf.dtype == output.dtype, f"{output.name}: promised {output.dtype}, got {leaf.dtype}"


def _check_spec(dataset: Any, pipeline: Pipeline, elements: Sequence[Any]) -> None:
    """Checks what tf.data was told about the elements: their number, and the structure, dtype and shape of each."""
    tf = import_framework("tensorflow")
    try:
        length = len(pipeline)
    except TypeError:  # unknown before all rows are read
        length = tf.data.UNKNOWN_CARDINALITY
    assert int(dataset.cardinality()) == length
    for element in elements:
        fits = tf.nest.map_structure(
            lambda spec, value: spec.is_compatible_with(value), dataset.element_spec, element, expand_composites=False
        )
        assert all(tf.nest.flatten(fits)), f"promised {dataset.element_spec}"


_MIXED_KEYS = "expected no field beside the offsets"
_EMPTY = "expected at least one item|leaves nothing"
_NULL = "expected a value, found null, which a tensor cannot hold"


def outcome(run: Callable[[], list[Any]]) -> Any:
    """Returns the result, or ``"empty"`` or ``"null"`` for errors that every face raises for the same reason."""
    try:
        return run()
    except Exception as error:
        message = str(error)
        if not re.search(f"{_EMPTY}|{_NULL}", message):
            raise
    return "empty" if re.search(_EMPTY, message) else "null"


def holds_null(value: Any) -> bool:
    """Whether a plain value is, or holds, ``None``."""
    if isinstance(value, dict):
        return any(map(holds_null, value.values()))
    return any(map(holds_null, value)) if isinstance(value, list) else value is None


def run_on_faces(data: st.DataObject, cache: Path, faces: Sequence[Any]) -> None:
    """Draws a dataset, a chain, a face and an epoch, and compares the face with the result of threads.

    `tests/common` compares threads with the oracle. A face with its own verbs must build the same pipeline from them.
    """
    with drawn_case(data, cache) as (built, calls):
        face = data.draw(st.sampled_from(faces), "face")
        iteration = data.draw(st.integers(0, 2), "iteration")
        pipeline = apply(built.pipeline(), calls)
        if hasattr(face, "over"):
            assert apply(face.over(built.url), calls).pipeline.stages == pipeline.stages
        pipeline = drawn_mix(data, built.pipeline(), calls) or pipeline
        expected = outcome(lambda: THREADS.elements(pipeline, iteration))
        if isinstance(face, TensorFlowFace) and _mixes_keys(pipeline.element):
            with pytest.raises(SchemaError, match=_MIXED_KEYS):
                face.elements(pipeline, iteration)
            return
        if not face.nulls and holds_null(expected):
            expected = "null"
        # After an error, torch waits seconds for the loader's workers; separate tests cover that.
        assume(not (isinstance(expected, str) and isinstance(face, TorchFace | MapFace) and face.workers))
        pipeline = pipeline.with_options(memory_limit=data.draw(st.sampled_from([None, 1]), "memory_limit"))
        found = outcome(lambda: face.elements(pipeline, iteration))
        assert found == expected, f"{face.name}: expected {expected}, got {found}"


def run_resumed(data: st.DataObject, cache: Path, faces: Sequence[Any]) -> None:
    """Draws a chain and stops a face in it: the resumed iterator must return the rest of the elements of threads."""
    with drawn_case(data, cache) as (built, calls):
        face = data.draw(st.sampled_from(faces), "face")
        pipeline = drawn_mix(data, built.pipeline(workers=1), calls) or apply(built.pipeline(workers=1), calls)
        expected = outcome(lambda: THREADS.elements(pipeline))
        assume(not isinstance(expected, str) and not holds_null(expected))
        assume(not _mixes_keys(pipeline.element))
        steps = data.draw(st.integers(0, len(expected)), "steps")
        found = [plain_element(pipeline.element, value) for value in face.resumed(pipeline, steps)]
        assert found == expected[steps:], f"{face.name}: expected {expected[steps:]}, got {found}"


def _mixes_keys(element: Element) -> bool:
    """Whether a dict has fields next to the offsets of windows."""
    return element.form is None and len({type(output.path[0]) for output in element.outputs}) > 1


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray) and value.dtype == object:
        for part in value.reshape(-1):
            yield from _leaves(part)
    elif isinstance(value, np.ndarray | np.generic | RaggedArray):
        yield value
