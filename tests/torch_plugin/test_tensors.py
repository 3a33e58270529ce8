"""What each kind of field becomes in a batch and in a row."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python
from torch.utils.data import DataLoader, default_collate

from parquetry import describe
from parquetry.common import Pipeline
from parquetry.common import cu_seqlens as common_cu_seqlens
from parquetry.common.base.errors import NullValueError, TransformError
from parquetry.common.engine.columns.batch import Dense, Ragged, Strings
from parquetry.common.engine.run.step_source import split_columns
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.schema.element import Element, output_of
from parquetry.common.schema.field import UnischemaField
from parquetry.torch_plugin import ParquetPipe, cu_seqlens, to_list
from parquetry.torch_plugin.tensors import arrays_to_torch, batch_to_torch, parts_to_torch, split_for_torch
from parquetry.torch_plugin.torch_internals import jagged

F32 = UnischemaField("x", np.float32, (1,))
SCALARS = {
    "id": torch.int64,
    "half": torch.float16,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "flag": torch.bool,
}


@pytest.mark.parametrize(("name", "dtype"), SCALARS.items())
def test_numbers_are_tensors_of_the_fields_own_dtype(
    url: str, rows: list[dict[str, Any]], name: str, dtype: torch.dtype
) -> None:
    batches = [batch[name] for batch in ParquetPipe(url, [name]).batch(16)]
    assert all(batch.dtype == dtype and batch.ndim == 1 for batch in batches)
    assert [value for batch in batches for value in batch.tolist()] == [row[name] for row in rows]
    elements = [row[name] for row in ParquetPipe(url, [name])]
    assert all(element.dtype == dtype and element.ndim == 0 for element in elements)
    assert [element.item() for element in elements] == [row[name] for row in rows]


@pytest.mark.parametrize("name", ["image", "x"])
def test_arrays_of_one_shape_are_stacked_in_a_batch(url: str, rows: list[dict[str, Any]], name: str) -> None:
    batch = next(iter(ParquetPipe(url, [name]).batch(60)))[name]
    np.testing.assert_array_equal(batch.numpy(), np.stack([row[name] for row in rows]))
    for element, row in zip(ParquetPipe(url, [name]), rows, strict=True):
        np.testing.assert_array_equal(element[name].numpy(), row[name])


@pytest.mark.parametrize("name", ["drive", "raw", "tags", "corners"])
def test_strings_are_python_strings_in_lists(url: str, rows: list[dict[str, Any]], name: str) -> None:
    assert [value for batch in ParquetPipe(url, [name]).batch(16) for value in batch[name]] == [r[name] for r in rows]
    assert [element[name] for element in ParquetPipe(url, [name])] == [row[name] for row in rows]


def test_one_variable_axis_in_front_is_a_jagged_nested_tensor(url: str, rows: list[dict[str, Any]]) -> None:
    batch = next(iter(ParquetPipe(url, ["points"]).batch(60)))["points"]
    assert batch.is_nested
    assert batch.layout == torch.jagged
    assert batch.offsets().tolist() == np.cumsum([0] + [len(row["points"]) for row in rows]).tolist()
    for value, row in zip(to_list(batch), rows, strict=True):
        np.testing.assert_array_equal(value.numpy(), row["points"])


@pytest.mark.parametrize("workers", [0, 1])
def test_jagged_batches_are_padded_to_their_longest_row(url: str, rows: list[dict[str, Any]], workers: int) -> None:
    loader = DataLoader(ParquetPipe(url, ["points"]).batch(8), batch_size=None, num_workers=workers)
    longest = [max(len(row["points"]) for row in rows[start : start + 8]) for start in range(0, len(rows), 8)]
    padded = [batch["points"].to_padded_tensor(0.0) for batch in loader]
    assert [batch.shape[1] for batch in padded] == longest
    np.testing.assert_array_equal(padded[0][0, : len(rows[0]["points"])].numpy(), rows[0]["points"])


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("sizes", [[3, 0, 1], [0, 0], [5]])
def test_a_jagged_tensor_is_what_torch_makes_of_the_same_rows(
    sizes: list[int], shape: tuple[int, ...], fallback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fallback:
        monkeypatch.setattr("parquetry.torch_plugin.torch_internals.Jagged", None)
    values = torch.arange(sum(sizes) * math.prod(shape), dtype=torch.float32).view(-1, *shape)
    offsets = torch.tensor([0, *itertools.accumulate(sizes)])
    lengths = {"min_seqlen": min(sizes), "max_seqlen": max(sizes)}
    expected = torch.nested.nested_tensor_from_jagged(values, offsets, **lengths)
    made = jagged(values, offsets, min(sizes), max(sizes))
    assert type(made) is type(expected)
    assert (made.dtype, made.layout, made.device) == (expected.dtype, expected.layout, expected.device)
    assert (made.size(0), made.size()[2:], made.ndim) == (expected.size(0), expected.size()[2:], expected.ndim)
    assert made.is_contiguous() == expected.is_contiguous()
    assert made.requires_grad == expected.requires_grad
    assert made.values().data_ptr() == values.data_ptr()
    assert torch.equal(made.values(), values)
    assert torch.equal(made.offsets(), offsets)
    for one, other in zip(made.unbind(0), expected.unbind(0), strict=True):
        assert torch.equal(one, other)
    sent = pickle.loads(pickle.dumps(made))
    assert torch.equal(sent.values(), values)
    assert torch.equal(sent.offsets(), offsets)
    if sum(sizes):
        assert torch.equal((made * 2).sin().values(), (expected * 2).sin().values())
        assert torch.equal(made.to_padded_tensor(-1.0), expected.to_padded_tensor(-1.0))
        assert made.to_padded_tensor(-1.0).shape[1] == max(sizes)
        (made.requires_grad_() * 2).values().sum().backward()
        assert torch.equal(made.grad.values(), torch.full_like(values, 2))


@pytest.mark.slow
def test_a_first_batch_with_a_jagged_tensor_does_not_load_torchs_compiler(url: str) -> None:
    code = (
        "import sys; from torch.utils.data import DataLoader; from parquetry.torch_plugin import ParquetPipe;"
        f"pipe = ParquetPipe({url!r}, ['points']).batch(8);"
        "batches = [next(iter(DataLoader(pipe, batch_size=None, num_workers=workers))) for workers in (1, 0)];"
        "sys.exit(not all(batch['points'].is_nested for batch in batches) or 'torch._dynamo' in sys.modules)"
    )
    assert run_python("-c", code, check=True).stderr == ""


@pytest.mark.slow
def test_a_jagged_tensor_is_sent_without_an_import() -> None:
    """The thread of a loader's queue sends it. With too many open files, an import fails there and nobody hears it."""
    code = (
        "import sys, torch\n"
        "from parquetry.torch_plugin.tensors import reduce_jagged\n"
        "from parquetry.torch_plugin.torch_internals import jagged\n"
        "made = jagged(torch.arange(6), torch.tensor([0, 2, 6]), 2, 4)\n"
        "before = set(sys.modules)\n"
        "assert reduce_jagged(made)[0] is jagged\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    run_python("-c", code, check=True)


def test_other_variable_shapes_are_a_list_of_tensors(url: str, rows: list[dict[str, Any]]) -> None:
    batch = next(iter(ParquetPipe(url, ["map"]).batch(60)))["map"]
    assert isinstance(batch, list)
    for value, row in zip(to_list(batch), rows, strict=True):
        assert value.dtype == torch.int32
        np.testing.assert_array_equal(value.numpy(), row["map"])


@pytest.mark.parametrize("name", ["points", "map"])
def test_a_row_of_variable_shape_is_a_tensor_of_its_own_shape(url: str, rows: list[dict[str, Any]], name: str) -> None:
    for element, row in zip(ParquetPipe(url, [name]), rows, strict=True):
        np.testing.assert_array_equal(element[name].numpy(), row[name])


def test_stacked_windows_put_the_steps_behind_the_batch_axis(url: str, rows: list[dict[str, Any]]) -> None:
    pipe = ParquetPipe(url, ["id", "x", "points", "drive", "tags"]).ngram(length=3, stride=2)
    starts = [*range(0, 28, 2), *range(30, 58, 2)]  # windows do not span files
    batch = next(iter(pipe.batch(100)))
    assert batch["id"].tolist() == [[start, start + 1, start + 2] for start in starts]
    assert batch["x"].shape == (len(starts), 3, 3)
    assert batch["drive"] == [[rows[start + step]["drive"] for step in range(3)] for start in starts]
    assert batch["tags"] == [[rows[start + step]["tags"] for step in range(3)] for start in starts]
    for start, cells in zip(starts, batch["points"], strict=True):
        for step, cell in enumerate(cells):
            np.testing.assert_array_equal(cell.numpy(), rows[start + step]["points"])
    element = list(pipe)[4]
    assert element["id"].tolist() == [8, 9, 10]
    assert [len(cell) for cell in element["points"]] == [0, 1, 2]


def test_a_batch_is_the_engines_own_memory_and_keeps_it_alive(url: str) -> None:
    pipeline = Pipeline(url, ["image"]).batch(8)
    _, columns = next(StepIterator(pipeline, 0, strict_nulls=True))
    address = columns[0].values.ctypes.data
    tensor = batch_to_torch(pipeline.element, columns)["image"]
    assert tensor.data_ptr() == address
    del columns
    tensor += 1  # writable and not shared
    assert tensor[:, 0, 0, 0].tolist() == list(range(1, 9))


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_batches_that_are_kept_do_not_change_when_more_are_read(url: str, executor: str) -> None:
    pipe = ParquetPipe(url, ["id", "image", "x"], executor=executor, workers=1)
    kept = [batch for _ in range(4) for batch in pipe.batch(4)]
    assert [batch["id"].tolist() for batch in kept] == [list(range(s, s + 4)) for s in range(0, 60, 4)] * 4
    for batch in kept:
        assert batch["image"].amax(dim=(1, 2, 3)).tolist() == batch["id"].tolist()
    elements = [element for _ in range(4) for element in pipe]
    assert all(element["x"][1] == element["id"] for element in elements)


def test_the_sidecar_gives_the_same_elements_as_threads(url: str) -> None:
    threads, sidecar = (
        list(ParquetPipe(url, executor=executor, workers=1).shuffle(10, seed=4).batch(16))
        for executor in ("threads", "sidecar")
    )
    for left, right in zip(threads, sidecar, strict=True):
        for name in left:
            for one, other in zip(to_list(left[name]), to_list(right[name]), strict=True):
                assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
            if isinstance(right[name], torch.Tensor) and not right[name].is_nested:
                right[name].zero_()  # writable


def test_rows_collate_like_the_rows_of_any_dataset(url: str, rows: list[dict[str, Any]]) -> None:
    names = [*SCALARS, "drive", "raw", "image", "x"]
    batch = default_collate(list(ParquetPipe(url, names).take(8)))
    for name in SCALARS:
        assert batch[name].dtype == SCALARS[name]
        assert batch[name].tolist() == [row[name] for row in rows[:8]]
    assert batch["drive"] == [row["drive"] for row in rows[:8]]
    assert batch["raw"] == [row["raw"] for row in rows[:8]]
    assert batch["image"].shape == (8, 4, 5, 3)


@pytest.mark.parametrize("name", ["name", "score"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_null_is_an_error_that_names_the_remedy(nullable_url: str, name: str, batched: bool) -> None:
    pipe = ParquetPipe(nullable_url, ["id", name])
    remedy = (
        rf"nulls\('fill', '{name}', value=...\), nulls\('mask', '{name}'\) or nulls\('drop', '{name}'\).*: '{name}'\.$"
    )
    with pytest.raises(NullValueError, match=rf"field '{name}'.*row 1.*{remedy}"):
        list(pipe.batch(4) if batched else pipe)
    kept = list(pipe.where(pc.is_valid(pc.field(name))))
    assert [row["id"].item() for row in kept] == [0, 2, 3, 5, 6, 8, 9]


def test_to_list_gives_one_value_for_each_row_of_any_field(url: str) -> None:
    batch = next(iter(ParquetPipe(url).batch(6)))
    assert {len(to_list(values)) for values in batch.values()} == {6}
    assert [value.item() for value in to_list(batch["id"])] == list(range(6))


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 9), count=st.integers(1, 6), shapes=st.lists(st.sampled_from([(), (2,), (3, 1)]), max_size=4)
)
def test_batches_split_in_one_go_are_those_split_apart(size: int, count: int, shapes: list[tuple[int, ...]]) -> None:
    fields = [UnischemaField(f"x{n}", np.float32, shape) for n, shape in enumerate([(), *shapes])]
    outputs = tuple(output_of(field) for field in fields)
    element = Element(outputs=outputs, batch_size=size)
    rows = size * count
    columns = [
        Dense(np.arange(rows * math.prod(output.shape), dtype=np.float32).reshape(rows, *output.shape))  # type: ignore[arg-type]
        for output in outputs
    ]
    found = [arrays_to_torch(element, arrays) for arrays in split_for_torch(element, columns, count)]
    wanted = [batch_to_torch(element, part) for part in split_columns(columns, count)]
    assert len(found) == len(wanted) == count
    for left, right in zip(found, wanted, strict=True):
        assert list(left) == list(right)
        assert all(torch.equal(left[name], right[name]) and left[name].shape == right[name].shape for name in left)
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in left.values())


