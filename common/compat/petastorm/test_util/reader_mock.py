"""`ReaderMock`: an endless reader of generated rows."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np

from ....base.errors import PipelineError
from ..unischema import Unischema


class ReaderMock:
    """Returns rows made by a function, for testing code that consumes a reader.

    Args:
        schema: schema of the rows.
        schema_data_generator: takes the schema and returns a row as a dict.
    """

    batched_output = False
    last_row_consumed = False
    stopped = False

    def __init__(
        self, schema: Unischema, schema_data_generator: Callable[[Unischema], Any], ngram: object = None
    ) -> None:
        if ngram is not None:
            raise PipelineError("ReaderMock: expected ngram=None, because a mock makes single rows.")
        self.schema = schema
        self.ngram = None
        self._generate = schema_data_generator

    def __iter__(self) -> ReaderMock:
        return self

    def __next__(self) -> Any:
        return self.schema.make_namedtuple(**self._generate(self.schema))

    def fetch(self) -> Any:
        """Returns the next row."""
        return next(self)

    next = fetch

    def stop(self) -> None:
        """Does nothing."""

    def join(self) -> None:
        """Does nothing."""

    def __enter__(self) -> ReaderMock:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def schema_data_generator_example(schema: Unischema) -> dict[str, Any]:
    """Makes a row of zeros; variable axes have length 10."""
    row: dict[str, Any] = {}
    for field in schema.fields.values():
        shape = tuple(10 if axis is None else axis for axis in field.shape)
        is_decimal = field.numpy_dtype is decimal.Decimal
        row[field.name] = decimal.Decimal("0.0") if is_decimal else np.zeros(shape, field.numpy_dtype)
    return row
