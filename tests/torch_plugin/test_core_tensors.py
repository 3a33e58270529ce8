"""Tensors made by the compiled core are those of `torch.from_numpy`, and keep exactly the memory that they need."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import mmap
import pickle
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.data import DataLoader

from parquetry.common.base.native.compiler import find_compiler
from parquetry.common.base.native.dlpack import DTYPES, TensorLayout, TensorRun, exchange_of, is_exchanged, tensors_in
from parquetry.common.engine.columns.batch import Dense
from parquetry.torch_plugin import ParquetPipe, as_is, tensors
from parquetry.torch_plugin.loader_workers import sent_batches
from parquetry.torch_plugin.tensors import CoreBatch, split_for_core, torch_exchange

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(torch_exchange() is None, reason="this torch has no exchange interface"),
]
ROWS, COLUMNS, BATCH = 400, 30, 40


def exchange() -> int:
    """Returns torch's interface, which the pinned version has."""
    found = torch_exchange()
    assert found is not None
    return found


class Memory:
    """Bytes that arrays may share, and whether something still holds them."""

    def __init__(self, size_bytes: int) -> None:
        self._mapped = mmap.mmap(-1, size_bytes)
        self.lease = (ctypes.c_uint8 * size_bytes).from_buffer(self._mapped)
        self._held = weakref.ref(self.lease)

    def array(self, dtype: str, count: int, offset: int = 0) -> np.ndarray:
        return np.frombuffer(self.lease, dtype, count, offset)

    def release(self) -> None:
        del self.lease

    @property
    def is_held(self) -> bool:
        return self._held() is not None


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing here may wait for Python's collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@examples(150)
@given(data=st.data())
def test_tensors_are_those_of_torch(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5), label="parts")
    memory = Memory(1 << 16)
    arrays = []
    for number in range(data.draw(st.integers(1, 6), label="arrays")):
        dtype = data.draw(st.sampled_from(sorted(DTYPES, key=str)), label="dtype")
        shape = (count * data.draw(st.integers(0, 4)), *data.draw(st.lists(st.integers(0, 3), max_size=3)))
        size = int(np.prod(shape))
        shared = data.draw(st.booleans(), label="shared memory")
        flat = memory.array(dtype.str, size, number << 12) if shared else np.empty(size, dtype)
        flat.view(np.uint8)[...] = np.arange(flat.nbytes) % 2
        arrays.append(flat.reshape(shape))
    run = TensorRun(exchange(), arrays, count)
    for part in data.draw(st.permutations(range(count))):
        for tensor, array in zip(run.tensors(part), arrays, strict=True):
            rows = len(array) // count
            expected = torch.from_numpy(array[part * rows : (part + 1) * rows])
            assert type(tensor) is torch.Tensor
            assert tensor.dtype == expected.dtype
            assert tensor.shape == expected.shape
            assert tensor.stride() == torch.empty(expected.shape).stride()
            assert tensor.numel() == 0 or tensor.data_ptr() == expected.data_ptr()
            assert tensor.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
            assert not tensor._is_view()
            assert tensor.is_leaf
            assert torch.equal(tensor, expected)


def test_tensors_do_what_others_do() -> None:
    array = np.ones((4, 3), np.float32)
    (tensor,) = TensorRun(exchange(), [array], 1).tensors(0)
    tensor[0, 0] = 5
    assert array[0, 0] == 5
    assert np.from_dlpack(tensor)[0, 0] == 5
    assert tensor.numpy().flags.writeable
    assert torch.equal(copy.deepcopy(tensor), tensor)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    stored = io.BytesIO()
    torch.save(tensor, stored)
    assert torch.equal(torch.load(io.BytesIO(stored.getvalue())), tensor)
    assert torch.equal(copy.copy(tensor).share_memory_(), tensor)
    tensor.requires_grad_().sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.eq(1).all()
    with torch.inference_mode():
        assert TensorRun(exchange(), [array], 1).tensors(0)[0].is_inference()


@pytest.mark.usefixtures("no_collector")
def test_memory_is_held_by_the_last_tensor() -> None:
    memory = Memory(1 << 16)
    arrays = [memory.array("f4", 8, number << 10) for number in range(20)]
    run = TensorRun(exchange(), arrays, 2)
    kept, others = run.tensors(0), run.tensors(1)
    del arrays, run, others
    memory.release()
    last = [kept.pop(7)]
    del kept
    assert memory.is_held
    other = threading.Thread(target=last.clear)  # frees it
    other.start()
    other.join()
    assert not memory.is_held


@pytest.mark.usefixtures("no_collector")
def test_an_array_of_its_own_is_not_held_by_other_tensors() -> None:
    arrays = [np.zeros(8, np.float32) for _ in range(4)]
    held = [weakref.ref(array) for array in arrays]
    kept = TensorRun(exchange(), arrays, 2).tensors(1)[2]
    del arrays
    assert [array() is not None for array in held] == [False, False, True, False]
    del kept
    assert held[2]() is None