def test_columns_that_tensors_cannot_look_into_are_split_apart() -> None:
    element = Element(outputs=(output_of(UnischemaField("x", np.float32, ())),), batch_size=2)
    values = np.arange(4, dtype=np.float32)
    values.flags.writeable = False
    parts = list(split_for_torch(element, [Dense(values)], 2))
    assert [parts_to_torch(element, part)["x"].tolist() for part in parts] == [[0, 1], [2, 3]]


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 5), count=st.integers(1, 4), data=st.data())
def test_lists_and_strings_split_in_one_go_are_those_split_apart(size: int, count: int, data: st.DataObject) -> None:
    shapes: dict[str, tuple[int | None, ...]] = {"flat": (None,), "pairs": (None, 2), "any": (None, None), "x": ()}
    fields = [UnischemaField(name, np.int32, shape) for name, shape in shapes.items()]
    element = Element(outputs=tuple(map(output_of, [*fields, UnischemaField("text", np.str_, ())])), batch_size=size)
    rows, columns = size * count, []
    for shape in shapes.values():
        if not shape:
            columns.append(Dense(np.arange(rows, dtype=np.int32)))
            continue
        sizes = st.tuples(*(st.integers(0, 3) if axis is None else st.just(axis) for axis in shape))
        cells = np.array(data.draw(st.lists(sizes, min_size=rows, max_size=rows)), np.int64).reshape(rows, len(shape))
        columns.append(Ragged(cells, np.arange(cells.prod(axis=1).sum(), dtype=np.int32), (rows,)))
    ends = np.arange(rows + 1, dtype=np.int64) * 2
    columns.append(Strings(ends, np.frombuffer(b"ab" * rows, np.uint8), (rows,)))
    found = [parts_to_torch(element, parts) for parts in split_for_torch(element, columns, count)]
    wanted = [batch_to_torch(element, part) for part in split_columns(columns, count)]
    assert len(found) == len(wanted) == count
    for left, right in zip(found, wanted, strict=True):
        assert {name: listed(value) for name, value in left.items()} == {
            name: listed(value) for name, value in right.items()
        }
        assert left["pairs"].is_nested
        assert left["pairs"]._max_seqlen == right["pairs"]._max_seqlen


