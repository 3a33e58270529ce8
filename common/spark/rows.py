"""`dict_to_spark_row`: one row of plain values as the Spark ``Row`` of its stored columns."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..schema.encoding import encode_rows
from ..schema.field import Unischema
from ..schema.spark_types import to_spark
from .encoding import core_schema
from .session import require_pyspark


def dict_to_spark_row(schema: Unischema, row: Mapping[str, Any]) -> Any:
    """The row for ``spark.createDataFrame(rows, schema.as_spark_schema())``.

    For many rows, `encode_dataframe` or `write_rows` are faster: there bytes do not become Python objects of Spark's.

    Args:
        row: a value for each field; nullable ones may be missing.

    Raises:
        EncodeError: a value that does not fit its field, an unknown field.
    """
    require_pyspark("dict_to_spark_row")
    from pyspark.sql import Row

    schema = core_schema(schema)
    arrays = encode_rows(schema, [row])
    values = [_python(to_spark(arrays[name], field=name)[0]) for name in schema.fields]
    return Row(*schema.fields)(*values)


def _python(value: pa.Scalar) -> Any:
    if isinstance(value, pa.TimestampScalar) and value.is_valid:  # no pandas, which Arrow would use for nanoseconds
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=value.value)
    return value.as_py()
