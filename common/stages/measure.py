"""`Measure`: a number of each wanted row that must be known before the order is, such as a length or a weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pyarrow as pa

from .base import Stage


class Measure(Stage):
    """Base of what a stage measures (`Stage.measure`); part of the selection, so it is computed once and kept with it.

    It is no verb of its own. Subclasses are frozen dataclasses; their fields, the names in ``reads`` among them, must
    decide the numbers.
    """

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> np.ndarray:
        """One number for each row.

        Args:
            table: the fields in ``reads``, of the wanted rows of one row group, in the types of the dataset.
            describe: where a row of the table is stored, for errors.

        Raises:
            ParquetryError: a row that cannot be measured.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, object]:
        return {"measure": type(self).__name__, **{item.name: getattr(self, item.name) for item in fields(self)}}  # type: ignore[arg-type]  # subclasses are dataclasses
