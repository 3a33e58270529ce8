"""`convert` writes image folders, TFRecord, WebDataset, Hugging Face folders and any Parquet as a dataset.

The work is split into stripes (row groups of Parquet, parts of an image folder, source files of the other formats),
several of which are written in parallel. Finished stripes are kept, so an interrupted conversion resumes where it
stopped and produces the same files. Encoded images are stored unchanged.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import os
import posixpath
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...base.errors import DatasetError, EncodeError, FieldNotFoundError, PipelineError
from ...base.platform.processes import usable_processors
from ...base.process.dataclass import dataclass
from ...base.urls import clean_cause
from ...pipeline import Pipeline
from ...schema.field import Unischema, UnischemaField
from ...schema.plain import integer, plain
from ...storage.file_versions import FileVersion, look, versions_below
from ...storage.filesystem import resolve
from ...storage.opening import opened
from ...storage.retries import with_retries
from ...write.file_format import arrow_schema
from ...write.writer import DatasetWriter
from .copy_job import CopyJob
from .copying import STRIPE_BYTES, CopyPlan, CopyReport, check_selects, plan_copy
from .records import default_features, described_fields, infer_fields, to_row
from .tfrecord import Feature, tfrecord_rows
from .webdataset import webdataset_rows

SourceFormat: TypeAlias = Literal["parquet", "huggingface", "images", "tfrecord", "webdataset"]
Urls: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_ENDINGS: dict[SourceFormat, tuple[str, ...]] = {
    "parquet": ("*.parquet", "*.parq", "*.pq"),
    "tfrecord": ("*.tfrecord*", "*.tfrec*", "*tfrecord-*"),
    "webdataset": ("*.tar", "*.tar.gz", "*.tgz", "*.tar.bz2", "*.tar.xz", "*.tar.zst"),
    "images": ("*.jpg", "*.jpeg", "*.png", "*.webp"),
}
_ROWS: dict[str, Callable[[BinaryIO, str], Iterator[dict[str, Feature]]]] = {
    "tfrecord": tfrecord_rows,
    "webdataset": webdataset_rows,
}
_SAMPLES = 256
_LOGGER = logging.getLogger(__name__)
_ROWS_AT_A_TIME = 64


def convert(
    source: Urls | Pipeline,
    target: str | os.PathLike[str],
    fields: object = None,
    *,
    form: SourceFormat | None = None,
    rename: Mapping[str, str] | None = None,
    split: str | None = None,
    config: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    row_group_rows: int | None = None,
    row_group_bytes: int | None = None,
    petastorm_compatible: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool = True,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    stripe_bytes: int = STRIPE_BYTES,
) -> CopyReport:
    """Converts data in another format to a dataset. To resume after an interruption, call it again.

    >>> convert("shards/train-*.tar", "train.parquet", rename={"jpg": "image", "cls": "label"})  # doctest: +SKIP

    Args:
        source: a folder, a file, or a list of them. The last part of a URL may contain ``*`` and ``?``. Or a `Pipeline`
            (or an object that wraps one) with only ``select``, ``where``, ``take`` and ``skip``.
        target: a directory that is empty or does not exist.
        fields: the fields to convert; ``None`` = all. Names, or `UnischemaField` values that say how a field is stored.
            For TFRecord, also a feature description (``tf.io.FixedLenFeature``, ``FixedLenSequenceFeature`` and
            ``VarLenFeature`` by name). Fields without a description are inferred from the first 256 records of the
            first file that has any. With ``None``, a later record with other features is an error.
        form: the format of the source; ``None`` = detect it from the file names. Parquet folders are read as Hugging
            Face or Petastorm datasets if their metadata says so.
        rename: ``{feature: field}`` for TFRecord and WebDataset. Several features may map to one field if each record
            has one of them. ``fields`` refers to the new names.
        split, config: the split and configuration of a Hugging Face folder; see `Pipeline.from_huggingface_parquet`.
        partition_by, row_group_rows, row_group_bytes, petastorm_compatible: see `DatasetWriter`.
        overwrite: replaces a dataset at the target once the new one is complete.
        workers: how many stripes are written in parallel; ``None`` = one per processor, at most 8.
        progress: shows a progress bar.
        source_options, target_options: arguments for fsspec.
        stripe_bytes: the approximate size of a stripe in bytes. A TFRecord or tar file is never split.

    Raises:
        DatasetError: the source does not exist, has an unknown format, or is damaged; or the target holds a dataset or
            a different unfinished conversion.
        EncodeError: a record does not fit its fields. The message names the file.
        SchemaError, FieldNotFoundError, PipelineError: the arguments do not fit the source.
    """
    if form is not None and form not in get_args(SourceFormat):
        raise PipelineError(f"convert: expected form to be one of {get_args(SourceFormat)} or None, got {form!r}.")
    workers = _checked_workers(workers)
    layout: dict[str, Any] = {
        "partition_by": partition_by,
        "row_group_rows": row_group_rows,
        "row_group_bytes": row_group_bytes,
        "petastorm_compatible": petastorm_compatible,
    }
    source = getattr(source, "pipeline", source)
    plan: _RecordPlan | CopyPlan
    files = None if isinstance(source, Pipeline) else _SourceFiles.of(source, source_options, form)
    if files is not None and files.form in _ROWS:
        if split is not None or config is not None:
            raise PipelineError(f"convert: expected split and config for Hugging Face folders only, got {files.form}.")
        plan = _plan_records(files, fields, rename or {}, {**layout, "partition_by": partition_by or ()}, stripe_bytes)
    else:
        if rename:
            raise PipelineError("convert: expected rename for TFRecord and WebDataset only; other names are kept.")
        pipeline = _pipeline(source, files, fields, split, config, source_options)
        plan = plan_copy(pipeline, None, (), None, files=1, source_options=None, stripe_bytes=stripe_bytes, **layout)
    return plan.carry_out(
        target,
        target_options,
        overwrite=overwrite,
        what="converting",
        workers=workers,
        progress=progress,
    )


def _checked_workers(workers: object) -> int:
    if workers is None:
        return min(usable_processors(), 8)
    if integer(workers, least=1) is None:
        raise PipelineError(f"convert: expected workers to be an integer >= 1 or None, got {workers!r}.")
    result: int = plain(workers)
    return result


def _pipeline(
    source: Urls | Pipeline,
    files: _SourceFiles | None,
    fields: Any,
    split: str | None,
    config: str | None,
    source_options: Mapping[str, Any] | None,
) -> Pipeline:
    if files is None:
        pipeline = Pipeline(source, fields)
        check_selects(pipeline, "convert")
        return pipeline
    if files.form not in ("images", "huggingface"):
        return Pipeline(source, fields, storage_options=source_options)
    if not isinstance(source, str | os.PathLike):
        raise PipelineError(f"convert: expected one folder of {files.form}, got {source!r}.")
    if files.form == "images":
        return Pipeline.from_image_folder(source, fields, convert=True, storage_options=source_options)
    return Pipeline.from_huggingface_parquet(source, split, fields, config=config, storage_options=source_options)


# --- which files ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceFiles:
    """The files to convert: all of one form, ordered by URL and path."""

    form: SourceFormat
    filesystem: pafs.FileSystem
    versions: tuple[FileVersion, ...]

    @classmethod
    def of(cls, source: Urls, options: Mapping[str, Any] | None, form: SourceFormat | None) -> _SourceFiles:
        if not isinstance(source, str | os.PathLike | Iterable):
            raise PipelineError(f"convert: expected a path, a URL, a list of them, or a Pipeline, got {source!r}.")
        urls = [source] if isinstance(source, str | os.PathLike) else list(source)
        if not urls:
            raise PipelineError("convert: expected a source, got an empty list.")
        versions: list[FileVersion] = []
        named = True
        for url in urls:
            if form == "huggingface" or os.fspath(url).startswith("hf://"):  # its pipeline lists the files
                return cls(form="huggingface", filesystem=None, versions=())
            filesystem, path = resolve(url, storage_options=options)
            listed = _listed(os.fspath(url), filesystem, path)
            named = named and [version.path for version in listed] == [path]
            versions += listed
        shown = f"source {', '.join(str(url) for url in urls)}"
        form = form or _form_of(shown, filesystem, versions)
        if form in _ROWS and not named:
            patterns, among = _ENDINGS[form], len(versions)
            versions = [version for version in versions if _matches(version.path, patterns)]
            if not versions:
                raise DatasetError(
                    f"{shown}: expected files like {' or '.join(patterns)}, got none among {among} files."
                )
        return cls(form=form, filesystem=filesystem, versions=tuple(versions))

    @contextmanager
    def rows(
        self, version: FileVersion, skipped: _Skipped | None = None
    ) -> Iterator[tuple[Iterator[dict[str, Feature]], pa.NativeFile]]:
        """Opens a file. Yields an iterator over its records, and the stream that it reads."""
        with opened(self.filesystem, version) as stream:
            if skipped is not None and self.form == "webdataset":
                yield webdataset_rows(stream, version.path, partial(skipped.add, version.shown_path)), stream
            else:
                yield _ROWS[self.form](stream, version.path), stream


class _Skipped:
    """Counts the members of tar files that belong to no sample. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._example = 0, ""

    def add(self, file: str, member: str) -> None:
        with self._lock:
            self._count += 1
            self._example = self._example or f"{member!r} in {file}"

    def warn(self) -> None:
        """Warns once of what was counted."""
        if self._count:
            _LOGGER.warning(
                "convert: left out %d files that belong to no sample, because their names have no extension or begin "
                "with a dot, such as %s",
                self._count,
                self._example,
            )


