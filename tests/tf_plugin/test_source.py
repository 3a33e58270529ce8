"""The source op's output for a batch: values, shapes, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

IMAGE = (64, 8)


DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"
]  # fmt: skip


def test_every_dtype_arrives_as_it_is(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(*(output(dtype, (3,), dtype) for dtype in DTYPES), rows=6, batch=4)
    first, last = dataset
    numbers = np.repeat(np.arange(6), 3).reshape(6, 3)
    for dtype in DTYPES:
        found = [batch[dtype].numpy() for batch in (first, last)]
        assert [part.dtype for part in found] == [np.dtype(dtype)] * 2
        np.testing.assert_array_equal(np.concatenate(found), numbers.astype(dtype))


def test_spec_and_batches_agree(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("b", IMAGE, "float32"), output("a", kind="text"), rows=10, batch=4)
    assert dataset.element_spec == {
        "a": tf.TensorSpec((None,), tf.string),
        "b": tf.TensorSpec((None, *IMAGE), tf.float32),
    }
    batches = list(dataset)
    assert [batch["b"].shape for batch in batches] == [(4, *IMAGE), (4, *IMAGE), (2, *IMAGE)]
    assert [row.decode() for batch in batches for row in batch["a"].numpy()] == [f"row-{n}" for n in range(10)]


def test_static_batches_have_a_static_spec(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("x", (None,), "int32"), output("y"), static_batch=True, rows=8)
    assert dataset.element_spec["y"] == tf.TensorSpec((4,), tf.int64)
    assert dataset.element_spec["x"].shape == (4, None)


def test_offsets_of_a_window_are_the_outer_keys(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("x", offset=1), output("x", offset=-1), output("y", kind="text", offset=0), rows=4)
    (batch,) = dataset
    assert set(batch) == {-1, 0, 1}
    assert batch[1]["x"].numpy().tolist() == [0, 1, 2, 3]
    assert batch[0]["y"].numpy().tolist() == [b"row-0", b"row-1", b"row-2", b"row-3"]


def test_stacked_windows_have_a_second_axis(fake_dataset: Callable[..., Any], output: Any) -> None:
    (batch,) = fake_dataset(output("x", (2,), "int32", window=3), output("t", kind="text", window=3), rows=2)
    np.testing.assert_array_equal(batch["x"].numpy()[:, :, 0], [[0, 1, 2], [1, 2, 3]])
    assert batch["t"].numpy().tolist() == [[b"row-0", b"row-1", b"row-2"], [b"row-1", b"row-2", b"row-3"]]


def test_whole_tensors_point_into_the_slot(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any
) -> None:
    iterator = iter(fake_dataset(output("x", IMAGE, "float32"), rows=-1))
    batch = next(iterator)["x"]
    assert in_shared_memory(batch)
    assert not in_shared_memory(batch + 1)


def test_small_tensors_are_copied(fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any) -> None:
    assert not in_shared_memory(next(iter(fake_dataset(output("x"), rows=4)))["x"])


def test_ops_never_write_into_a_slot(fake_dataset: Callable[..., Any], output: Any) -> None:
    """An op that reused its input's buffer for its output would change the slot of a later batch."""
    dataset = fake_dataset(output("x", IMAGE, "float32"), rows=20)
    changed = dataset.map(lambda batch: tf.nn.relu(-batch["x"]) + 1)
    assert [batch.numpy().max() for batch in changed] == [1.0] * 5
    batch = next(iter(dataset))["x"]
    variable = tf.Variable(batch)
    variable.assign_add(tf.ones_like(batch))
    np.testing.assert_array_equal(variable.numpy(), batch.numpy() + 1)


@pytest.mark.parametrize("promise_slots", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_hoarding_every_batch_neither_stalls_nor_mixes_values(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any, slots: int, promise_slots: bool
) -> None:
    dataset = fake_dataset(output("x", IMAGE, "float32"), rows=120, slots=slots, promise_slots=promise_slots)
    batches = [batch["x"] for batch in dataset]
    assert len(batches) == 30
    assert sum(in_shared_memory(batch) for batch in batches) <= max(slots - 2, 0)
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch.numpy()[:, 0, 0], np.arange(4 * number, 4 * number + 4))


def test_a_batch_outlives_its_iterator_and_its_dataset(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any
) -> None:
    dataset = fake_dataset(output("x", IMAGE, "float32"), rows=-1)
    iterator = iter(dataset)
    batches = [next(iterator)["x"] for _ in range(3)]
    del iterator, dataset
    assert in_shared_memory(batches[0])
    assert [batch.numpy()[0, 0, 0] for batch in batches] == [0, 4, 8]


def test_hoarded_rows_keep_neither_slots_nor_chunks(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any
) -> None:
    dataset = fake_dataset(output("x", IMAGE, "float32"), rows=60, batched=False, slots=4)
    rows = [row["x"] for row in dataset]
    assert 0 < sum(in_shared_memory(row) for row in rows) <= 2 * 4
    assert [row.numpy()[0, 0] for row in rows] == list(range(60))


