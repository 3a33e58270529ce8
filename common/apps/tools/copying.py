"""`copy` copies some fields and rows of a dataset to a new one, with its own files, row groups and partitions.

Stored values are copied unchanged. Images are not decoded or compressed again. The work is split into stripes of row
groups, so an interrupted copy resumes where it stopped (see `copy_job`).
"""

from __future__ import annotations

import decimal
import hashlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from ...base.errors import DecodeError, EncodeError, PipelineError
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...engine.read.canonical import to_canonical
from ...engine.read.external_images import ListedPlace, is_listed
from ...engine.read.fetch import Fetcher
from ...engine.run.row_group_loop import tables_ahead
from ...pipeline.pipeline import Pipeline
from ...plan.plan import Plan
from ...plan.selection.rows import RowSet
from ...plan.selection.statistics import decoded_bytes
from ...schema.codecs import ListCodec, ReadListCodec, ScalarCodec
from ...schema.field import Unischema, UnischemaField
from ...schema.images import CompressedImageCodec
from ...schema.plain import integer
from ...storage.filesystem import resolve
from ...storage.patterns import Pattern
from ...storage.stores import store_of
from ...write.file_format import arrow_schema
from ...write.petastorm import petastorm_schema
from ...write.writer import DatasetWriter
from .copy_job import CopyJob

STRIPE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """The result of `copy`.

    Attributes:
        rows: rows in the target.
        files: data files in the target.
        schema: the schema of the target.
        resumed_stripes: stripes that an earlier, interrupted copy had finished.
    """

    rows: int
    files: int
    schema: Unischema
    resumed_stripes: int

    def __str__(self) -> str:
        again = f"; resumed after {self.resumed_stripes} finished stripes" if self.resumed_stripes else ""
        return f"{self.rows:,} rows of {len(self.schema)} fields in {self.files} files{again}."


