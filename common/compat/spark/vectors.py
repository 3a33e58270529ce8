"""Converts MLlib vectors to arrays of numbers, which Parquet and tensors can hold."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...base.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

FLOATS = ("float32", "float64")


def vectors_to_arrays(df: DataFrame, dtype: str | None = None) -> Any:
    """Returns the DataFrame with every dense or sparse vector converted to an array.

    ``dtype=None`` keeps the doubles of the vectors.
    """
    from pyspark.sql import functions

    names = vector_columns(df)
    if not names:
        return df
    from pyspark.ml.functions import vector_to_array

    converted = {name: vector_to_array(functions.col(_quoted(name)), dtype or "float64") for name in names}
    return df.withColumns(converted)


def vector_columns(df: DataFrame) -> list[str]:
    """Returns the names of columns with ``pyspark.ml`` or older ``pyspark.mllib`` vectors."""
    return [field.name for field in df.schema if type(field.dataType).__name__ == "VectorUDT"]


def with_floats(df: DataFrame, dtype: str | None) -> Any:
    """Returns the DataFrame with all floats cast to one type, including those in arrays.

    ``None`` changes nothing.

    Raises:
        PipelineError: ``dtype`` is another type.
    """
    if dtype is None:
        return df
    if dtype not in FLOATS:
        raise PipelineError(f"spark_converter: expected dtype to be one of {FLOATS} or None, got {dtype!r}.")
    from pyspark.sql import functions, types

    float_type = types.FloatType() if dtype == "float32" else types.DoubleType()
    changed = {}
    for field in df.schema:
        target = _with_float(field.dataType, float_type, types)
        if target != field.dataType:
            changed[field.name] = functions.col(_quoted(field.name)).cast(target)
    return df.withColumns(changed) if changed else df


def _with_float(kind: DataType, float_type: DataType, types: ModuleType) -> Any:
    if isinstance(kind, types.FloatType | types.DoubleType):
        return float_type
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_with_float(kind.elementType, float_type, types), kind.containsNull)
    return kind


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
