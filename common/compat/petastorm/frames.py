"""Converts row groups to pandas DataFrames for user code in `make_batch_reader`. Only this module imports pandas.

Values are as from Arrow's ``to_pandas``: integers with nulls are float64 with NaN (or objects with ``None`` if float64
cannot represent one of them), bools with nulls are objects, and null text is ``None`` in every version of pandas.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError, missing_package
from .values import column_array

if TYPE_CHECKING:
    import pandas as pd


def has_pandas() -> bool:
    """Whether pandas can be imported."""
    return importlib.util.find_spec("pandas") is not None


def pandas(what: str) -> ModuleType:
    """Imports pandas; if it is missing, the error says what needs it."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise PipelineError(
            f"make_batch_reader: {what} gets a DataFrame, so it {missing_package(error, 'pandas', 'petastorm')}"
        ) from error


def to_frame(table: pa.Table, what: str) -> Any:
    """Converts the columns of a row group to a DataFrame."""
    module = pandas(what)
    return module.DataFrame({name: _series(module, table.column(name)) for name in table.column_names})


def _series(module: ModuleType, column: pa.ChunkedArray) -> Any:
    values = column_array(column)
    if isinstance(values, np.ma.MaskedArray):
        return module.Series(nulls_as_nan(values))
    if values.ndim > 1:
        return module.Series(list(values), dtype=object)
    return module.Series(values.astype(object) if values.dtype.kind == "U" else values, dtype=_dtype_of(values))


def nulls_as_nan(values: np.ma.MaskedArray) -> np.ndarray:
    """Converts masked integers or bools to what pandas has for them; see above."""
    if values.dtype.kind != "b":
        floats = values.filled(0).astype(np.float64)
        if all(int(number) == whole for number, whole in zip(floats, values.filled(0).tolist(), strict=True)):
            floats[values.mask] = np.nan
            return floats
    result = values.filled(0).astype(object)
    result[values.mask] = None
    return result


def _dtype_of(values: np.ndarray) -> Any:
    return object if values.dtype.kind in "UO" else None  # pandas 3 would infer its own text type, with NaN


def from_series(series: pd.Series) -> np.ndarray:
    """Converts a DataFrame's column to an array; a nullable column with nulls becomes a masked array."""
    if hasattr(series.array, "isna") and type(series.array).__name__ in ("IntegerArray", "BooleanArray"):
        missing = np.asarray(series.isna())
        filled = series.fillna(False if type(series.array).__name__ == "BooleanArray" else 0)
        numbers = filled.to_numpy(dtype=series.dtype.numpy_dtype)
        return np.ma.MaskedArray(numbers, missing) if missing.any() else numbers
    if series.dtype.kind == "O" and not isinstance(series.dtype, np.dtype):  # pandas' own text type
        result: np.ndarray = series.to_numpy(dtype=object, na_value=None)
        return result
    return np.asarray(series)