def test_unbatched_rows_are_slices_of_the_chunk(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any
) -> None:
    fields = (
        output("x", IMAGE, "float32"),
        output("odd", (301,), "uint8"),
        output("id"),
        output("t", (2,), kind="text"),
    )
    dataset = fake_dataset(*fields, rows=6, batched=False)
    assert dataset.element_spec["x"] == tf.TensorSpec(IMAGE, tf.float32)
    for number, row in enumerate(dataset):
        assert row["id"].numpy() == number
        assert row["t"].numpy().tolist() == [f"row-{number}".encode()] * 2
        np.testing.assert_array_equal(row["x"].numpy(), np.full(IMAGE, number))
        np.testing.assert_array_equal(row["odd"].numpy(), np.full(301, number))
    row = next(iter(dataset))
    assert in_shared_memory(row["x"])
    assert not in_shared_memory(row["odd"])


VARIABLE: list[tuple[tuple[int | None, ...], Callable[[int], Any]]] = [
    ((None,), lambda n: [n] * (n % 4)),
    ((None, 2), lambda n: [[n, n]] * (n % 4)),
    ((2, None), lambda n: [[n] * (n % 4)] * 2),
    ((None, None), lambda n: [[n] * (n % 4)] * (n % 4)),
    ((None, 2, None, 3), lambda n: [[[[n] * 3] * (n % 4)] * 2] * (n % 4)),
]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 3])
def test_values_of_variable_shape_become_ragged_tensors(
    fake_dataset: Callable[..., Any], output: Any, window: int | None
) -> None:
    fields = {f"{kind} {shape}": (kind, shape, value) for kind in ("dense", "text") for shape, value in VARIABLE}
    outputs = [output(name, shape, "int32", kind=kind, window=window) for name, (kind, shape, _) in fields.items()]

    def expected(row: int, kind: str, value: Callable[[int], Any]) -> Any:
        cells = [value(row)] if window is None else [value(row + step) for step in range(window)]
        cells = tf.nest.map_structure(lambda n: f"row-{n}".encode(), cells) if kind == "text" else cells
        return cells[0] if window is None else cells

    dataset = fake_dataset(*outputs, output("id"), rows=10)
    unbatched = fake_dataset(*outputs, rows=10, batched=False)
    batches, rows = list(dataset), list(unbatched)
    lead = (None,) if window is None else (None, window)
    for name, (kind, shape, value) in fields.items():
        spec = dataset.element_spec[name]
        assert isinstance(spec, tf.RaggedTensorSpec)
        assert spec.shape.as_list() == [*lead, *shape]
        wanted = [expected(row, kind, value) for row in range(10)]
        assert [row for batch in batches for row in batch[name].to_list()] == wanted
        assert unbatched.element_spec[name].shape.as_list() == [*lead[1:], *shape]
        assert [row[name].to_list() if window else row[name].numpy().tolist() for row in rows] == wanted


def test_a_null_is_an_error_that_names_the_field(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("fine"), output("speed"), null="speed")
    with pytest.raises(tf.errors.InvalidArgumentError, match="field 'speed': expected no null"):
        next(iter(dataset))


def test_a_dtype_other_than_promised_is_an_error(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(
        output("x", (3,), "int32"), rows=4, fields=[{"kind": "dense", "dtype": "int64", "shape": [3]}]
    )
    with pytest.raises(tf.errors.InternalError, match=r"field 'x': expected int32 \[\?,3\], got int64 \[4,3\]"):
        next(iter(dataset))


def test_a_shape_other_than_promised_is_an_error(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("x", (3,)), rows=4, fields=[{"kind": "dense", "dtype": "int64", "shape": [2]}])
    with pytest.raises(tf.errors.InternalError, match=r"field 'x': expected int64 \[\?,3\], got int64 \[4,2\]"):
        next(iter(dataset))


def test_a_tensor_outside_its_slot_is_an_error(fake_dataset: Callable[..., Any]) -> None:
    with pytest.raises(tf.errors.InternalError, match="field 0 role 0: expected it aligned and inside the slot"):
        next(iter(fake_dataset(corrupt=True)))


@pytest.mark.slow
def test_a_message_out_of_order_is_an_error(fake_dataset: Callable[..., Any]) -> None:
    with pytest.raises(tf.errors.InternalError, match="expected element 0, got element 5"):
        next(iter(fake_dataset(wrong_first=True)))


def test_writing_to_a_leased_slot_changes_nothing_else(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Callable[[tf.Tensor], bool]
) -> None:
    torch = pytest.importorskip("torch")
    dataset = fake_dataset(output("a", (64,)), output("b", (64,)), rows=48, slots=3)
    for number, element in enumerate(dataset.repeat(2)):
        first, second = element["a"], element["b"]
        if number == 0:
            assert in_shared_memory(first)
        rows = np.arange(4 * (number % 12), 4 * (number % 12) + 4)
        assert (first.numpy() == rows[:, None]).all()
        torch.from_dlpack(tf.experimental.dlpack.to_dlpack(first)).mul_(2).add_(1)
        assert (first.numpy() == 2 * rows[:, None] + 1).all()
        assert (second.numpy() == rows[:, None]).all()
