"""Batches pass through Arrow unchanged, in both layouts, and any Arrow reader can read the first layout."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import ALL_FIELDS, Built, built_once

from parquetry.common import Pipeline
from parquetry.common.base.errors import EncodeError, SidecarError
from parquetry.common.engine.columns.batch import Column
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.transport.served.arrays import flat_array, list_array, numbers_of
from parquetry.common.transport.served.decode import decode_rows, element_of_schema
from parquetry.common.transport.served.encode import encode_rows, rows_schema
from parquetry.common.transport.served.flat_columns import encode_flat, error_row, flat_schema

SOME = ("id", "speed", "points", "tags", "matrix", "label", "flag", "names", "odd")
built = built_once([[5, 7], [9]], names=ALL_FIELDS)


def shapes_of_pipelines(built: Built) -> dict[str, Pipeline]:
    return {
        "rows": built.pipeline(),
        "batches": built.pipeline().batch(4),
        "stacked windows": built.pipeline(*SOME).ngram(length=3).batch(2),
        "windows by offset": built.pipeline(*SOME).ngram({0: ["id", "points"], 2: ["speed", "tags"]}).batch(3),
        "padded": built.pipeline("points", "tags").pad(".*").batch(4),
        "masked": built.pipeline("speed", "matrix", "names").nulls("mask").batch(4),
    }


CASES = ["rows", "batches", "stacked windows", "windows by offset", "padded", "masked"]


def over_the_wire(batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> tuple[pa.Schema, pa.RecordBatch, Any]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    reader = pa.ipc.open_stream(sink.getvalue())
    received, sent = reader.read_next_batch_with_custom_metadata()
    return reader.schema, received, {bytes(key): bytes(sent[key]) for key in sent}


def assert_same(found: Column, wanted: Column) -> None:
    assert type(found) is type(wanted)
    for part in dataclasses.fields(wanted):
        ours, theirs = getattr(found, part.name), getattr(wanted, part.name)
        if dataclasses.is_dataclass(theirs):
            assert_same(ours, theirs)
        elif isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours == theirs


@pytest.mark.parametrize("case", CASES)
def test_columns_come_back_as_they_were(built: Built, case: str) -> None:
    steps = StepIterator(shapes_of_pipelines(built)[case], 0, strict_nulls=False)
    schema, seen = rows_schema(steps.element), 0
    for _, columns in steps:
        batch, metadata = encode_rows(steps.element, schema, columns, steps.position)
        batch.validate(full=True)
        received_schema, received, sent = over_the_wire(batch, metadata)
        element = element_of_schema(received_schema)
        assert element == steps.element
        for found, wanted in zip(decode_rows(element.outputs, received, sent), columns, strict=True):
            assert_same(found, wanted)
        seen += 1
    assert seen


@pytest.mark.parametrize("case", ["rows", "batches", "stacked windows", "windows by offset", "padded"])
def test_elements_for_tensorflow_io_are_valid_arrow(built: Built, case: str) -> None:
    strict = tuple(field.name for field in built.schema if not field.nullable)
    pipeline = shapes_of_pipelines(built)[case]
    if case in ("rows", "batches"):
        pipeline = pipeline.select(*strict)
    elif case != "padded":
        pipeline = pipeline.select("id", "points", "tags")
    steps = StepIterator(pipeline, 0, strict_nulls=True)
    schema = flat_schema(steps.element)
    for count, columns in steps:
        batch = encode_flat(steps.element, schema, columns, count)
        batch.validate(full=True)
        assert batch.num_rows == (1 if steps.element.batched else count)
        assert all(column.null_count == 0 for column in batch.columns)
    failure = error_row(steps.element, schema, "what went wrong")
    failure.validate(full=True)
    assert failure.column(0).to_pylist() == ["what went wrong"]


def test_any_reader_of_arrow_sees_rows_and_lists(built: Built) -> None:
    steps = StepIterator(built.pipeline("id", "tags", "vector").batch(4), 0, strict_nulls=True)
    _, columns = next(steps)
    batch, _ = encode_rows(steps.element, rows_schema(steps.element), columns, 1)
    rows = built.plain[:4]
    assert batch.to_pylist() == [{name: row[name] for name in ("id", "vector", "tags")} for row in rows]
    steps.close()


def test_received_arrays_may_be_written_to() -> None:
    values = numbers_of(pa.array(np.arange(4, dtype=np.float32)), np.dtype(np.float32))
    values *= 2
    assert values.tolist() == [0, 2, 4, 6]


def test_more_values_than_arrow_lists_hold_are_an_error() -> None:
    with pytest.raises(EncodeError, match=r"at most 2147483647 values .* got 2147483648\. Use a smaller batch"):
        list_array(flat_array(np.zeros(1)), np.array([0, 2**31]))


def test_a_stream_of_something_else_is_an_error() -> None:
    with pytest.raises(SidecarError, match=r"expected 'parquetry.stream' in the schema's metadata, got none"):
        element_of_schema(pa.schema([("x", pa.int64())]))