def _listed(url: str, filesystem: pafs.FileSystem, path: str) -> list[FileVersion]:
    folder, name = posixpath.split(path)
    try:
        if any(letter in name for letter in "*?"):
            below = [
                version for version in versions_below(filesystem, folder) if posixpath.dirname(version.path) == folder
            ]
            versions = [version for version in below if fnmatch.fnmatchcase(posixpath.basename(version.path), name)]
        else:
            kind, version = look(filesystem, path)
            versions = versions_below(filesystem, path) if kind == pafs.FileType.Directory else []
            versions = [version] if version is not None else versions
    except OSError as error:
        raise DatasetError(f"source '{url}': cannot be reached: {error}") from clean_cause(error)
    if not versions:
        raise DatasetError(f"source '{url}': expected files, found nothing there. Check the path.")
    return sorted(
        (each for each in versions if not _is_hidden(each.path[len(path) :] if each.path.startswith(path) else "")),
        key=lambda each: each.path,
    )


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def _matches(path: str, patterns: Sequence[str]) -> bool:
    name = posixpath.basename(path).lower()
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _form_of(shown: str, filesystem: pafs.FileSystem, versions: Sequence[FileVersion]) -> SourceFormat:
    for form, patterns in _ENDINGS.items():
        first = next((version for version in versions if _matches(version.path, patterns)), None)
        if first is None:
            continue
        return "huggingface" if form == "parquet" and _is_of_hugging_face(filesystem, first) else form
    raise DatasetError(
        f"{shown}: expected Parquet, TFRecord, WebDataset tars or images, got {len(versions)} files such as "
        f"{[posixpath.basename(version.path) for version in versions[:3]]}. Name the format with form=."
    )