def listed(value: Any) -> Any:
    return [row.tolist() if isinstance(row, torch.Tensor) else row for row in to_list(value)]


def test_segments_come_in_the_form_that_attention_takes() -> None:
    for ids in (np.array([[1, 1, 2, 2], [1, 1, 1, 0]], np.int32), np.array([1, 2, 2, 0]), np.zeros((0, 4), np.int32)):
        offsets, longest = cu_seqlens(torch.from_numpy(ids))
        expected, most = common_cu_seqlens(ids)
        assert (offsets.tolist(), offsets.dtype, longest) == (expected.tolist(), torch.int32, most)
    with pytest.raises(ValueError, match=r"expected integers .* got torch.float32 \(2,\)"):
        cu_seqlens(torch.zeros(2))


def test_tensors_of_torch_are_described_by_their_own_dtypes() -> None:
    jagged = torch.nested.nested_tensor([torch.zeros(1, 3), torch.ones(2, 3)], layout=torch.jagged)
    found = describe({"x": torch.zeros(2, 3, dtype=torch.bfloat16), "j": jagged}).fields
    assert [(field.dtype, field.shape) for field in found] == [("bfloat16", "(2, 3)"), ("float32", "(2, None, 3)")]


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (torch.tensor([2**24 + 1]), "expected values that float32 can hold, got 16777217"),
        (torch.ones(1, requires_grad=True), "got Tensor: Can't call numpy.* on Tensor that requires grad"),
        (torch.ones(1, dtype=torch.bfloat16), "got Tensor: Got unsupported ScalarType BFloat16"),
    ],
)
def test_a_tensor_that_a_function_returns_is_stored_exactly_or_refused(url: str, tensor: Any, wanted: str) -> None:
    pipeline = ParquetPipe(url, ["id"]).transform(lambda row: {"x": tensor}, F32, remove=("id",))
    with pytest.raises(TransformError, match=rf"transform .*, field 'x', file .*, row 0: .*{wanted}"):
        next(iter(pipeline))
