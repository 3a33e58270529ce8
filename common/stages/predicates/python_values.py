"""Python values of stored columns, for code that compares or hashes them.

Takes any flat Arrow array. The values never depend on whether pandas is installed, and every stored value has one: also
times outside Python's range, times with nanoseconds, and text that is not UTF-8.
"""

from __future__ import annotations

import datetime
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_numpy
from ...base.process.dataclass import dataclass

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, repr=False)
class ExactTime:
    """A time that Python's classes cannot hold: ``whole`` and 1 to 999 ``nanoseconds``. The text is that of pandas."""

    whole: datetime.datetime | datetime.time | datetime.timedelta
    nanoseconds: int

    def __str__(self) -> str:
        if isinstance(self.whole, datetime.timedelta):
            clock = (datetime.datetime.min + self.whole % datetime.timedelta(days=1)).time()
            sign = "+" if self.whole.days < 0 else ""
            return f"{self.whole.days} days {sign}{clock.isoformat('microseconds')}{self.nanoseconds:03}"
        zone = self.whole.isoformat()[len(self.whole.replace(tzinfo=None).isoformat()) :]
        return f"{self.whole.replace(tzinfo=None).isoformat(timespec='microseconds')}{self.nanoseconds:03}{zone}"

    __repr__ = __str__


def plain_storage(column: _Column) -> _Column:
    """Returns what an extension column stores, as it is delivered: the bytes of UUIDs, the text of JSON. Other columns
    are returned unchanged.
    """
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column.storage


def python_values(values: pa.Array) -> list[Any]:
    """Returns the values of a flat array; ``None`` for null.

    Times with nanoseconds are `ExactTime`. Times outside Python's range are ISO texts, and text that is not UTF-8 is
    bytes.
    """
    if getattr(values.type, "unit", None) == "ns":
        return _with_nanoseconds(values)
    try:
        plain: list[Any] = values.to_pylist()
        return plain
    except (OverflowError, UnicodeDecodeError):
        return [_python_value(scalar) for scalar in values]


def _with_nanoseconds(values: pa.Array) -> list[Any]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        coarse = pa.timestamp("us", kind.tz)
    else:
        coarse = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
    missing = as_numpy(values.is_null())
    count = as_numpy(values.cast(pa.int64()).fill_null(0))
    whole = pa.array(count // 1000, mask=missing).cast(coarse).to_pylist()
    rests = (count % 1000).tolist()
    return [ExactTime(value, rest) if rest else value for value, rest in zip(whole, rests, strict=True)]


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()
    except OverflowError:
        return _far_time(scalar)


def _far_time(scalar: pa.Scalar) -> str:
    """Returns the text of a time outside Python's range, the same in every unit; in UTC if it has a time zone."""
    kind, count = scalar.type, scalar.value
    if pa.types.is_date(kind):
        days = count if pa.types.is_date32(kind) else count // (_DAY_S * 1000)
        return str(np.datetime64(days, "D"))
    per_second = _PER_SECOND[kind.unit]
    seconds, rest = divmod(count, per_second)
    fraction = f".{rest * 10**6 // per_second:06}" if rest else ""
    days, clock = divmod(seconds, _DAY_S)
    if pa.types.is_duration(kind):
        return f"{days} days, {datetime.timedelta(seconds=clock)}{fraction}"
    date, _, time = str(np.datetime64(seconds, "s")).partition("T")
    if kind.tz is None:
        return f"{date}T{time}{fraction}" if clock or rest else date
    return f"{date}T{time}{fraction}+00:00"
