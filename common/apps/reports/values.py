"""Converts reports to JSON values."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...schema.ragged import NestedArray, RaggedArray


def to_json(value: object) -> Any:
    """Converts a report, or a part of one, to a value that ``json.dumps`` accepts.

    Dataclasses become objects, arrays become lists, times become ISO strings, and byte strings become strings (base64
    if they are not UTF-8). NaN and infinity become ``None``, because JSON cannot represent them.

    >>> to_json({"mean": np.float32(0.5), "shape": (3, None), "name": b"a"})
    {'mean': 0.5, 'shape': [3, None], 'name': 'a'}
    """
    if value is None or value is np.ma.masked or isinstance(value, bool | int | str):
        return None if value is np.ma.masked else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return _bytes_as_text(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else str(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return to_json(value.item())
    if isinstance(value, np.ma.MaskedArray | np.ndarray | RaggedArray | NestedArray):
        return [to_json(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(each) for each in value]
    return str(value)


def scalar_value(scalar: pa.Scalar) -> Any:
    """Converts an Arrow scalar to Python. Dates, timestamps and durations become numpy values in their own unit.

    Python's own times end in the year 9999 and have no nanoseconds.

    >>> scalar_value(pa.scalar(2**62, pa.timestamp("us")))
    np.datetime64('148108-07-06T14:00:27.387904')
    """
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_timestamp(kind):
        return np.datetime64(scalar.value, kind.unit)
    if pa.types.is_duration(kind):
        return np.timedelta64(scalar.value, kind.unit)
    if pa.types.is_date(kind):
        return np.datetime64(scalar.value, "D" if pa.types.is_date32(kind) else "ms")
    return str(scalar.cast(pa.string())) if pa.types.is_time(kind) else scalar.as_py()


def _bytes_as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
