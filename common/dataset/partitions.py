"""Hive partition columns: one value per file, cast from the directory name to the field's type."""

from __future__ import annotations

import decimal
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pyarrow as pa

from ..base.errors import DatasetError
from ..base.memory.arrow_views import texts_as_arrow
from ..base.process.forks import pc
from ..schema.arrow_types import arrow_scalar_type
from ..schema.field import Unischema, UnischemaField
from ..storage.files import DataFile, partition_of


def partition_columns(
    files: Sequence[DataFile],
    schema: Unischema,
    declared: Collection[str],
    stored: Mapping[str, bool],
    agree: Callable[[str, pa.Array, Collection[int]], bool],
) -> tuple[dict[str, pa.Array], dict[str, UnischemaField]]:
    """Returns the value of every partition column for each file, and the fields of columns that the schema lacks or has
    otherwise, because the directories' values win over stored ones.

    Directories above the dataset's root count only for columns that the schema declares, or that other files of the
    dataset have below their roots; those in an unbroken row of such directories also count for stored columns.

    Args:
        schema: the fields that are declared or stored.
        declared: the names of those that are declared.
        stored: see `stored_keys`.
        agree: whether a stored column has the value of the directory in all rows of some files. If so, other files need
            no such directory.

    Raises:
        DatasetError: a file lacks the directory of a partition column, or the text does not cast to the type.
    """
    texts: dict[str, list[str | None]] = {}
    seen: dict[str, set[int]] = {}
    below = {key for file in files for key, _ in partition_of(posixpath.dirname(file.relative))}
    for number, file in enumerate(files):
        for key, text in file.partition:
            if key in stored:
                counts = stored[key] and (key in below or key in _keys_around(file))
            else:
                counts = key in declared or key in below
            if counts:
                if key not in texts:
                    texts[key], seen[key] = [None] * len(files), set()
                texts[key][number] = text
                seen[key].add(number)
    columns: dict[str, pa.Array] = {}
    fields: dict[str, UnischemaField] = {}
    for key, values in texts.items():
        field = schema[key] if key in schema else _infer(key, values)
        try:
            column = _cast(field, values)
        except DatasetError:
            if key in declared or key not in stored:
                raise
            field = _infer(key, values)
            column = _cast(field, values)
        if len(seen[key]) < len(files):
            if key in stored and agree(key, column, seen[key]):
                continue
            raise _no_directory(files, key, seen[key], is_stored=key in stored)
        columns[key] = column
        if key in stored:
            field = field.replace(nullable=None in values or (key in declared and field.nullable))
        if key not in schema or field != schema[key]:
            fields[key] = field
    return columns, fields


def below_partitions(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Returns files that were named one by one as files of a dataset around all their partition directories.

    Changes nothing if a directory was named, or if the files are in directories of different keys.
    """
    rows = [list(_directories_around(file))[::-1] for file in files]
    keys = {tuple(key for part in row for key, _ in partition_of(part)) for row in rows}
    if len(keys) > 1 or any("/" in file.relative for file in files):
        return tuple(files)
    return tuple(replace(file, relative="/".join([*row, file.relative])) for file, row in zip(files, rows, strict=True))


def _keys_around(file: DataFile) -> set[str]:
    return {key for part in _directories_around(file) for key, _ in partition_of(part)}


def _directories_around(file: DataFile) -> Iterator[str]:
    """Yields the unbroken row of partition directories that ends with the root of the file, beginning there."""
    parts = posixpath.dirname(file.path).split("/")
    above = parts[: len(parts) - file.relative.count("/")]
    return takewhile(lambda part: "=" in part[1:], reversed(above))


def _no_directory(files: Sequence[DataFile], key: str, seen: Collection[int], *, is_stored: bool) -> DatasetError:
    missing = next(file.shown_path for number, file in enumerate(files) if number not in seen)
    stored = f" A stored '{key}' counts only if those store the values of their directories, too." if is_stored else ""
    return DatasetError(
        f"file {missing}: expected a directory '{key}=...' as other files of the dataset have.{stored} "
        "Move it there, or name fewer URLs."
    )


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
            return pc.utf8_lower(texts).cast(pa.bool_())
        return texts.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, decimal.InvalidOperation) as error:
        raise DatasetError(
            f"partition column '{field.name}': expected {field.dtype} in every directory name: {error}."
        ) from error
