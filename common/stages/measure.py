"""`Measure`: a number of each wanted row that must be known before the order is, such as a length or a weight."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from .base import Stage


class Measure(Stage):
    """Base of what a stage measures (`Stage.measure`); part of the selection, so it is computed once and kept with it.

    It is no verb of its own. Subclasses are frozen dataclasses; their fields, the names in ``reads`` among them, must
    decide the numbers.
    """

    @property
    def lists(self) -> tuple[str, ...]:
        """The fields whose lists are as long as the numbers say, where they hold lists."""
        return ()

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> Any:
        """One number for each row (int64 or float64), or what `combine` makes them of.

        Args:
            table: the fields in ``reads``, of the wanted rows of one row group, in the types of the dataset.
            describe: where a row of the table is stored, for errors.

        Raises:
            ParquetryError: a row that cannot be measured.
        """
        raise NotImplementedError

    def combine(self, parts: Sequence[Any]) -> np.ndarray:
        """The numbers of all wanted rows, in storage order, from what `numbers` gave for each row group."""
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def at(self, positions: np.ndarray, total: int) -> np.ndarray:
        """The numbers of rows that need not be read (where ``reads`` is empty).

        Args:
            positions: which of the ``total`` rows of the dataset they are, in storage order, int64.
        """
        raise NotImplementedError

    @property
    def called(self) -> str:
        return type(self).__name__

    @property
    def identity(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    def to_json(self) -> dict[str, object]:
        return {"measure": type(self).__name__, **{item.name: getattr(self, item.name) for item in fields(self)}}  # type: ignore[arg-type]  # subclasses are dataclasses
