"""`inspect`: what a dataset is made of: fields, files, row groups, compression, encodings, statistics.

In: a URL or a pipeline. Out: a `DatasetReport`. Only footers are read.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import PipelineError
from ..layout.chunk_statistics import belongs
from ..layout.dataset import StoredDataset
from ..layout.filesystem import resolve
from ..pipeline.notebook import works_on_values
from ..pipeline.pipeline import Pipeline
from ..schema.dtypes import dtype_to_json
from ..schema.field import Shape
from ..selection.statistics import column_statistics
from ..stages.nested import Nested
from .values import scalar_value, without_secrets

_MOST_ROW_GROUPS = 2000
_MOST_BOUNDS = 1_000_000
Source = str | os.PathLike[str] | Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large some things are: the smallest, the middle one, the largest."""

    least: int
    median: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int] | np.ndarray) -> Sizes:
        """Of at least one value; of none, zeros."""
        found = np.asarray(values, np.int64) if len(values) else np.zeros(1, np.int64)
        return cls(least=int(found.min()), median=int(np.median(found)), most=int(found.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReport:
    """One field as it is stored.

    Attributes:
        codec: the kind of codec; ``None`` for plain Parquet values.
        stored: the Arrow type of the column.
        unit: what the numbers count, where they are times: ``"datetime64[us]"``.
        partition: whether its values are in the names of directories.
        stored_bytes, decoded_bytes: compressed, and decompressed but still encoded.
        compression, encodings: all that occur.
        dictionary, statistics: the share of column chunks that have them, 0 to 1.
        nulls: ``None`` where the footers do not tell.
        minimum, maximum: over all row groups, dates and times as numpy has them; ``None`` where they are not known.
    """

    name: str
    dtype: str
    shape: Shape
    dims: tuple[str, ...] | None
    nullable: bool
    codec: str | None
    stored: str
    unit: str | None
    partition: bool
    stored_bytes: int
    decoded_bytes: int
    compression: tuple[str, ...]
    encodings: tuple[str, ...]
    dictionary: float
    statistics: float
    nulls: int | None
    minimum: Any
    maximum: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """What `inspect` tells.

    Attributes:
        urls: without user, password and query.
        kind: of table (Delta, Iceberg, ...); ``None`` for plain files.
        bytes: of all files.
        file_bytes, rows_per_group, bytes_per_group: the last of compressed columns.
        decoded_per_group: decompressed, about what a row group occupies in memory.
        sampled: how many row groups the bytes, encodings and statistics of fields were taken from, evenly spaced.
        partitions: names of the fields that are directories.
        indexed: whether a row-group index fits the files.
        described: where the schema comes from: ``"parquetry"``, ``"petastorm"`` or ``"columns"``.
        refused: columns that cannot become tensors, with the reason.
        labels: names of classes, by field.
    """

    urls: tuple[str, ...]
    kind: str | None
    files: int
    rows: int
    row_groups: int
    bytes: int
    file_bytes: Sizes
    rows_per_group: Sizes
    bytes_per_group: Sizes
    decoded_per_group: Sizes
    sampled: int
    partitions: tuple[str, ...]
    indexed: bool
    described: str
    written_by: str
    fields: tuple[FieldReport, ...]
    refused: Mapping[str, str]
    labels: Mapping[str, tuple[str, ...]]

    def field(self, name: str) -> FieldReport:
        """One field, by its name."""
        return next(field for field in self.fields if field.name == name)


def inspect(source: Source, *, storage_options: Mapping[str, Any] | None = None) -> DatasetReport:
    """Tells what a dataset is made of.

    >>> inspect("data/train").rows_per_group.median  # doctest: +SKIP
    1000

    Args:
        source: a URL or path; or a pipeline, whose dataset is looked at, whatever its verbs.

    Raises:
        DatasetError: nothing is there, or a file is damaged.
        PipelineError: a mix, or a pipeline that a server makes.
    """
    pipeline = pipeline_of(source, storage_options)
    dataset = pipeline.dataset
    chunks = _Chunks(dataset)
    groups = dataset.row_groups
    footer = dataset.footer(0) if dataset.files else None
    scale = len(groups) / max(len(chunks.row_groups), 1)
    return DatasetReport(
        urls=tuple(map(without_secrets, pipeline.urls)),
        kind=None if dataset.table is None else str(dataset.table),
        files=len(dataset.files),
        rows=int(groups.rows.sum()),
        row_groups=len(groups),
        bytes=sum(file.size_bytes for file in dataset.files),
        file_bytes=Sizes.of([file.size_bytes for file in dataset.files]),
        rows_per_group=Sizes.of(groups.rows),
        bytes_per_group=Sizes.of(chunks.stored_bytes),
        decoded_per_group=Sizes.of(chunks.decoded_bytes),
        sampled=len(chunks.row_groups),
        partitions=tuple(dataset.partitions),
        indexed=dataset.index is not None,
        described=_described(dataset),
        written_by="" if footer is None else str(footer.created_by),
        fields=tuple(_field(dataset, chunks, name, scale) for name in dataset.schema.fields),
        refused=dict(dataset.refused),
        labels=dict(dataset.labels),
    )


def pipeline_of(source: Source, storage_options: Mapping[str, Any] | None = None) -> Pipeline:
    """The pipeline over one dataset that a URL, or a class that carries a pipeline, stands for.

    Raises:
        PipelineError: a mix, or a pipeline that a server makes.
    """
    given = getattr(source, "pipeline", source)
    made = given if isinstance(given, Pipeline) else open_url(given, storage_options)
    if made.mixture is not None or made.address is not None:
        raise PipelineError(
            "report: expected a pipeline over one dataset, got a mix or a served one. Take its sources."
        )
    return made


def with_lists_as_stored(pipeline: Pipeline) -> Pipeline:
    """Takes plain lists of lists with any lengths, where no verb works on the values of fields.

    Behind such a verb they stay the arrays that it expects.
    """
    if works_on_values(pipeline):
        return pipeline
    lists = [field for field in pipeline.schema if field.is_list and len(field.shape) > 1 and None in field.shape]
    if not lists:
        return pipeline
    return pipeline.with_stages((Nested(tuple(re.escape(field.name) for field in lists)), *pipeline.stages))


def open_url(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Pipeline:
    """All rows of a URL: a Delta table where it has a log, a folder of Hugging Face's for ``hf://``, else its files.

    Raises:
        DatasetError: a table that cannot be read, or a library that it needs is missing.
    """
    text = os.fspath(url)
    if text.startswith("hf://"):
        return Pipeline.from_huggingface_parquet(text, storage_options=storage_options)
    filesystem, path = resolve(text, storage_options=None if storage_options is None else dict(storage_options))
    try:
        log = filesystem.get_file_info(posixpath.join(path, "_delta_log"))
    except OSError:  # whoever reads the files says what is wrong
        return Pipeline(text, storage_options=storage_options)
    if log.type == pafs.FileType.Directory:
        return Pipeline.from_delta(text, storage_options=storage_options)
    return Pipeline(text, storage_options=storage_options)


class _Chunks:
    """What the footers say of the column chunks of evenly spaced row groups, by field."""

    def __init__(self, dataset: StoredDataset) -> None:
        groups = dataset.row_groups
        wanted = min(len(groups), _MOST_ROW_GROUPS)
        self.row_groups = np.unique(np.linspace(0, max(len(groups) - 1, 0), wanted).astype(np.int64))
        self.stored_bytes: list[int] = []
        self.decoded_bytes: list[int] = []
        self._by_field: dict[str, list[pq.ColumnChunkMetaData]] = {name: [] for name in dataset.schema.fields}
        places: dict[int, dict[str, list[int]]] = {}
        for row_group in map(int, self.row_groups):
            file = int(groups.file[row_group])
            footer = dataset.footer(file)
            if file not in places:
                places = {file: _leaves(dataset, file, footer)}
            group = footer.row_group(int(groups.group[row_group]))
            chunks = [group.column(number) for number in range(group.num_columns)]
            self.stored_bytes.append(sum(chunk.total_compressed_size for chunk in chunks))
            self.decoded_bytes.append(sum(chunk.total_uncompressed_size for chunk in chunks))
            for name, numbers in places[file].items():
                self._by_field[name] += [chunks[number] for number in numbers]

    def of(self, name: str) -> list[pq.ColumnChunkMetaData]:
        """The column chunks of a field."""
        return self._by_field[name]


def _leaves(dataset: StoredDataset, file: int, footer: pq.FileMetaData) -> dict[str, list[int]]:
    """The numbers of the Parquet columns of each field in one file."""
    schema = footer.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    stored = {name: dataset.stored_name(file, name) for name in dataset.schema.fields}
    return {
        name: [] if path is None else [number for number, leaf in enumerate(paths) if belongs(leaf, {path})]
        for name, path in stored.items()
    }


def _field(dataset: StoredDataset, chunks: _Chunks, name: str, scale: float) -> FieldReport:
    field = dataset.schema[name]
    found = chunks.of(name)
    share = 1 / max(len(found), 1)
    dtype = dtype_to_json(field.dtype)
    nulls, minimum, maximum = _bounds(dataset, name)
    return FieldReport(
        name=name,
        dtype=dtype,
        shape=field.shape,
        dims=field.dims,
        nullable=field.nullable,
        codec=field.storage.kind if field.storage.coded else None,
        stored=str(dataset.types[name]) if name in dataset.types else "",
        unit=dtype if dtype.startswith(("datetime64", "timedelta64")) else None,
        partition=name in dataset.partitions,
        stored_bytes=int(sum(chunk.total_compressed_size for chunk in found) * scale),
        decoded_bytes=int(sum(chunk.total_uncompressed_size for chunk in found) * scale),
        compression=tuple(sorted({chunk.compression for chunk in found})),
        encodings=tuple(sorted({encoding for chunk in found for encoding in chunk.encodings})),
        dictionary=share * sum("DICTIONARY" in " ".join(chunk.encodings) for chunk in found),
        statistics=share * sum(chunk.is_stats_set for chunk in found),
        nulls=nulls,
        minimum=minimum,
        maximum=maximum,
    )


def _bounds(dataset: StoredDataset, name: str) -> tuple[int | None, Any, Any]:
    """The nulls, the least and the greatest value of a field, as far as they are known without reading it."""
    is_long = dataset.index is None and len(dataset.row_groups) * len(dataset.schema) > _MOST_BOUNDS
    if is_long or dataset.schema[name].storage.coded:
        return None, None, None
    known = column_statistics(dataset, name)
    nulls = int(known.null_count.sum()) if len(known.null_count) and (known.null_count >= 0).all() else None
    return nulls, _extreme(known.minimum, least=True), _extreme(known.maximum, least=False)


def _extreme(bounds: pa.Array | None, *, least: bool) -> Any:
    if bounds is None or len(bounds) == bounds.null_count:
        return None
    values = [scalar_value(value) for value in bounds if value.is_valid]
    return min(values) if least else max(values)


def _described(dataset: StoredDataset) -> str:
    """Where the schema comes from."""
    from ..layout.dataset import read_key_values
    from ..schema.metadata import SCHEMA_KEY
    from ..schema.petastorm_metadata import SCHEMA_KEY as PETASTORM_KEY

    found: set[bytes] = set()
    for version in dataset.listing.metadata_files:
        found |= read_key_values(dataset.filesystem, version).keys()
    if dataset.files:
        footer = dataset.footer(0)
        found |= (footer.metadata or {}).keys() | (footer.schema.to_arrow_schema().metadata or {}).keys()
    return "parquetry" if SCHEMA_KEY in found else "petastorm" if PETASTORM_KEY in found else "columns"