@pytest.mark.usefixtures("no_collector")
def test_a_refused_tensor_leaves_nothing_behind() -> None:
    memory = Memory(1 << 12)
    layout = TensorLayout([np.dtype("f4"), np.dtype(np.longdouble)], [(2,), (2,)])
    with pytest.raises((RuntimeError, BufferError), match="bits 128"):
        tensors_in(exchange(), layout, memory.lease, np.zeros(2, np.int64).tobytes(), 0)
    memory.release()
    assert not memory.is_held


@examples(100)
@given(offsets=st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 70), min_size=3, max_size=3))
def test_tensors_outside_the_memory_are_refused(offsets: list[int]) -> None:
    lease = Memory(64).lease
    layout = TensorLayout([np.dtype("u1")] * 3, [(4,), (2, 8), (0,)])
    message = b"head" + np.array(offsets, np.int64).tobytes()
    fits = all(0 <= offset <= 64 - size for offset, size in zip(offsets, (4, 16, 0), strict=True))
    if fits:
        assert [len(tensor) for tensor in tensors_in(exchange(), layout, lease, message, 4)] == [4, 2, 0]
    else:
        with pytest.raises(ValueError, match="expected them in 64 bytes"):
            tensors_in(exchange(), layout, lease, message, 4)
    with pytest.raises(ValueError, match="expected 3 offsets"):
        tensors_in(exchange(), layout, lease, message, 5)


@pytest.mark.parametrize(
    "shape", [(1 << 32, 1 << 32), (1 << 61, 8), ((1 << 63) - 1, 2), (0, 1 << 62, 4), (-1,), (-2, -4), (0, -1), (65,)]
)
def test_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    layout = TensorLayout([np.dtype("u1")], [shape])
    with pytest.raises(ValueError, match="expected them in 64 bytes"):
        tensors_in(exchange(), layout, Memory(64).lease, bytes(8), 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_modes_of_torch_see_each_tensor(table: Path, workers: int) -> None:
    pipe = ParquetPipe(table).batch(4).repeat(2)
    batches = iter(DataLoader(pipe, batch_size=None, num_workers=workers, collate_fn=as_is))
    outside = [next(batches) for _ in range(20)]
    with FakeTensorMode():
        inside = [next(batches) for _ in range(100)]
    # A loader with workers makes up to sixteen batches when they arrive, so the first ones may be older than the mode.
    made = inside[40:] if workers else inside
    assert {type(tensor) for batch in outside for tensor in batch.values()} == {torch.Tensor}
    assert {type(tensor) for batch in made for tensor in batch.values()} == {FakeTensor}


def test_unknown_interfaces_are_not_used() -> None:
    class Other:
        pass

    assert exchange_of(Other) is None
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    interface = (ctypes.c_uint64 * 7)(2, *range(6))  # version 2.0
    for name, version, known in (
        (b"dlpack_exchange_api", 2, False),
        (b"another", 1, False),
        (b"dlpack_exchange_api", 1, True),
    ):
        interface[0] = version
        Other.__dlpack_c_exchange_api__ = new(ctypes.addressof(interface), name, None)  # type: ignore[attr-defined]
        assert (exchange_of(Other) is not None) == known


def test_what_torch_cannot_view_goes_another_way() -> None:
    array = np.zeros((64, 64), np.float32)
    read_only = array.copy()
    read_only.flags.writeable = False
    assert is_exchanged(array)
    for other in (read_only, array[:, :1], array.astype(">f4"), array.astype("M8[ms]"), array.astype(np.longdouble)):
        assert not is_exchanged(other)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file with many columns of numbers, of several dtypes and shapes."""
    path = tmp_path_factory.mktemp("numbers") / "table.parquet"
    numbers = np.arange(ROWS * COLUMNS).reshape(COLUMNS, ROWS)
    kinds = (np.float32, np.int64, np.bool_, np.uint8)
    columns: dict[str, Any] = {f"c{n:02}": values.astype(kinds[n % 4]) for n, values in enumerate(numbers)}
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS, dtype=np.int32)), 2)
    pq.write_table(pa.table({**columns, "pair": pairs}), path, row_group_size=100)
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_without_it(table: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> list[dict[str, torch.Tensor]]:
        pipe = ParquetPipe(table).shuffle(150, seed=3).batch(BATCH)
        found = list(DataLoader(pipe, batch_size=None, num_workers=workers, collate_fn=as_is))
        return [{name: tensor.clone() for name, tensor in batch.items()} for batch in found]

    made = batches()
    assert len(made) == ROWS // BATCH
    for module in (tensors, sent_batches):
        monkeypatch.setattr(module, "torch_exchange", lambda: None)
    sent_batches._layouts_of.cache_clear()
    others = batches()
    sent_batches._layouts_of.cache_clear()
    for batch, other in zip(made, others, strict=True):
        assert [*batch] == [*other]
        for name, tensor in batch.items():
            assert tensor.dtype == other[name].dtype
            assert torch.equal(tensor, other[name])


def test_only_many_small_columns_go_this_way(table: Path) -> None:
    element = ParquetPipe(table).batch(BATCH).pipeline.element
    columns = [Dense(np.zeros((ROWS, *output.shape), output.dtype)) for output in element.outputs]
    assert all(isinstance(batch, CoreBatch) for batch in split_for_core(element, columns, 10))
    assert not any(isinstance(batch, CoreBatch) for batch in split_for_core(element, columns, 1))
