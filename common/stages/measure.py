"""`Measure`: a number for each wanted row, such as a length or a weight, that must be known before the order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from .base import Stage


class Measure(Stage):
    """Base of what a stage measures (`Stage.measure`). It is part of the selection: computed once and stored with it.

    It is not a verb. Subclasses are frozen dataclasses, and their fields, including the names in ``reads``, must fully
    determine the numbers.
    """

    @property
    def lists(self) -> tuple[str, ...]:
        """The fields whose lists, if they hold lists, have the measured lengths."""
        return ()

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> Any:
        """Returns one number per row (int64 or float64), or the input from which `combine` computes them.

        Args:
            table: the fields in ``reads`` for the wanted rows of one row group, with the dataset's types.
            describe: says where a row of the table is stored, for error messages.

        Raises:
            ParquetryError: a row cannot be measured.
        """
        raise NotImplementedError

    def combine(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the numbers of all wanted rows, in storage order, from the results of `numbers` per row group."""
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def at(self, positions: np.ndarray, total: int) -> np.ndarray:
        """Returns the numbers of rows without reading them; called if ``reads`` is empty.

        Args:
            positions: the rows' positions among the ``total`` rows of the dataset, in storage order, int64.
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
