"""Small files with the habits of many writers: layouts of pages, and footers that say too little or what is not so.

Each file holds an ``id`` and a few columns, drawn by its number, so the same number always gives the same file.
"""

from __future__ import annotations

import datetime
import decimal
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import footer_edits
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from footer_edits import BINARY, I64, Struct

ROWS = 40
_FLOAT, _DOUBLE, _BYTES = 4, 5, 6  # types of column chunks in parquet.thrift


def write_files(folder: Path, numbers: Sequence[int]) -> Iterator[Path]:
    """Writes the files of these numbers, and yields the path of each; its name says what it holds."""
    for number in numbers:
        draw = random.Random(number)
        layout = draw.choice(list(LAYOUTS))
        habit = draw.choice(list(HABITS))
        kinds = draw.sample(list(KINDS), 4)
        columns = {"id": pa.array(range(ROWS), pa.int64())}
        columns |= {f"c{place}": _column(draw, KINDS[kind]) for place, kind in enumerate(kinds)}
        path = folder / f"{number:04}-{layout}-{habit}-{'-'.join(kinds)}.parquet"
        table = pa.table(columns)
        options = {"row_group_size": draw.choice([7, 13, ROWS]), **LAYOUTS[layout]}
        if options.get("column_encoding") is not None:
            options["column_encoding"] = {
                name: encoding
                for name, column in columns.items()
                if (encoding := options["column_encoding"].get(str(column.type))) is not None
            }
        pq.write_table(table, path, **options)
        footer_edits.edit(path, HABITS[habit])
        yield path


def _column(draw: random.Random, kind: tuple[pa.DataType, Callable[[random.Random], Any]]) -> pa.Array:
    dtype, value = kind
    share = draw.choice([0, 0, 0.3, 1])  # of nulls
    values = [None if draw.random() < share else value(draw) for _ in range(ROWS)]
    if draw.random() < 0.5 and not pa.types.is_nested(dtype):  # few distinct values, in order
        values = sorted(values[:6] * 7, key=str)[:ROWS]
    return pa.array(values, dtype)


def _integer(bits: int, signed: bool = True) -> Callable[[random.Random], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda draw: draw.choice(
        [low, low + 1, -1 if signed else 1, 0, 1, 9, high - 1, high, draw.randint(low, high)]
    )


def _number(draw: random.Random) -> float:
    return draw.choice([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.25, float(draw.randint(-9, 9))])


def _text(draw: random.Random) -> str:
    return draw.choice(["", "a", "b", "z" * 70, "é", "\U0001f600", "a\0", f"t{draw.randint(0, 9)}"])


def _binary(draw: random.Random) -> bytes:
    return draw.choice([b"", b"\0", b"\x7f", b"\x80", b"\xff" * 70, b"a", bytes([draw.randint(0, 255)])])


def _decimal(digits: int, scale: int) -> Callable[[random.Random], decimal.Decimal]:
    most = 10**digits - 1
    return lambda draw: decimal.Decimal(
        draw.choice([-most, -1, 0, 1, 150, 255, most, draw.randint(-most, most)])
    ).scaleb(-scale, decimal.Context(prec=76))


def _list(member: Callable[[random.Random], Any], size: int | None = None) -> Callable[[random.Random], list[Any]]:
    return lambda draw: [member(draw) for _ in range(draw.randint(0, 4) if size is None else size)]


def _days(draw: random.Random) -> datetime.date:
    return draw.choice(
        [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31), datetime.date(2024, 2, 29)]
    )


SMALLEST_TIME = -(1 << 63)
KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "bool": (pa.bool_(), lambda draw: draw.random() < 0.5),
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), _integer(bits)) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), _integer(bits, signed=False)) for bits in (8, 16, 32, 64)},
    "float16": (pa.float16(), lambda draw: np.float16(_number(draw))),
    "float32": (pa.float32(), _number),
    "float64": (pa.float64(), _number),
    "text": (pa.string(), _text),
    "large_text": (pa.large_string(), _text),
    "labels": (pa.dictionary(pa.int16(), pa.string()), _text),
    "binary": (pa.binary(), _binary),
    "fixed": (pa.binary(3), lambda draw: bytes(draw.choices([0, 1, 127, 128, 255], k=3))),
    "date": (pa.date32(), _days),
    **{
        f"time_{unit}": (
            pa.timestamp(unit),
            lambda draw: draw.choice([SMALLEST_TIME, -1, 0, 1, 9, draw.randint(0, 1 << 40)]),
        )
        for unit in ("ms", "us", "ns")
    },
    "zoned": (pa.timestamp("us", "UTC"), lambda draw: draw.choice([-1, 0, 1, draw.randint(0, 1 << 40)])),
    "clock": (pa.time64("us"), lambda draw: draw.randint(0, 86_399_999_999)),
    "duration": (pa.duration("us"), lambda draw: draw.choice([-1, 0, 1, draw.randint(0, 1 << 40)])),
    "decimal5": (pa.decimal128(5, 2), _decimal(5, 2)),
    "decimal15": (pa.decimal128(15, 3), _decimal(15, 3)),
    "decimal38": (pa.decimal128(38, 10), _decimal(38, 10)),
    "decimal50": (pa.decimal256(50, 4), _decimal(50, 4)),
    "numbers": (pa.list_(pa.int32()), _list(_integer(32))),
    "texts": (pa.list_(pa.string()), _list(_text)),
    "pair": (pa.list_(pa.float32(), 2), _list(_number, 2)),
    "record": (
        pa.struct({"a": pa.int64(), "b": pa.string()}),
        lambda draw: {"a": draw.choice([None, 1, 2]), "b": _text(draw)},
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        lambda draw: [(f"k{n}", draw.randint(0, 9)) for n in range(draw.randint(0, 3))],
    ),
}

_DELTAS = {
    "int32": "DELTA_BINARY_PACKED",
    "int64": "DELTA_BINARY_PACKED",
    "string": "DELTA_BYTE_ARRAY",
    "binary": "DELTA_LENGTH_BYTE_ARRAY",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "dictionary": {},
    "v2": {"data_page_version": "2.0", "compression": "zstd"},
    "gzip": {"compression": "gzip", "use_dictionary": False},
    "lz4": {"compression": "lz4", "data_page_version": "2.0"},
    "brotli": {"compression": "brotli"},
    "tiny_pages": {"data_page_size": 1, "write_batch_size": 3},
    "tiny_dictionary": {"dictionary_pagesize_limit": 10, "write_batch_size": 5},
    "no_statistics": {"write_statistics": False},
    "page_index": {"write_page_index": True, "write_page_checksum": True},
    "delta": {"use_dictionary": False, "column_encoding": _DELTAS},
    "split": {
        "use_dictionary": False,
        "column_encoding": {"float": "BYTE_STREAM_SPLIT", "double": "BYTE_STREAM_SPLIT", "int64": "BYTE_STREAM_SPLIT"},
    },
    "old_lists": {"use_compliant_nested_type": False, "store_schema": False},
    "no_arrow_schema": {"store_schema": False},
}


def _chunks(footer: Struct) -> Iterator[Struct]:
    """Yields the metadata of every column chunk."""
    for group in footer_edits.groups_of(footer):
        for chunk in group[footer_edits.COLUMNS][1][1]:
            yield chunk[footer_edits.METADATA][1]


def _bounds(change: Callable[[int, bytes, bytes], tuple[bytes, bytes] | None]) -> Callable[[Struct], None]:
    """Returns what replaces both bounds of every column chunk that has them, by its type; None removes them."""

    def change_bounds(footer: Struct) -> None:
        for chunk in _chunks(footer):
            statistics = chunk.get(footer_edits.STATISTICS, (0, {}))[1]
            for low, high in ((footer_edits.MIN, footer_edits.MAX), (footer_edits.OLD_MIN, footer_edits.OLD_MAX)):
                if low in statistics and high in statistics:
                    bounds = change(chunk[footer_edits.TYPE][1], statistics.pop(low)[1], statistics.pop(high)[1])
                    if bounds is not None:
                        statistics[low], statistics[high] = (BINARY, bounds[0]), (BINARY, bounds[1])

    return change_bounds


def _not_a_number(kind: int, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Bounds of floating-point columns that are NaN, as some writers make them once a value is NaN."""
    shape = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    return (low, high) if shape is None else (struct.pack(shape, float("nan")),) * 2


def _cut(kind: int, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Bounds that are shorter than a value: right for texts, wrong for types of fixed width."""
    return (b"", high) if kind == _BYTES else (low[:1], high[:1])


def _lengthen(kind: int, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    return (low, high + b"\0") if kind == _BYTES else (low + b"\0", high + b"\0")


def _nulls(change: Callable[[Struct, int], None]) -> Callable[[Struct], None]:
    def change_nulls(footer: Struct) -> None:
        for chunk in _chunks(footer):
            if footer_edits.STATISTICS in chunk:
                change(chunk[footer_edits.STATISTICS][1], chunk[footer_edits.VALUES][1])

    return change_nulls


def _only_old_bounds(footer: Struct) -> None:
    for chunk in _chunks(footer):
        statistics = chunk.get(footer_edits.STATISTICS, (0, {}))[1]
        for new, old in ((footer_edits.MIN, footer_edits.OLD_MIN), (footer_edits.MAX, footer_edits.OLD_MAX)):
            if new in statistics:
                statistics[old] = statistics.pop(new)


def _writer(name: str | None) -> Callable[[Struct], None]:
    def change_writer(footer: Struct) -> None:
        if name is None:
            footer.pop(footer_edits.WRITER, None)
        else:
            footer[footer_edits.WRITER] = (BINARY, name.encode())

    return change_writer


def _file_rows(footer: Struct) -> None:
    footer[footer_edits.FILE_ROWS] = (I64, 0)


HABITS: dict[str, Callable[[Struct], None]] = {
    "as_written": lambda footer: None,
    "swapped_bounds": _bounds(lambda kind, low, high: (high, low)),
    "nan_bounds": _bounds(_not_a_number),
    "no_bounds": _bounds(lambda *_: None),
    "cut_bounds": _bounds(_cut),
    "long_bounds": _bounds(_lengthen),
    "old_bounds": _only_old_bounds,
    "too_many_nulls": _nulls(lambda statistics, values: statistics.update({footer_edits.NULLS: (I64, values + 1)})),
    "negative_nulls": _nulls(lambda statistics, values: statistics.update({footer_edits.NULLS: (I64, -1)})),
    "no_null_counts": _nulls(lambda statistics, values: statistics.pop(footer_edits.NULLS, None)),
    "zero_distinct": _nulls(lambda statistics, values: statistics.update({footer_edits.DISTINCT: (I64, 0)})),
    "no_rows_in_the_file": _file_rows,
    "no_writer": _writer(None),
    "parquet_mr_1_8": _writer("parquet-mr version 1.8.1 (build 4aba4dae7bb0d4edbcf7923ae1339f28fd3f7fcf)"),
    "parquet_go": _writer("parquet-go version 1.0"),
    "parquet_net": _writer("Parquet.Net version 4.25.0 (build 1)"),
    "impala": _writer("impala version 2.3.0 (build 1)"),
    "parquet_cpp": _writer("parquet-cpp version 1.2.1"),
}
