"""`inspect` reports the fields, files, row groups, compression, encodings and statistics of a dataset.

The input is a URL or a pipeline, and the output is a `DatasetReport`. Only footers are read.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...base.errors import ParquetryError, PipelineError
from ...base.process.dataclass import dataclass
from ...base.process.forks import pc
from ...base.text_table import TextTable, counted
from ...base.urls import url_without_secrets
from ...dataset.dataset import StoredDataset
from ...dataset.file_schemas import SomeFiles, types_text
from ...dataset.video.frames import EncodedFrames
from ...engine.read.fetch import Fetcher
from ...parquet.chunk_statistics import belongs
from ...parquet.writers import writer_of
from ...pipeline.display.text import note, short_text
from ...pipeline.explain import bytes_text
from ...pipeline.pipeline import Pipeline
from ...plan.selection.possible import believed, comparable, impossible
from ...plan.selection.statistics import stated_statistics
from ...schema.dtypes import dtype_to_json
from ...schema.field import Shape, UnischemaField
from ...storage.filesystem import resolve
from .values import scalar_value

_BOUND_LETTERS = 19  # a time to the second
_CLASSES = 12
_MOST_ROW_GROUPS = 2000
_MOST_BOUNDS = 1_000_000
_USUAL_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED"}
Source = str | os.PathLike[str] | Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The smallest, median and largest of several sizes."""

    least: int
    median: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int] | np.ndarray) -> Sizes:
        """Computes the sizes of the given values. All are 0 if there are no values."""
        array = np.asarray(values, np.int64) if len(values) else np.zeros(1, np.int64)
        return cls(least=int(array.min()), median=int(np.median(array)), most=int(array.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReport:
    """One field as it is stored.

    Attributes:
        codec: the kind of codec; ``None`` for plain Parquet values.
        stored: the Arrow type of the column; for frames of videos, the columns that say where they are.
        video: how the frames of the first row's video are stored, or why it cannot be read; ``None`` for other fields.
        unit: for times, the numpy dtype: ``"datetime64[us]"``. Otherwise ``None``.
        partition: whether its values come from directory names.
        stored_bytes, decoded_bytes: the compressed size, and the decompressed size with values still encoded.
        compression, encodings: all that occur in the column.
        dictionary, statistics: the fraction of column chunks that have them, 0 to 1.
        nulls: the number of nulls; ``None`` if the footers do not say.
        minimum, maximum: over all row groups, with dates and times as numpy values; ``None`` if unknown.
        missing: the files that lack the column, where it is null; ``None`` if all have it.
        types: the types that files store the column in, each with the files that have it; empty if all agree.
        impossible: the number of row groups whose statistics cannot be true, such as a minimum above the maximum.
            Nothing believes them, so the other numbers are unknown, too.
    """

    name: str
    dtype: str
    shape: Shape
    dims: tuple[str, ...] | None
    nullable: bool
    codec: str | None
    stored: str
    video: str | None
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
    missing: SomeFiles | None
    types: Mapping[str, SomeFiles]
    impossible: int

    def notes(self) -> list[str]:
        """Returns what differs among the files, in words."""
        absence = [] if self.missing is None else [f"{self.name}: not in {self.missing}, where it is null"]
        return [
            *absence,
            *([f"{self.name}: {self.video}"] if self.video else []),
            *([f"{self.name}: {types_text(self.types)}, and read as {self.stored}"] if self.types else []),
        ]

    def line(self) -> tuple[str, ...]:
        """Returns the field as a line of a table: its values, how they are stored, bytes, nulls, range."""
        values = f"{self.dtype} {self.shape}" if self.shape else self.dtype
        squeezed = f" {self.stored_bytes / self.decoded_bytes:.0%}" if self.decoded_bytes else ""
        encodings = {"DICTIONARY" if each.endswith("_DICTIONARY") else each for each in self.encodings}
        encodings -= _USUAL_ENCODINGS  # which say nothing: PLAIN, and RLE of nulls
        stored = [
            *([self.codec] if self.codec else []),
            "directories" if self.partition else self.stored,
            *([" ".join(self.compression).lower() + squeezed] if self.compression else []),
            *sorted(map(str.lower, encodings)),
        ]
        return (
            self.name,
            values + (" or null" if self.nullable else ""),
            ", ".join(stored),
            "" if self.partition else bytes_text(self.stored_bytes),
            "" if self.nulls is None else f"{self.nulls:,}",
            self.range_text(_BOUND_LETTERS),
        )

    def range_text(self, width: int) -> str:
        """Returns the range of the values in a few words, each bound in ``width`` characters; empty if unknown."""
        if self.impossible:
            return f"impossible in {counted(self.impossible, 'row group')}"
        if self.minimum is None:
            return ""
        return f"{short_text(self.minimum, width)} ... {short_text(self.maximum, width)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DatasetReport:
    """The result of `inspect`. Prints as a table.

    Attributes:
        urls: the URLs, without user, password and query.
        kind: the kind of table (Delta, Iceberg, ...); ``None`` for plain files.
        bytes: the total size of all files.
        file_bytes: the sizes of the files.
        rows_per_group: the row counts of the row groups.
        bytes_per_group: the compressed sizes of the row groups.
        decoded_per_group: the decompressed sizes of the row groups, about what they occupy in memory.
        sampled: the number of evenly spaced row groups from which sizes, encodings and field statistics were taken.
        partitions: the names of the partition fields.
        indexed: whether a row-group index matches the files.
        described: where the schema comes from: ``"parquetry"``, ``"petastorm"`` or ``"columns"``.
        refused: columns that cannot become tensors, with the reason.
        undeclared: columns of all files that the schema in the metadata leaves out, so that they are no fields.
        labels: class names by field.
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
    undeclared: tuple[str, ...]
    labels: Mapping[str, tuple[str, ...]]

    def field(self, name: str) -> FieldReport:
        """Returns the report of a field by name."""
        return next(field for field in self.fields if field.name == name)

    def facts(self) -> dict[str, object]:
        """Returns what there is to say of the dataset as a whole, by name; ``None`` where there is nothing."""
        rows, stored, decoded = self.rows_per_group, self.bytes_per_group, self.decoded_per_group
        return {
            "dataset": ", ".join(self.urls) + (f" ({self.kind})" if self.kind else ""),
            "rows": self.rows,
            "files": f"{self.files:,} ({bytes_text(self.bytes)}; median {bytes_text(self.file_bytes.median)})",
            "row groups": f"{self.row_groups:,} of {rows_text(rows)}, "
            f"{bytes_text(stored.median)} stored, up to {bytes_text(decoded.most)} in memory",
            "partitions": ", ".join(self.partitions) or None,
            "schema from": {"columns": "the columns"}.get(self.described, f"metadata of {self.described}"),
            "index": "yes" if self.indexed else "no",
            "written by": self.written_by or None,
            "sampled": f"{self.sampled:,} row groups" if self.sampled < self.row_groups else None,
        }

    def table(self) -> TextTable:
        """Returns a line for each field."""
        names = ("field", "values", "stored as", "bytes", "nulls", "range")
        return TextTable(names, [field.line() for field in self.fields], right=("bytes", "nulls"))

    def notes(self) -> list[str]:
        """Returns what is unusual about the fields, in words."""
        lines = [note for field in self.fields for note in field.notes()]
        if self.undeclared:
            lines.append(f"not in the schema of the metadata: {', '.join(self.undeclared)}")
        for name, names in self.labels.items():
            lines.append(f"classes of {name}: {', '.join(names[:_CLASSES])}{', ...' if len(names) > _CLASSES else ''}")
        return lines

    def __repr__(self) -> str:
        return "\n".join([str(self.about()), "", str(self.table()), *self.notes()])

    def _repr_html_(self) -> str:
        return self.about()._repr_html_() + self.table()._repr_html_() + "".join(map(note, self.notes()))

    def about(self) -> TextTable:
        """Returns a line for each of the `facts`."""
        said = {name: value for name, value in self.facts().items() if value is not None}
        lines = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in said.items()]
        return TextTable(("about", ""), lines)


def inspect(source: Source, *, storage_options: Mapping[str, Any] | None = None) -> DatasetReport:
    """Describes the contents and layout of a dataset.

    >>> inspect("data/train").rows_per_group.median  # doctest: +SKIP
    1000

    Args:
        source: a URL or path, or a pipeline. The verbs of the pipeline are ignored.

    Raises:
        DatasetError: nothing exists at the URL, or a file is damaged.
        PipelineError: the pipeline is mixed or served.
    """
    pipeline = pipeline_of(source, storage_options)
    dataset = pipeline.dataset
    chunks = _Chunks(dataset)
    groups = dataset.row_groups
    footer = dataset.footer(0) if dataset.files else None
    scale = len(groups) / max(len(chunks.row_groups), 1)
    missing, differing = dataset.missing, dataset.differing
    return DatasetReport(
        urls=tuple(map(url_without_secrets, pipeline.urls)),
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
        written_by="" if footer is None else writer_of(footer),
        fields=tuple(
            _field(dataset, chunks, name, scale, missing.get(name), differing.get(name, {}))
            for name in dataset.schema.fields
        ),
        refused=dict(dataset.refused),
        undeclared=tuple(dataset.undeclared),
        labels=dict(dataset.labels),
    )


def pipeline_of(source: Source, storage_options: Mapping[str, Any] | None = None) -> Pipeline:
    """Returns the pipeline over one dataset for a URL, a pipeline, or an object that wraps a pipeline.

    Raises:
        PipelineError: the pipeline is mixed or served.
    """
    inner = getattr(source, "pipeline", source)
    made = inner if isinstance(inner, Pipeline) else open_url(inner, storage_options)
    if not made.source.single:
        raise PipelineError(
            "report: expected a pipeline over one dataset, got a mixed or served one. Pass its sources instead."
        )
    return made


def open_url(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Pipeline:
    """Opens a URL: as a Hugging Face folder for ``hf://``, as a Delta table or LeRobot dataset if it is one, or else as
    files.

    Raises:
        DatasetError: a table cannot be read, or a library for it is missing.
    """
    text = os.fspath(url)
    if text.startswith("hf://"):
        return Pipeline.from_huggingface_parquet(text, storage_options=storage_options)
    filesystem, path = resolve(text, storage_options=None if storage_options is None else dict(storage_options))
    try:
        log, robot = filesystem.get_file_info([posixpath.join(path, name) for name in ("_delta_log", "meta/info.json")])
    except OSError:  # the error is raised when the files are read
        return Pipeline(text, storage_options=storage_options)
    if log.type == pafs.FileType.Directory:
        return Pipeline.from_delta(text, storage_options=storage_options)
    if robot.type == pafs.FileType.File:
        return Pipeline.from_lerobot(text, storage_options=storage_options)
    return Pipeline(text, storage_options=storage_options)


class _Chunks:
    """The footer entries of the column chunks of evenly spaced row groups, by field."""

    def __init__(self, dataset: StoredDataset) -> None:
        groups = dataset.row_groups
        sample_size = min(len(groups), _MOST_ROW_GROUPS)
        self.row_groups = np.unique(np.linspace(0, max(len(groups) - 1, 0), sample_size).astype(np.int64))
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
        """Returns the column chunks of a field."""
        return self._by_field[name]


def _leaves(dataset: StoredDataset, file: int, footer: pq.FileMetaData) -> dict[str, list[int]]:
    """Returns the indices of the Parquet columns of each field in one file."""
    schema = footer.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    stored = {name: dataset.stored_name(file, name) for name in dataset.schema.fields}
    return {
        name: [] if path is None else [number for number, leaf in enumerate(paths) if belongs(leaf, {path})]
        for name, path in stored.items()
    }


def _field(
    dataset: StoredDataset,
    chunks: _Chunks,
    name: str,
    scale: float,
    missing: SomeFiles | None,
    types: Mapping[str, SomeFiles],
) -> FieldReport:
    field = dataset.schema[name]
    column_chunks = chunks.of(name)
    share = 1 / max(len(column_chunks), 1)
    dtype = dtype_to_json(field.dtype)
    nulls, minimum, maximum, wrong = _bounds(dataset, name)
    return FieldReport(
        name=name,
        dtype=dtype,
        shape=field.shape,
        dims=field.dims,
        nullable=field.nullable,
        codec=field.storage.kind if field.storage.coded else None,
        stored=" and ".join(dataset.frame_columns.get(name, [str(dataset.types.get(name, ""))])),
        video=_video(dataset, field),
        unit=dtype if dtype.startswith(("datetime64", "timedelta64")) else None,
        partition=name in dataset.partitions,
        stored_bytes=int(sum(chunk.total_compressed_size for chunk in column_chunks) * scale),
        decoded_bytes=int(sum(chunk.total_uncompressed_size for chunk in column_chunks) * scale),
        compression=tuple(sorted({chunk.compression for chunk in column_chunks})),
        encodings=tuple(sorted({encoding for chunk in column_chunks for encoding in chunk.encodings})),
        dictionary=share * sum("DICTIONARY" in " ".join(chunk.encodings) for chunk in column_chunks),
        statistics=share * sum(chunk.is_stats_set for chunk in column_chunks),
        nulls=nulls,
        minimum=minimum,
        maximum=maximum,
        missing=missing,
        types=types,
        impossible=wrong,
    )


def _video(dataset: StoredDataset, field: UnischemaField) -> str | None:
    row_groups = np.flatnonzero(dataset.row_groups.rows)
    if field.storage.in_column or not len(row_groups):
        return None
    try:
        (frames,) = Fetcher(dataset, [field]).fetch(int(row_groups[0]), np.zeros(1, np.int64)).columns
    except ParquetryError as error:
        return str(error)
    assert isinstance(frames, EncodedFrames)
    if not frames.groups:
        return frames.problems.get(0, "the first row has no frame")
    track = frames.groups[0].track
    return (
        f"the first video has {len(track.shown):,} frames of {track.height} x {track.width} in {track.codec}, "
        f"{len(track.keys):,} of them stored whole"
    )


def _bounds(dataset: StoredDataset, name: str) -> tuple[int | None, Any, Any, int]:
    """Returns the null count, minimum and maximum of a field, as far as footers or the index have them, and how many
    row groups have statistics that cannot be true.
    """
    is_long = dataset.index is None and len(dataset.row_groups) * len(dataset.schema) > _MOST_BOUNDS
    if is_long or dataset.schema[name].storage.coded:
        return None, None, None, 0
    stated = stated_statistics(dataset, name)
    wrong = int(np.count_nonzero(impossible(stated)))
    if wrong:
        return None, None, None, wrong
    known = believed(stated)
    nulls = int(known.null_count.sum()) if len(known.null_count) and (known.null_count >= 0).all() else None
    return nulls, _extreme(known.minimum, least=True), _extreme(known.maximum, least=False), 0


def _extreme(bounds: pa.Array | None, *, least: bool) -> Any:
    if bounds is None or len(bounds) == bounds.null_count:
        return None
    try:
        order = pc.array_sort_indices(comparable(bounds), order="ascending" if least else "descending")
    except pa.ArrowNotImplementedError:
        return None  # values without an order
    return scalar_value(bounds[order[0].as_py()])


def rows_text(rows: Sizes) -> str:
    """Returns how many rows the row groups have, in words."""
    if rows.least == rows.most:
        return counted(rows.most, "row")
    return f"{rows.least:,} to {rows.most:,} rows (median {rows.median:,})"


def _described(dataset: StoredDataset) -> str:
    """Says where the schema comes from."""
    from ...dataset.dataset import read_key_values
    from ...schema.field import SCHEMA_KEY
    from ...schema.petastorm_metadata import SCHEMA_KEY as PETASTORM_KEY

    keys: set[bytes] = set()
    for version in dataset.listing.metadata_files:
        keys |= read_key_values(dataset.filesystem, version).keys()
    for number in dataset.unlike_files if dataset.table is None else [0][: len(dataset.files)]:
        footer = dataset.footer(number)
        keys |= (footer.metadata or {}).keys() | (footer.schema.to_arrow_schema().metadata or {}).keys()
    return "parquetry" if SCHEMA_KEY in keys else "petastorm" if PETASTORM_KEY in keys else "columns"
