"""Sends one stream: encodes the steps of an iteration until they end, one fails, or the client leaves."""

from __future__ import annotations

import json
import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..base.errors import ParquetryError
from ..engine.columns.batch import Column
from ..pipeline.pipeline import Pipeline
from ..pipeline.step_iterator import StepIterator
from ..schema.element import Element
from ..transport.served.encode import encode_rows, rows_schema
from ..transport.served.flat_columns import encode_flat, error_row, flat_schema
from ..transport.served.wire import ERROR_KEY, Layout, SocketWriter, StreamRequest
from .stream_budget import StreamBudget

_LOGGER = logging.getLogger(__name__)
_LONGEST_TEXT = 16_384
SentStep = tuple[int, list[Column], int]
"""Rows, columns, and the position after the step."""


def open_steps(pipeline: Pipeline, stream: StreamRequest) -> StepIterator[Any]:
    """Opens the steps of a stream at its cursor."""
    cursor, strict = stream.cursor, stream.strict_nulls
    steps = StepIterator(pipeline, cursor.iteration, strict_nulls=strict, worker=cursor.worker, workers=cursor.workers)
    steps.begin_at(replace(steps.cursor, origin=cursor.origin, start=cursor.start))
    return steps


def own_steps(pipeline: Pipeline, stream: StreamRequest, budget: StreamBudget) -> Iterator[SentStep]:
    """Yields the steps of an iteration that is not shared with other clients.

    Raises:
        PipelineError: the maximum number of streams is open.
    """
    with budget.open_stream(pipeline.options.memory_bytes) as share:
        steps = open_steps(pipeline.with_options(memory_limit=share.memory_bytes), stream)
        try:
            for count, columns in steps:
                yield count, columns, steps.position
        finally:
            steps.close()


def send_stream(connection: socket.socket, element: Element, steps: Iterator[SentStep], layout: Layout) -> None:
    """Sends all steps as one Arrow IPC stream. If the pipeline fails, the error is the last message.

    If the client is slower, Arrow's writer blocks in ``sendall``, and the engine reads ahead only up to its memory
    limit.
    """
    sink = SocketWriter(connection)
    schema = rows_schema(element) if layout == "rows" else flat_schema(element)
    encode = _encoder(element, schema, layout)
    try:
        with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_stream(file, schema) as writer:
            try:
                for step in steps:
                    batch, metadata = encode(step)
                    writer.write_batch(batch, custom_metadata=metadata)
            except Exception as error:
                if sink.broken:
                    return
                _LOGGER.warning("a stream ended with an error: %s", error)
                batch, metadata = _error_batch(element, schema, layout, error)
                writer.write_batch(batch, custom_metadata=metadata)
    except TimeoutError:
        _LOGGER.warning("a client that read nothing for %g s was dropped", connection.gettimeout() or 0)
    except OSError:
        _LOGGER.debug("a client left before the end of its stream")
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            close()


def error_to_json(error: BaseException, *, to_stranger: bool = False) -> dict[str, str]:
    """Encodes an error so that the client can raise it again: class name, message, and traceback.

    ``to_stranger`` leaves out the traceback, which shows the server's paths and names.
    """
    name = type(error).__name__ if isinstance(error, ParquetryError) else "ParquetryError"
    message = _shortened(str(error) if isinstance(error, ParquetryError) else f"{type(error).__name__}: {error}")
    if to_stranger:
        return {"error": name, "message": message}
    text = _shortened("".join(traceback.format_exception(error)).rstrip())
    return {"error": name, "message": f"{message}\n\nOn the server:\n{text}"}


def _shortened(text: str) -> str:
    """Cuts out the middle of a long text, which may quote a request. The end of a traceback names the cause."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}\n[... cut ...]\n{text[-half:]}"


def _encoder(
    element: Element, schema: pa.Schema, layout: Layout
) -> Callable[[SentStep], tuple[pa.RecordBatch, dict[bytes, bytes] | None]]:
    def rows(step: SentStep) -> tuple[pa.RecordBatch, dict[bytes, bytes] | None]:
        return encode_rows(element, schema, step[1], step[2])

    def flat(step: SentStep) -> tuple[pa.RecordBatch, dict[bytes, bytes] | None]:
        return encode_flat(element, schema, step[1], step[0]), None

    return rows if layout == "rows" else flat


def _error_batch(
    element: Element, schema: pa.Schema, layout: Layout, error: Exception
) -> tuple[pa.RecordBatch, dict[bytes, bytes] | None]:
    problem = error_to_json(error)
    if layout == "cells":
        return error_row(element, schema, f"{problem['error']}: {problem['message']}"), None
    nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return nothing, {ERROR_KEY: json.dumps(problem).encode()}
