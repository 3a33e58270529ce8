"""Which bounds in a footer may be in a wrong order, because an old release of a writer compared values as signed bytes.

It takes the name that a writer left in the footer, and one column. Arrow leaves out the bounds of texts and unsigned
numbers that such releases wrote, but not those of decimals, and it trusts files that do not name their writer.

Sources: PARQUET-251, PARQUET-686 and PARQUET-1025 (https://issues.apache.org/jira/browse/PARQUET-1025), and
``ApplicationVersion::HasCorrectStatistics`` of Arrow's ``metadata.cc``.
"""

from __future__ import annotations

import re
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

Trusted = Literal["all", "equal", "none"]

_WRITER = re.compile(r"(parquet-mr|parquet-cpp)(?![\w-])(?:\s+version\s+(\d+)\.(\d+))?")
_RIGHT_SINCE = {"parquet-mr": (1, 10), "parquet-cpp": (1, 3)}
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


def trusted_bounds(footer: pq.FileMetaData, column: pq.ColumnSchema) -> Trusted:
    """Which bounds of a column are right: all, only a minimum that equals the maximum, or none."""
    in_bytes = column.physical_type in _BYTES
    if not footer.created_by:
        return "none" if in_bytes or str(column.converted_type).startswith("UINT") else "all"
    found = _WRITER.match(footer.created_by)
    if not in_bytes or column.logical_type.type != "DECIMAL" or found is None:
        return "all"
    return "all" if (int(found[2] or 0), int(found[3] or 0)) >= _RIGHT_SINCE[found[1]] else "equal"


def may_be_misordered(kind: pa.DataType) -> bool:
    """Whether `trusted_bounds` is not always ``"all"`` for a column of this type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (
        pa.types.is_signed_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )
