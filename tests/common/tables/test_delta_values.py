"""Partition values of Delta tables in the forms that writers use, compared with deltalake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delta_tables as hand
import pyarrow as pa
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.table import TableColumn
from parquetry.common.dataset.table_read import parse_value
from parquetry.common.tables.delta import partition_text

deltalake = pytest.importorskip("deltalake")

_DAYS = ("2024-02-29", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "1900-06-05")
_FRACTIONS = ("", ".5", ".120", ".123456", ".1234560", ".123456000", ".1234560000000")
_FORMS: dict[str, list[str]] = {
    "boolean": ["true", "false", "True", "FALSE", "tRuE"],
    "byte": ["1", "+1", "-128", "+007", "-0"],
    "short": ["+32767", "-1"],
    "integer": ["+0", "2147483647", "-2147483648"],
    "long": ["+9223372036854775807", "-9223372036854775808", "0042"],
    "float": ["0.1", "+1.5", "-inf", "1e-3"],
    "double": ["+1.5", "inf", "+inf", "-Infinity", ".5", "5.", "1e300", "16777217"],
    "decimal(7,2)": ["1.50", "-0.10", "12345.67", "0.00"],
    "date": [*_DAYS, "2024-1-2", "+2024-01-02", "24-1-2"],
    "timestamp_ntz": [f"{day} 01:02:03{fraction}" for day in _DAYS for fraction in _FRACTIONS]
    + ["2024-02-29 23:59:59.999999999", "1970-01-02 00:00:00.000000001"],
    "timestamp": [f"{day} 01:02:03{fraction}" for day in _DAYS for fraction in _FRACTIONS]
    + [f"{day}T01:02:03{fraction}Z" for day in _DAYS for fraction in _FRACTIONS]
    + [
        f"{day}T01:02:03{fraction}{offset}"
        for day in _DAYS[:4]
        for fraction in _FRACTIONS
        for offset in ("+02:00", "-11:30")
    ]
    + ["2024-02-29T23:59:59.999999999Z", "2024-02-29T23:59:59.999999999+01:00"],
    "string": ["ü", "a b", "true", "+1", "\u0001"],
    "binary": ["ü", "a", "\u0001\u0002", "\u00ff", "日本"],
}


@pytest.mark.parametrize("kind", _FORMS)
def test_every_form_of_a_partition_value_means_what_deltalake_reads(tmp_path: Path, kind: str) -> None:
    actions = [
        hand.add(tmp_path, f"{number}.parquet", pa.table({"id": pa.array([number], pa.int64())}), {"p": text})
        for number, text in enumerate(_FORMS[kind])
    ]
    fields = [hand.field("id", "long"), hand.field("p", kind)]
    hand.commit(tmp_path, 0, hand.protocol(["timestampNtz"]), hand.metadata(fields, ["p"]), *actions)
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path))).execute("select * from t")
    table = pa.table(found.read_all())
    expected = dict(zip(table["id"].to_pylist(), _values(table["p"]), strict=True))
    pipeline = Pipeline.from_delta(tmp_path)
    column = pa.chunked_array([pipeline.dataset.partitions["p"]])
    order = [int(Path(file.path).stem) for file in pipeline.dataset.files]
    assert dict(zip(order, _values(column), strict=True)) == expected
    assert len(list(pipeline)) == len(actions)


def _values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        column = column.cast(pa.binary())
    return column.to_pylist()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1969-12-31 23:59:59.999999999", pa.timestamp("us")),
        ("2024-13-01T00:00:00+02:00", pa.timestamp("us", "UTC")),
        ("2024-1-2-3", pa.date32()),
        ("2024-13-1", pa.date32()),
        ("++1", pa.int64()),
        ("yes", pa.bool_()),
    ],
)
def test_a_partition_value_of_another_form_is_an_error(text: str, kind: pa.DataType) -> None:
    column = TableColumn(name="p", arrow=kind)
    with pytest.raises(DatasetError, match="column 'p': expected values of type"):
        parse_value(partition_text(text, kind), column)


def test_an_empty_partition_value_is_null() -> None:
    assert partition_text("", pa.int64()) is None
    assert partition_text(None, pa.string()) is None
