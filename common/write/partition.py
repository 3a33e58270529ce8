"""Hive partitions: which fields may be keys, and which directory each row belongs to.

It splits a record batch into batches without the key columns, one per directory such as
``drive=a%20b/day=2024-02-29``. Rows keep their order within a directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from ..base.errors import EncodeError, SchemaError
from ..schema.dtypes import dtype_to_json
from ..schema.field import Unischema, UnischemaField

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")  # what readers parse


def check_partition_fields(schema: Unischema, partition_by: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the partition keys.

    Raises:
        FieldNotFoundError: the schema has no such field.
        SchemaError: a field cannot be a directory name, a name is given twice, or no field is left for the files.
    """
    if isinstance(partition_by, set | frozenset):
        raise SchemaError(f"partition_by: expected names in the order of the directories, got {partition_by!r}.")
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    for name in names:
        _check_key(schema[name])
    if len(set(names)) < len(names):
        raise SchemaError(f"partition_by: expected each field once, got {names}.")
    if names and len(names) == len(schema):
        raise SchemaError(
            f"partition_by: expected at least one field of schema '{schema.name}' left for the files, got all of them."
        )
    return names


def _check_key(field: UnischemaField) -> None:
    dtype = dtype_to_json(field.dtype)
    kind = "date" if dtype == "datetime64[D]" else dtype.rstrip("0123456789")
    if field.shape != () or field.storage.coded or kind not in ("str", "int", "uint", "bool", "date"):
        raise SchemaError(
            f"partition field '{field.name}': expected a scalar of text, integer, bool or datetime64[D], "
            f"got {dtype} {field.shape}. Partition by another field."
        )
    if field.name.startswith(("_", ".")) or set(field.name) & set("=/%"):
        raise SchemaError(
            f"partition field '{field.name}': expected a name without '=', '/', '%' that does not begin with '_' or "
            "'.', because readers skip or misread such directories. Rename the field."
        )


def null_directory(names: Sequence[str]) -> str:
    """The directory of rows whose keys are all null. It holds the only file of an empty dataset."""
    return "/".join(f"{name}={HIVE_NULL}" for name in names)


def split_by_partition(
    batch: pa.RecordBatch, names: Sequence[str], *, first_row: int
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the batch's rows by directory, in order of first appearance. Without keys, the directory is ``""``.

    Raises:
        EncodeError: a text equals Hive's name for null, or a date could not be read again.
    """
    if not names:
        yield "", batch
        return
    rows_of: dict[str, list[int]] = {}
    texts = [_segments(name, batch.column(name), first_row) for name in names]
    for row, parts in enumerate(zip(*texts, strict=True)):
        rows_of.setdefault("/".join(parts), []).append(row)
    rest = batch.select([name for name in batch.schema.names if name not in names])
    for directory, rows in rows_of.items():
        yield directory, rest if len(rows_of) == 1 else rest.take(pa.array(np.array(rows, dtype=np.int64)))


def _segments(name: str, keys: pa.Array, first_row: int) -> list[str]:
    segments = []
    for row, text in enumerate(keys.cast(pa.string()).to_pylist(), first_row):
        if text == HIVE_NULL:
            raise EncodeError(
                f"row {row}, field '{name}': expected any text but '{HIVE_NULL}', which means null in a partition. "
                "Change the value, or do not partition by this field."
            )
        if pa.types.is_date(keys.type) and text is not None and not _DATE.fullmatch(text):
            raise EncodeError(
                f"row {row}, field '{name}': expected a date of the years 0000 to 9999 in a partition, got {text}. "
                "Change the value, or do not partition by this field."
            )
        segments.append(f"{name}={HIVE_NULL if text is None else quote(text, safe='')}")
    return segments