def _is_of_hugging_face(filesystem: pafs.FileSystem, version: FileVersion) -> bool:
    def read() -> bool:
        with opened(filesystem, version) as stream:
            return b"huggingface" in (pq.read_schema(stream).metadata or {})

    try:
        return with_retries(filesystem, read, f"file {version.shown_path}")
    except (pa.ArrowException, OSError):
        return False  # the error is raised when the file is read


# --- records ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordPlan:
    """A conversion of records. It is planned once, from the first records.

    Attributes:
        sources: the features that each field may come from.
        defaults: what stands for missing features, by field.
        features: those of the first records, if all features are to be converted.
    """

    files: _SourceFiles
    schema: Unischema
    sources: dict[str, list[str]]
    defaults: dict[str, Feature]
    features: frozenset[str] | None
    layout: dict[str, Any]
    stripes: list[list[FileVersion]]
    fingerprint: str

    def carry_out(
        self,
        target: str | os.PathLike[str],
        target_options: Mapping[str, Any] | None,
        *,
        overwrite: bool,
        what: str,
        workers: int,
        progress: bool,
    ) -> CopyReport:
        filesystem, root = resolve(target, storage_options=target_options)
        sources = [(version.store, version.path) for version in self.files.versions]
        job = CopyJob(filesystem, root, self.fingerprint, sources=sources, overwrite=overwrite)
        sizes = [sum(version.size_bytes for version in stripe) for stripe in self.stripes]
        skipped = _Skipped()
        with job.alone():
            resumed = job.run(
                sizes,
                lambda number: self._write(job, number, skipped),
                what=what,
                unit="B",
                workers=workers,
                progress=progress,
            )
            skipped.warn()
            stored = arrow_schema(self.schema, without=self.layout["partition_by"])
            compatible = self.layout["petastorm_compatible"]
            files = job.complete(len(self.stripes), self.schema, stored, petastorm_compatible=compatible)
        rows = Pipeline(target, storage_options=target_options).dataset.row_groups.rows.sum()
        return CopyReport(rows=int(rows), files=files, schema=self.schema, resumed_stripes=resumed)

    def _write(self, job: CopyJob, number: int, skipped: _Skipped) -> Generator[int, None, None]:
        """Writes one stripe. Yields the number of source bytes read in each step."""
        with DatasetWriter(job.place(number), self.schema, filesystem=job.filesystem, **self.layout) as writer:
            for version in self.stripes[number]:
                try:
                    yield from self._write_file(writer, version, skipped)
                except EncodeError as error:
                    raise EncodeError(
                        f"file {version.shown_path}: {error} Declare the field with fields=[UnischemaField(...)], "
                        "or name only the fields that you want."
                    ) from clean_cause(error)

    def _write_file(self, writer: DatasetWriter, version: FileVersion, skipped: _Skipped) -> Iterator[int]:
        done = 0
        with self.files.rows(version, skipped) as (records, stream):
            for number, record in enumerate(records, 1):
                self._check_known(number, record)
                writer.write(to_row(self.schema, record, self.sources, self.defaults))
                if number % _ROWS_AT_A_TIME == 0:
                    read = stream.tell()
                    yield read - done
                    done = read
        writer.flush()  # so that errors name this file
        yield version.size_bytes - done

    def _check_known(self, number: int, record: Mapping[str, Feature]) -> None:
        """Checks that a record has no features that would be lost, if all are to be converted."""
        if self.features is not None and not self.features.issuperset(record):
            new = sorted(set(record) - self.features)
            raise EncodeError(f"record {number}: has features that the first {_SAMPLES} records lack: {new}.")


