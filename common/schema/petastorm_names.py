"""The names that a Petastorm pickle may hold, and the inert values that stand for them.

Names may come from Python 2 or 3 and from any Petastorm release. Each becomes a `Global` under its current name. The
list of allowed names is exact, and names are never resolved to objects.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TypeAlias

import numpy as np

from ..base.process.dataclass import dataclass

KEY_TYPES = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function in a pickle. It is never resolved to the object itself."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


Stored: TypeAlias = Any
"""A value from a pickle. It may be of any type, so check the type before use."""


@dataclass(slots=True, eq=False, repr=False)
class InertObject:
    """A pickled object as data: the name of its class, the arguments of ``__new__``, and its state."""

    cls: Global
    args: tuple[Any, ...] = ()
    state: Stored = None

    def attributes(self) -> dict[Any, Any]:
        """Returns the state as a dict, or an empty dict if there is none."""
        return self.state if type(self.state) is dict else {}


_SPARK_TYPES = (
    "ArrayType BinaryType BooleanType ByteType CalendarIntervalType CharType DataType DateType DayTimeIntervalType "
    "DecimalType DoubleType FloatType IntegerType LongType MapType NullType ShortType StringType StructField "
    "StructType TimestampNTZType TimestampType VarcharType YearMonthIntervalType"
)
_NUMPY_TYPES = (
    "bool bool_ bytes_ complex64 complex128 datetime64 float16 float32 float64 int8 int16 int32 int64 intc longlong "
    "object_ str_ string_ timedelta64 uint8 uint16 uint32 uint64 uintc ulonglong unicode_"
)


def names(module: str, text: str) -> frozenset[Global]:
    """Returns the names of one module that are listed in ``text``, separated by spaces."""
    return frozenset(Global(module, name) for name in text.split())


DTYPE = Global("numpy", "dtype")
FIELD = Global("petastorm.unischema", "UnischemaField")
SCHEMA = Global("petastorm.unischema", "Unischema")

CLASSES = (
    frozenset([FIELD, SCHEMA])
    | names("petastorm.codecs", "ScalarCodec NdarrayCodec CompressedNdarrayCodec CompressedImageCodec")
    | names("petastorm.etl.rowgroup_indexers", "SingleFieldIndexer FieldNotNullIndexer")
    | names("pyspark.sql.types", _SPARK_TYPES)
)
"""The classes that may be instantiated, as an `InertObject`."""

SYMBOLS = (
    names("numpy", _NUMPY_TYPES)
    | names("decimal", "Decimal")
    | names("builtins", "object tuple list dict set frozenset int long float bool str unicode bytes")
)
"""The other names that may occur."""

RENAMED_MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy._core.multiarray": "numpy.core.multiarray",
    **{
        f"{package}.{module}": f"petastorm.{module}"
        for package in ("av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
        for module in ("codecs", "unischema", "etl.rowgroup_indexers")
    },
}

_TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")


def dtype_of(described: InertObject) -> np.dtype[Any]:
    """Returns the numpy dtype that a pickled ``numpy.dtype`` describes.

    Raises:
        ValueError: it is not a plain number, string or time, but for example a record or an object.
    """
    text = described.args[0] if described.args else None
    if type(text) is not str or not re.fullmatch(r"[biufcSUmM][0-9]{0,9}", text):
        raise ValueError(f"expected a plain numpy dtype, got {describe(text)}")
    state = described.state if type(described.state) is tuple else ()
    unit = _time_unit(state)
    swapped = len(state) > 1 and type(state[1]) is str and state[1] == (">" if sys.byteorder == "little" else "<")
    try:
        dtype = np.dtype(f"{text}[{unit}]" if unit and text[0] in "mM" else text)
        return dtype.newbyteorder("S") if swapped else dtype
    except TypeError as error:
        raise ValueError(f"expected a plain numpy dtype, got {text!r}") from error


def _time_unit(state: tuple[Any, ...]) -> str | None:
    """Returns the unit of a time dtype from the last item of its state, ``({}, (b"ns", 1, 1, 1))``."""
    details = state[8] if len(state) > 8 else None
    unit_and_counts = details[1] if type(details) is tuple and len(details) == 2 else None
    unit = unit_and_counts[0] if type(unit_and_counts) is tuple and unit_and_counts else None
    text = unit.decode("latin1") if type(unit) is bytes else unit
    return text if type(text) is str and text in _TIME_UNITS else None


def describe(value: object) -> str:
    """Returns a short description for errors, whatever the pickle held."""
    if isinstance(value, str | bytes):
        return repr(value[:80]) + ("..." if len(value) > 80 else "")
    if type(value) in KEY_TYPES:
        return repr(value)
    if isinstance(value, InertObject):
        return f"an object of {value.cls}"
    return str(value) if isinstance(value, Global) else f"a {type(value).__name__}"
