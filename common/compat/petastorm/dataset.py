"""`PetastormDataset`: a stored dataset as Petastorm's two readers see it.

`make_reader` sees the declared fields; `make_batch_reader` sees the Parquet columns as stored, including encoded
values. A URL given twice is read twice. Nested columns are skipped. The dataset is pickled with its list of files but
without footers, so worker processes need not list the files again.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...base.process.forks import cached_property
from ...base.urls import url_without_secrets
from ...dataset.dataset import StoredDataset, first_schema, read_key_values
from ...dataset.partitions import below_partitions
from ...schema.field import Unischema
from ...schema.infer import infer_fields

_READ_BY_PETASTORM = frozenset(
    (
        *("int8", "uint8", "int16", "int32", "int64", "float", "double", "bool", "string", "binary", "date32[day]"),
        "large_string",  # as pandas 3 writes text
    )
)
Described = tuple[Unischema, dict[str, str], dict[str, pa.Array]]


class _AnyName(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True


class PetastormDataset(StoredDataset):
    """A dataset on storage.

    Args:
        urls: URLs of directories or files; a URL given twice is read twice.
        physical: whether to use the stored columns as fields instead of the declared ones.
        listed: whether the URLs are a list. If it names files only, the partition directories around them count.
    """

    _cast: Container[str] = _AnyName()  # times with and without a zone are read as UTC, as Petastorm reads them

    def __init__(
        self,
        urls: Sequence[str],
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        physical: bool = False,
        listed: bool = False,
    ) -> None:
        super().__init__(list(dict.fromkeys(urls)), filesystem=filesystem, storage_options=storage_options)
        self._listed = listed
        if listed:
            self._listing = replace(self._listing, files=below_partitions(self._listing.files))
        self._physical = physical
        self.left_out: Mapping[str, str] = {}  # columns that no field can hold, and why; known with the schema
        times = {url: urls.count(url) for url in urls}
        if max(times.values()) > 1:
            count = {root: times[url] for root, url in zip(self._listing.roots, times, strict=True)}
            files = [file for file in self._listing.files for _ in range(_times(file.path, count))]
            self._listing = replace(self._listing, files=tuple(files))

    @cached_property
    def _described(self) -> Described:  # cached, as in the base class
        declared: Described = StoredDataset._described.func(self)  # type: ignore[attr-defined]  # a cached_property
        schema, refused, partitions = self._stored_columns(declared) if self._physical else declared
        conflicts = self._unified[1] if refused else {}
        differing = {name: reason for name, reason in conflicts.items() if name in refused and "." not in name}
        self.left_out = {name: reason for name, reason in refused.items() if name not in differing}
        nested = sorted([*self.left_out, *(name for name in schema.fields if "." in name)])
        if nested:
            warnings.warn(
                f"dataset {url_without_secrets(self.roots[0])}: ignoring columns that Petastorm's readers do not "
                f"support: {nested}.",
                UserWarning,
                stacklevel=4,
            )
        fields = [field for field in schema if "." not in field.name]
        reasons = {name: with_schema_fields(reason) for name, reason in differing.items()}
        return Unischema(schema.name, fields), reasons, partitions

    @cached_property
    def _declared_types(self) -> dict[str, pa.DataType]:
        declared: dict[str, pa.DataType] = StoredDataset._declared_types.func(self)  # type: ignore[attr-defined]
        return {} if self._physical else declared

    @property
    def not_added(self) -> dict[str, str]:  # every stored column is a field
        return {} if self._physical else super().not_added

    def _stored_columns(self, declared: Described) -> Described:
        columns, conflicts = self._unified
        schema, refused = infer_fields(columns)
        partitions = declared[2]
        fields = [declared[0][name] for name in partitions]
        others = [field for field in schema if field.name not in partitions]
        refused = {name: reason for name, reason in {**conflicts, **refused}.items() if name not in partitions}
        return Unischema("inferred_schema", [*fields, *others]), refused, partitions

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the first file."""
        return first_schema(self)[1]

    @cached_property
    def key_values(self) -> dict[bytes, bytes]:
        """The key-value metadata of ``_common_metadata`` (and ``_metadata``); empty if there is none."""
        metadata: dict[bytes, bytes] = {}
        for version in reversed(self._listing.metadata_files):
            metadata.update(read_key_values(self.filesystem, version))
        return metadata

    @property
    def paths(self) -> str | list[str]:
        """The path that the URL named, or a list of those that a list of URLs named."""
        return list(self.roots) if self._listed else self.roots[0]

    @property
    def is_petastorm(self) -> bool:
        """Whether the dataset declares a schema, in Petastorm's or parquetry's form."""
        return any(key.endswith(b"unischema.v1") for key in self.key_values)

    @cached_property
    def unread_by_petastorm(self) -> frozenset[str]:
        """Columns that have a type in every plain Parquet file that Petastorm does not read; empty if the dataset
        declares a schema.
        """
        if self.is_petastorm and not self._physical:
            return frozenset()
        columns = [column for schema in self._schemas for column in schema.arrow]
        read = {column.name for column in columns if _is_read_by_petastorm(column.type)}
        return frozenset(column.name for column in columns if column.name not in read)

    def __getstate__(self) -> dict[str, Any]:
        # Compute what every worker needs: row groups, schema and types. Workers read the footers that they need.
        _ = self.row_groups, self._described, self.types
        return {name: value for name, value in self.__dict__.items() if name not in ("footers", "index")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, index=None)


def with_schema_fields(text: str) -> str:
    """Returns an error text with the argument that declares fields for Petastorm's readers."""
    return text.replace(": fields=[UnischemaField(", ": schema_fields=[UnischemaField(")


def _is_read_by_petastorm(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_list(kind) else kind
    return str(kind) in _READ_BY_PETASTORM or any(
        check(kind) for check in (pa.types.is_fixed_size_binary, pa.types.is_timestamp, pa.types.is_decimal)
    )


def _times(path: str, count: Mapping[str, int]) -> int:
    return sum(number for root, number in count.items() if path == root or path.startswith(f"{root}/"))