def _plan_records(
    files: _SourceFiles, fields: object, rename: Mapping[str, str], layout: dict[str, Any], stripe_bytes: int
) -> _RecordPlan:
    samples: list[dict[str, Feature]] = []
    for version in files.versions:  # the first files may be empty
        with files.rows(version) as (records, _):
            samples = list(islice(records, _SAMPLES))
        if samples:
            break
    renamed = [{rename.get(name, name): feature for name, feature in sample.items()} for sample in samples]
    schema = Unischema(files.form, described_fields(fields, infer_fields(renamed)))
    if not len(schema):
        raise DatasetError(f"file {version.shown_path}: expected records with features, got {len(samples)} without.")
    names = {name for sample in samples for name in sample}
    met = {new for old, new in rename.items() if old in names}
    missing = [old for old, new in rename.items() if new not in met]  # any one of the features of a field is enough
    if missing:
        raise FieldNotFoundError(
            f"convert: expected rename to name features of the records, got {missing}; the first {len(samples)} "
            f"records of {version.shown_path} have {sorted(names)}."
        )
    sources = {field.name: _sources(field, rename) for field in schema}
    stripes: list[list[FileVersion]] = [[]]
    for version in files.versions:
        if stripes[-1] and sum(each.size_bytes for each in stripes[-1]) + version.size_bytes > stripe_bytes:
            stripes.append([])
        stripes[-1].append(version)
    defaults = default_features(fields, schema)
    what = [schema.to_json(), sources, layout, stripe_bytes, [version.shared_key for version in files.versions]]
    what += [{name: str(list(feature)) for name, feature in defaults.items()}] if defaults else []
    return _RecordPlan(
        files=files,
        schema=schema,
        sources=sources,
        defaults=defaults,
        features=frozenset(names) if fields is None else None,
        layout=layout,
        stripes=stripes,
        fingerprint=hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest(),
    )


def _sources(field: UnischemaField, rename: Mapping[str, str]) -> list[str]:
    """The features that a field may come from."""
    others = [old for old, new in rename.items() if new == field.name]
    return others if field.name in rename else [*others, field.name]