def copy(
    source: str | os.PathLike[str] | Pipeline,
    target: str | os.PathLike[str],
    field_regex: str | Sequence[str] | None = None,
    not_null_fields: str | Sequence[str] = (),
    where: object = None,
    partition_by: str | Sequence[str] | None = None,
    row_group_rows: int | None = None,
    *,
    row_group_bytes: int | None = None,
    files: int = 1,
    overwrite: bool = False,
    petastorm_compatible: bool = False,
    progress: bool = True,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    stripe_bytes: int = STRIPE_BYTES,
) -> CopyReport:
    """Copies a dataset or a part of it. To resume after an interruption, call it again.

    Args:
        source: a URL, or a pipeline with only ``select``, ``where``, ``take`` and ``skip``, such as
            ``Pipeline.from_delta(url)``.
        field_regex: names or regexes of the fields to copy, matched against the full name; ``None`` = all.
        not_null_fields: copies only rows in which none of these fields is null.
        where: copies only rows that match this filter: a ``pyarrow.compute.Expression`` or DNF tuples.
        partition_by: fields that become directories; ``None`` = the partition fields of the source that are copied.
        row_group_rows, row_group_bytes, files, petastorm_compatible: see `DatasetWriter`. ``files`` is per stripe.
        overwrite: replaces a dataset at the target once the copy is complete.
        progress: shows a progress bar.
        source_options, target_options: arguments for fsspec.
        stripe_bytes: the approximate size of a stripe in uncompressed bytes.

    Raises:
        DatasetError: the target holds a dataset or a different unfinished copy, or the file system refused.
        FieldNotFoundError, SchemaError, PipelineError: the arguments do not fit the source.
    """
    plan = plan_copy(
        source,
        field_regex,
        not_null_fields,
        where,
        partition_by,
        row_group_rows,
        row_group_bytes=row_group_bytes,
        files=files,
        petastorm_compatible=petastorm_compatible,
        source_options=source_options,
        stripe_bytes=stripe_bytes,
    )
    return plan.carry_out(target, target_options, overwrite=overwrite, what="copying", progress=progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """A planned copy. The plan is made once, before the first row is read.

    Attributes:
        rows: the rows to copy.
        layout: arguments for `DatasetWriter`.
        stripes: the row groups of each stripe.
        fingerprint: identifies the copy, so that only the same copy can resume it.
    """

    dataset: StoredDataset
    fields: tuple[UnischemaField, ...]
    schema: Unischema
    rows: RowSet
    layout: dict[str, Any]
    stripes: list[np.ndarray]
    fingerprint: str

    def carry_out(
        self,
        target: str | os.PathLike[str],
        target_options: Mapping[str, Any] | None,
        *,
        overwrite: bool,
        what: str,
        workers: int = 1,
        progress: bool = True,
    ) -> CopyReport:
        """Copies the stripes that are missing at the target, and makes the files visible."""
        job = self.job(target, target_options, overwrite=overwrite)

        def write(number: int) -> Generator[int, None, None]:
            return write_stripe(self, number, job.filesystem, job.place(number))

        sizes = [int(self.rows.counts[row_groups].sum()) for row_groups in self.stripes]
        with job.alone():
            resumed = job.run(sizes, write, what=what, unit="row", workers=workers, progress=progress)
            return self.complete(job, resumed)

    def job(
        self, target: str | os.PathLike[str], target_options: Mapping[str, Any] | None, *, overwrite: bool
    ) -> CopyJob:
        """Starts or resumes the copy at its target. See `CopyJob` for the errors."""
        filesystem, root = resolve(target, storage_options=target_options)
        return CopyJob(
            filesystem,
            root,
            self.fingerprint,
            sources=places_of(self.dataset),
            patterns=patterns_of(self.dataset),
            overwrite=overwrite,
        )

    def complete(self, job: CopyJob, resumed: int) -> CopyReport:
        """Makes the target visible. Every stripe must be finished."""
        stored = arrow_schema(self.schema, without=self.layout["partition_by"])
        compatible = self.layout["petastorm_compatible"]
        labels = {name: names for name, names in self.dataset.labels.items() if name in self.schema}
        made = job.complete(len(self.stripes), self.schema, stored, petastorm_compatible=compatible, labels=labels)
        job.check_rows(self.rows.total)
        return CopyReport(rows=self.rows.total, files=made, schema=self.schema, resumed_stripes=resumed)


def places_of(dataset: StoredDataset) -> list[tuple[str, str]]:
    """Returns the store and path of each source of a dataset: its files, and the directories it was opened from."""
    places = [(file.version.store, file.version.path) for file in dataset.files]
    if dataset.table is None:
        places += [(store, root) for store, _ in places[:1] for root in dataset.roots]
    elif dataset.table.is_manifest:
        filesystem, folder = dataset.folder
        places.append((store_of(filesystem), folder))
    return places


def patterns_of(dataset: StoredDataset) -> list[tuple[str, Pattern]]:
    """Returns the store and pattern of each source of a dataset that is a pattern."""
    return [(store_of(dataset.filesystem), pattern) for pattern in dataset.patterns]


def write_stripe(plan: CopyPlan, number: int, filesystem: pafs.FileSystem, place: str) -> Generator[int, None, None]:
    """Writes one stripe to a directory. Yields the number of rows after each row group."""
    row_groups: list[int] = plan.stripes[number].tolist()
    tables = tables_ahead(Fetcher(plan.dataset, plan.fields), plan.rows, row_groups)
    with DatasetWriter(place, plan.schema, filesystem=filesystem, **plan.layout) as writer, closing(tables):
        for row_group, table in zip(row_groups, tables, strict=True):
            _check_images(plan, row_group, table)
            writer.write_stored(to_stored(plan.schema, table))
            yield table.num_rows


def _check_images(plan: CopyPlan, row_group: int, table: pa.Table) -> None:
    """Checks the headers of image files against their field. The files have not been opened before.

    Raises:
        EncodeError: a file is not a suitable image. The message names it.
    """
    for field in plan.fields:
        codec = field.storage
        if not (is_listed(plan.dataset, field) and isinstance(codec, CompressedImageCodec) and codec.convert):
            continue
        for row, value in zip(plan.rows.of(row_group).tolist(), table.column(field.name), strict=True):
            try:
                codec.check_stored(field, memoryview(value.as_buffer()))
            except (ValueError, OSError) as error:
                (place,) = Fetcher(plan.dataset, [field]).places([row_group])
                where = place.describe(row) if isinstance(place, ListedPlace) else place
                raise EncodeError(
                    f"field '{field.name}', {where}: expected an image of shape {field.shape}, got: {error}. Write it "
                    "again, or remove it from the folder."
                ) from error


def plan_copy(
    source: str | os.PathLike[str] | Pipeline,
    field_regex: str | Sequence[str] | None,
    not_null_fields: str | Sequence[str],
    where: object,
    partition_by: str | Sequence[str] | None,
    row_group_rows: int | None,
    *,
    row_group_bytes: int | None,
    files: int,
    petastorm_compatible: bool,
    source_options: Mapping[str, Any] | None,
    stripe_bytes: int,
) -> CopyPlan:
    """Plans a `copy`. See `copy` for the arguments and the errors."""
    if integer(stripe_bytes, least=1) is None:
        raise PipelineError(f"stripe_bytes: expected an integer of at least 1, got {stripe_bytes!r}.")
    source = getattr(source, "pipeline", source)
    pipeline = source if isinstance(source, Pipeline) else Pipeline(source, storage_options=source_options)
    check_selects(pipeline, "copy")
    pipeline = pipeline if where is None else pipeline.where(where)
    dataset = _plan(pipeline).dataset  # with the types that the pipeline declares
    for name in dataset.match(_as_list(not_null_fields)) if not_null_fields else ():  # a list with nulls is not null
        pipeline = pipeline.where(pc.is_valid(pc.field(*dataset.image_bytes.get(name, name).split("."))))
    if isinstance(source, Pipeline):
        pipeline = pipeline if field_regex is None else pipeline.select(*_as_list(field_regex) or [])
        fields = list(_plan(pipeline).program.fields)
    else:
        fields = [dataset.schema[name] for name in dataset.match(_as_list(field_regex))]
    keys = _as_list(partition_by) or []
    if partition_by is None:
        keys = [field.name for field in fields if field.name in dataset.partitions]
    schema = stored_schema(dataset, fields)
    schema = petastorm_schema(schema) if petastorm_compatible else schema
    layout = {
        "row_group_rows": row_group_rows,
        "row_group_bytes": row_group_bytes,
        "partition_by": keys,
        "files": files,
        "petastorm_compatible": petastorm_compatible,
    }
    rows = _plan(pipeline).selection.rows
    return CopyPlan(
        dataset=dataset,
        fields=tuple(fields),
        schema=schema,
        rows=rows,
        layout=layout,
        stripes=_stripes(dataset, rows, [field.name for field in fields], stripe_bytes),
        fingerprint=_fingerprint(dataset, pipeline, schema, {**layout, "stripe_bytes": stripe_bytes}),
    )


def conditions(text: str) -> list[Any]:
    """Parses JSON into DNF tuples. The JSON is ``[["speed", ">", 3]]``, or a list of such lists.

    Raises:
        ValueError: the text is not JSON.
    """
    terms = json.loads(text)
    if terms and isinstance(terms[0], str):
        terms = [terms]
    if terms and isinstance(terms[0][0], list):
        return [[tuple(term) for term in group] for group in terms]
    return [tuple(term) for term in terms]


def _as_list(names: str | Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)


def check_selects(pipeline: Pipeline, what: str) -> None:
    """Raises `PipelineError` if a pipeline does more than select stored values of one dataset."""
    others = [stage.verb for stage in pipeline.stages if not stage.selects]
    if others or not pipeline.source.single:
        raise PipelineError(
            f"{what}: expected a pipeline over one dataset, with only select, where, take and skip, got "
            f"{', '.join(others) or 'one that is mixed or served'}. For other pipelines, use write_dataset()."
        )


def _plan(pipeline: Pipeline) -> Plan:
    plan = pipeline.plan()
    assert isinstance(plan, Plan)  # true for a pipeline over one dataset
    return plan


def _fingerprint(dataset: StoredDataset, pipeline: Pipeline, schema: Unischema, layout: Mapping[str, Any]) -> str:
    stages = [stage.to_json() for stage in pipeline.stages]
    text = json.dumps([dataset.version, stages, schema.to_json(), dict(layout)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _stripes(dataset: StoredDataset, rows: RowSet, names: Sequence[str], size_bytes: int) -> list[np.ndarray]:
    """Splits the row groups with rows to copy into stripes of about this size; one empty stripe if there are none."""
    row_groups = np.flatnonzero(rows.counts > 0)
    if not len(row_groups):
        return [row_groups]
    sizes = [decoded_bytes(dataset, int(row_group), names) for row_group in row_groups]
    stripe = np.cumsum([0, *sizes[:-1]]) // max(size_bytes, 1)
    return np.split(row_groups, np.flatnonzero(np.diff(stripe)) + 1)


def stored_schema(dataset: StoredDataset, fields: Sequence[UnischemaField]) -> Unischema:
    """Returns a schema of the fields, with codecs that keep the precision of stored decimals and times.

    Raises:
        PipelineError: the values of a field are frames of videos.
    """
    for field in fields:
        if not field.storage.in_column:
            raise PipelineError(
                f"field '{field.name}': expected values in the Parquet files, got frames of videos beside them. "
                "Leave the field out, or encode its frames anew with write_dataset(url, schema, "
                "Pipeline(...))."
            )
    kinds = {n: t for n, t in dataset.types.items() if n not in dataset.partitions}
    return Unischema(dataset.schema.name, [_keeping(field, kinds.get(field.name)) for field in fields])


def to_stored(schema: Unischema, table: pa.Table) -> pa.Table:
    """Casts the columns to the Arrow types in which the schema stores them.

    Raises:
        DecodeError: a value does not fit its field.
    """
    columns = [_cast(schema[name], table.column(name)) for name in table.column_names]
    return pa.table(columns, names=table.column_names)


def _keeping(field: UnischemaField, kind: pa.DataType | None) -> UnischemaField:
    if field.storage.coded:
        return field.replace(codec=field.storage)  # the bytes are copied, so keep the codec even if defaults change
    kind = None if kind is None else _element_type(kind)
    exact = kind if kind is not None and _keeps_its_type(kind, field) else None
    if field.shape and (exact is not None or isinstance(field.storage, ReadListCodec)):
        return field.replace(codec=ListCodec(arrow=exact))
    return field if exact is None else field.replace(codec=ScalarCodec(exact))


def _keeps_its_type(kind: pa.DataType, field: UnischemaField) -> bool:
    """Whether the field holds decimals or times, whose stored type its dtype does not tell."""
    if pa.types.is_decimal(kind):
        return field.dtype is decimal.Decimal
    times = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return bool(times and isinstance(field.dtype, np.dtype) and field.dtype.kind == "M")


def _element_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values inside lists."""
    while pa.types.is_nested(kind) and kind.num_fields == 1:
        kind = kind.field(0).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _cast(field: UnischemaField, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = field.storage.arrow_type(field)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _holds_uncastable(column.type):
        column = pa.chunked_array([to_canonical(field, each) for each in column.chunks] or pa.array([], kind))
    try:
        if pa.types.is_time(column.type) and pa.types.is_duration(kind):  # Arrow has no such cast
            unit = column.type.unit
            column = column.cast(f"int{column.type.bit_width}").cast("int64").cast(pa.duration(unit))
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise DecodeError(f"field '{field.name}': expected values that {kind} can hold: {error}") from error


def _holds_uncastable(kind: pa.DataType) -> bool:
    """Whether the type has tensors, or times inside lists, which Arrow casts neither to lists nor to durations."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return True
    inner = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(pa.types.is_time(each) or _holds_uncastable(each) for each in inner)
