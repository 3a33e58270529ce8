"""Row groups as pandas DataFrames, for the user code that `make_batch_reader` runs; pandas is imported only here.

Integers and bools with nulls become pandas' own nullable columns, so that no integer passes through a float.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import PipelineError
from .values import column_array


def has_pandas() -> bool:
    """Whether pandas can be imported."""
    return importlib.util.find_spec("pandas") is not None


def pandas(what: str) -> ModuleType:
    """The pandas module, or an error that says what needs it."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise PipelineError(
            f"make_batch_reader: {what} gets a pandas DataFrame, and pandas is not installed. Run: pip install pandas"
        ) from error


def to_frame(table: pa.Table, what: str) -> Any:
    """The columns of a row group as a DataFrame."""
    module = pandas(what)
    return module.DataFrame({name: _series(module, table.column(name)) for name in table.column_names})


def _series(module: ModuleType, column: pa.ChunkedArray) -> Any:
    values = column_array(column)
    if isinstance(values, np.ma.MaskedArray):
        bits = values.dtype.itemsize * 8
        names = {"b": "boolean", "i": f"Int{bits}", "u": f"UInt{bits}"}
        series = module.Series(values.data, dtype=names[values.dtype.kind])
        series[values.mask] = module.NA
        return series
    if values.dtype.kind == "U":
        return module.Series(values.astype(object), dtype=object)
    return module.Series(list(values) if values.ndim > 1 else values, dtype=object if values.ndim > 1 else None)


def from_series(series: Any) -> np.ndarray:
    """A DataFrame's column as an array: masked where a nullable column has nulls."""
    if hasattr(series.array, "isna") and type(series.array).__name__ in ("IntegerArray", "BooleanArray"):
        missing = np.asarray(series.isna())
        filled = series.fillna(False if type(series.array).__name__ == "BooleanArray" else 0)
        numbers = filled.to_numpy(dtype=series.dtype.numpy_dtype)
        return np.ma.MaskedArray(numbers, missing) if missing.any() else numbers
    return np.asarray(series)
