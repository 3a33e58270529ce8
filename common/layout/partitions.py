"""Hive partition columns: one value per file, cast from the directory name to the field's type."""

from __future__ import annotations

import decimal
import posixpath
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from ..errors import DatasetError
from ..memory.arrow_views import texts_as_arrow
from ..process.forks import pc
from ..schema.arrow_types import arrow_scalar_type
from ..schema.dtypes import FieldDtype
from ..schema.field import Unischema, UnischemaField
from .files import DataFile, partition_of


def partition_columns(
    files: Sequence[DataFile], schema: Unischema | None, stored: set[str], partly: Collection[str] = ()
) -> tuple[dict[str, pa.Array], list[UnischemaField]]:
    """Returns the value of every partition column for each file, and fields for the columns no schema declares.

    Directories above the dataset's root count only for columns that the schema declares, or that other files of the
    dataset have below their roots. A stored column is not a partition column, with one exception: if only some files
    store it (``partly``) and all are in directories of this name, the directories count, as in `pyarrow.dataset`.

    Raises:
        DatasetError: a file lacks the directory of a partition column, or the text does not cast to the type.
    """
    declared = set(schema.fields) if schema is not None else set()
    texts: dict[str, list[str | None]] = {}
    seen: dict[str, set[int]] = {}
    below = {key for file in files for key, _ in partition_of(posixpath.dirname(file.relative))}
    for number, file in enumerate(files):
        for key, text in file.partition:
            if (key in stored and key not in partly) or (key not in declared and key not in below):
                continue
            texts.setdefault(key, [None] * len(files))[number] = text
            seen.setdefault(key, set()).add(number)
    columns: dict[str, pa.Array] = {}
    inferred: list[UnischemaField] = []
    for key, values in texts.items():
        if key in partly:
            found = _of_stored_column(schema, key, values) if len(seen[key]) == len(files) else None
            if found is not None:
                columns[key] = found
            continue
        if len(seen[key]) < len(files):
            missing = next(file.path for number, file in enumerate(files) if number not in seen[key])
            raise DatasetError(
                f"file {missing}: expected a directory '{key}=...' as other files of the dataset have. "
                "Move it there, or name fewer URLs."
            )
        if schema is not None and key in schema:
            field = schema[key]
        else:
            field = _infer(key, values)
            inferred.append(field)
        columns[key] = _cast(field, values)
    return columns, inferred


def _of_stored_column(schema: Unischema | None, key: str, values: list[str | None]) -> pa.Array | None:
    """Returns the values of directories in the type of a stored column; ``None`` if they are not of this type."""
    field = schema[key] if schema is not None and key in schema else None
    if field is None or field.shape or field.storage.coded or not _is_written_as_text(field.dtype):
        return None
    try:
        return _cast(field, values)
    except (DatasetError, pa.ArrowNotImplementedError):
        return None


def _is_written_as_text(dtype: FieldDtype) -> bool:
    """Whether directory names can represent values of this dtype."""
    return dtype is decimal.Decimal or getattr(dtype, "kind", "-") in "iufbUM"


def _infer(key: str, values: list[str | None]) -> UnischemaField:
    present = [value for value in values if value is not None]
    nullable = len(present) < len(values)
    if present and all(_is_integer(value) for value in present):
        return UnischemaField(key, np.int64, nullable=nullable)
    return UnischemaField(key, str, nullable=nullable)


def _is_integer(text: str) -> bool:
    try:
        return str(int(text)) == text and -(1 << 63) <= int(text) < 1 << 63
    except ValueError:
        return False


def _cast(field: UnischemaField, values: list[str | None]) -> pa.Array:
    target = arrow_scalar_type(field.dtype, field=field.name)
    texts = texts_as_arrow(values)
    try:
        if field.dtype is decimal.Decimal:
            return pa.array([None if value is None else decimal.Decimal(value) for value in values], target)
        if pa.types.is_binary(target):
            return texts.cast(pa.binary())
        if pa.types.is_boolean(target):
            truth = pc.is_in(pc.utf8_lower(texts), value_set=texts_as_arrow(["true", "1"]))
            return pc.if_else(texts.is_valid(), truth, pa.nulls(1, pa.bool_())[0])
        return texts.cast(target)
    except (pa.ArrowInvalid, decimal.InvalidOperation) as error:
        raise DatasetError(
            f"partition column '{field.name}': expected {field.dtype} in every directory name: {error}."
        ) from error
