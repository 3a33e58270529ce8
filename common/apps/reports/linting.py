"""`lint` finds what makes training from a dataset slow, costly or incorrect, and says what to do about it.

The result is a list of `Finding` values, problems before notes. Each check is a small function of the report, and may
read a few values. The checks run in the order of `_CHECKS`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...base.memory.arrow_views import as_numpy
from ...base.process.dataclass import dataclass
from ...dataset.dataset import StoredDataset
from ...pipeline.explain import bytes_text
from ...plan.selection.statistics import column_statistics
from ...schema.image_files import is_image_file
from .inspecting import DatasetReport, FieldReport, Source, inspect, pipeline_of
from .remedies import runnable
from .time_order import time_order, timed_pieces

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_GOOD_BYTES = _MIB, 16 * _MIB  # of a row group; docs/tuning.md has the same advice, with some room above
_GOOD_ROW_GROUPS = 300
_FILE_BYTES = 256 * _MIB
_SMALL_BYTES, _FEW_FILES, _FEW_ROW_GROUPS = 16 * _MIB, 1_000, 10_000  # so few that no layout costs much
_SLOW = frozenset({"GZIP", "BROTLI"})
_PEEKED_ROWS = 5_000
_MOST_NAMES = 6
_TIME_NAMES = ("time", "timestamp", "stamp", "ts", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        code: the name of the check, such as ``"small-row-groups"``.
        level: ``"problem"`` if it is costly or breaks something; ``"note"`` if it is worth knowing.
        field: the field concerned; ``None`` for the whole dataset.
        what: what was found.
        cost: what it costs.
        remedy: what to do.
    """

    code: str
    level: Literal["problem", "note"]
    field: str | None
    what: str
    cost: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.cost} {self.remedy}"


def lint(source: Source, *, storage_options: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """Checks a dataset. Returns the findings, problems first.

    >>> [finding.code for finding in lint("data/train")]  # doctest: +SKIP
    ['small-row-groups', 'no-index']

    Raises:
        DatasetError, PipelineError: see `inspect`.
    """
    pipeline = pipeline_of(source, storage_options)
    return find(inspect(pipeline), pipeline.dataset)


def find(report: DatasetReport, dataset: StoredDataset) -> tuple[Finding, ...]:
    """Checks a dataset that was already inspected. Returns the findings, problems first."""
    findings = [finding for check in _CHECKS for finding in check(report, dataset)]
    kind = None if dataset.table is None else dataset.table.kind
    findings = [replace(finding, remedy=runnable(finding.remedy, report.urls, kind)) for finding in findings]
    if report.bytes < _SMALL_BYTES and report.files < _FEW_FILES and report.row_groups < _FEW_ROW_GROUPS:
        findings = [replace(finding, level="note") if finding.code in _COSTS_TIME else finding for finding in findings]
    return tuple(sorted(findings, key=lambda finding: finding.level != "problem"))


def _problem(code: str, field: str | None, what: str, cost: str, remedy: str) -> Finding:
    return Finding(code=code, level="problem", field=field, what=what, cost=cost, remedy=remedy)


def _note(code: str, field: str | None, what: str, cost: str, remedy: str) -> Finding:
    return Finding(code=code, level="note", field=field, what=what, cost=cost, remedy=remedy)


def _row_groups(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    sizes, rows, better = report.bytes_per_group, report.rows_per_group, _better_rows(report)
    remedy = f"Write about {better:,} rows per row group: parquetry rewrite --row-group-rows {better}."
    if report.row_groups >= 32 and sizes.median < 256 * _KIB and better > 2 * rows.median:
        yield _problem(
            "small-row-groups",
            None,
            f"{report.row_groups:,} row groups have a median of {rows.median:,} rows, {bytes_text(sizes.median)}.",
            "Each one needs a separate read per column, and planning examines all of them.",
            remedy,
        )
    if report.decoded_per_group.most > _GIB // 2:
        yield _problem(
            "large-row-groups",
            None,
            f"Row groups have up to {rows.most:,} rows, {bytes_text(report.decoded_per_group.most)} in memory.",
            "A shuffle holds whole row groups, so each block takes at least that much, and reading one row takes long.",
            remedy,
        )
    if report.rows >= 10_000 and report.row_groups < 8 and report.bytes > 16 * _MIB:
        yield _problem(
            "few-row-groups",
            None,
            f"{report.rows:,} rows are in {report.row_groups} row groups.",
            "Ranks and filters can skip little, and the shuffle has little to permute.",
            remedy,
        )
    if report.row_groups >= 8 and rows.most > 8 * max(rows.median, 1):
        yield _note(
            "uneven-row-groups",
            None,
            f"The largest row group has {rows.most:,} rows, the median {rows.median:,}.",
            "The largest one determines memory and waiting times.",
            f"Make them equal: parquetry rewrite --row-group-rows {better}.",
        )


def _better_rows(report: DatasetReport) -> int:
    """Returns the rows in a row group of a good size, rounded to two digits. Small datasets get smaller row groups."""
    least, most = _GOOD_BYTES
    size_bytes = min(max(report.bytes / _GOOD_ROW_GROUPS, least), most)
    rows = min(max(size_bytes * report.rows / max(report.bytes, 1), 1), 100_000)
    return int(float(f"{rows:.1e}"))


def _files(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    better = max(round(report.bytes / _FILE_BYTES), 1)
    if report.files >= 64 and report.file_bytes.median < 4 * _MIB:
        yield _problem(
            "many-small-files",
            None,
            f"{report.files:,} files have a median of {bytes_text(report.file_bytes.median)}.",
            "Each file must be listed and opened, and its footer read.",
            f"Join them: parquetry rewrite --files {better}.",
        )
    if report.files == 1 and report.bytes > 8 * _GIB:
        yield _note(
            "one-huge-file",
            None,
            f"All rows are in one file of {bytes_text(report.bytes)}.",
            "You cannot add, replace or copy parts of it.",
            f"Split it: parquetry rewrite --files {better}.",
        )
    few = 8 if dataset.remote else 64
    if report.files >= few and not report.indexed and dataset.table is None:
        are_directories = set(dataset.roots).isdisjoint(file.path for file in dataset.files)
        yield _note(
            "no-index",
            None,
            f"There is no row-group index for {report.files:,} files.",
            "Each start reads the footers of all files.",
            (
                "Write one: parquetry index."
                if are_directories
                else "Only directories have one: name theirs, with where() in place of a pattern for partitions."
            ),
        )


def _schema(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    if report.described == "petastorm":
        yield _note(
            "pickled-schema",
            None,
            "The schema is a Petastorm pickle.",
            "parquetry reads it without unpickling, but other tools cannot.",
            "Convert it to JSON: parquetry migrate.",
        )
    for name, reason in report.refused.items():
        yield _problem(
            "refused-column",
            name,
            f"Column '{name}' cannot become a tensor.",
            (
                "It is left out, because the schema in the metadata does not declare it."
                if name in dataset.not_added
                else "Reading all fields raises an error."
            ),
            reason,
        )
    if nulls := {field.name: field.nulls for field in report.fields if field.nulls}:
        names = [*nulls][:_MOST_NAMES]
        counts = [f"'{name}' {'is null ' * (name == names[0])}in {nulls[name]:,}" for name in names]
        more = len(nulls) > len(names)
        shown = ", ".join([*counts, *([f"and {len(nulls) - len(names):,} more fields"] if more else [])])
        arguments = ", ".join([f'"{name}"' for name in names] + ["..."] * more)
        yield _note(
            "nulls",
            names[0] if len(nulls) == 1 else None,
            f"Of {report.rows:,} rows, {shown}.",
            "TensorFlow and PyTorch have no nulls, so a null raises an error.",
            f'Choose how to handle them: nulls("drop", {arguments}), or "fill" with value=, or "mask".',
        )


def _compression(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    for field in report.fields:
        if field.decoded_bytes < _MIB:
            continue
        saved = 1 - field.stored_bytes / field.decoded_bytes
        kinds = " and ".join(field.compression)
        coded = field.codec is not None and dataset.schema[field.name].storage.costly
        looks_encoded = coded or _looks_like_images(dataset, field)
        if looks_encoded and field.compression != ("UNCOMPRESSED",) and saved < 0.05:
            yield _problem(
                "compressed-twice",
                field.name,
                f"'{field.name}' holds compressed values, and {kinds} saves only {max(saved, 0):.1%} more.",
                f"Every epoch decompresses {bytes_text(field.decoded_bytes)} for that, and single rows cannot be read.",
                f"Write it without compression: parquetry rewrite{'' if coded else ' --compression none'}.",
            )
        elif _SLOW & set(field.compression):
            yield _problem(
                "slow-compression",
                field.name,
                f"'{field.name}' is compressed with {kinds}.",
                f"It decompresses several times slower than ZSTD: {bytes_text(field.decoded_bytes)} in every epoch.",
                "Write it with ZSTD: parquetry rewrite.",
            )
        elif field.compression == ("UNCOMPRESSED",) and not looks_encoded and field.stored_bytes > 16 * _MIB:
            yield _note(
                "no-compression",
                field.name,
                f"'{field.name}' takes {bytes_text(field.stored_bytes)} without compression.",
                "That is fast from a local disk, but slow from a store.",
                "Write it with ZSTD if it is read over a network: parquetry rewrite.",
            )


def _images(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    for field in report.fields:
        if field.codec is None and _looks_like_images(dataset, field):
            yield _note(
                "undeclared-images",
                field.name,
                f"'{field.name}' holds image files as bytes.",
                "The images are not decoded.",
                (
                    f'To decode them, select UnischemaField("{field.name}", "uint8", (None, None, 3), '
                    'CompressedImageCodec("jpeg")).'
                ),
            )
        shape = field.shape
        picture = field.dtype == "uint8" and len(shape) == 3 and shape[2] in (1, 3, 4)
        if picture and field.codec is not None and not dataset.schema[field.name].storage.costly:
            yield _note(
                "raw-images",
                field.name,
                f"'{field.name}' holds images as raw pixels, {bytes_text(field.decoded_bytes)}.",
                "They are fast to decode, but JPEG would take about a tenth of the bytes.",
                "If reading is slow, write them with CompressedImageCodec.",
            )


def _looks_like_images(dataset: StoredDataset, field: FieldReport) -> bool:
    if field.codec is not None or field.shape != () or field.dtype != "bytes" or field.partition:
        return False
    values = [value for value in _first_values(dataset, field.name, 8) if value and isinstance(value, bytes)]
    return 2 * sum(is_image_file(memoryview(value)) for value in values) > len(values)


def _dictionaries(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    for field in report.fields:
        plain_text = field.dtype == "str" and field.shape == () and field.codec is None and not field.partition
        if not plain_text or field.dictionary > 0.5 or field.decoded_bytes < _MIB:
            continue
        values = _first_values(dataset, field.name, _PEEKED_ROWS)
        distinct = len(set(values))
        if len(values) >= 100 and distinct < len(values) / 4:
            yield _problem(
                "no-dictionary",
                field.name,
                f"'{field.name}' stores each string in full; {len(values):,} rows have {distinct:,} distinct ones.",
                f"It takes {bytes_text(field.stored_bytes)}. A dictionary needs {distinct / len(values):.0%} of that.",
                "Write it with a dictionary: parquetry rewrite.",
            )


def _first_values(dataset: StoredDataset, name: str, count: int) -> list[Any]:
    """Reads the first values of a plain column, which takes only a few pages."""
    stored = dataset.stored_name(0, name) if dataset.files else None
    if stored is None or "." in stored or not len(dataset.row_groups):
        return []
    with dataset.open(0) as source:
        file = pq.ParquetFile(source)
        if stored not in file.schema_arrow.names:
            return []
        batch: pa.RecordBatch | None = next(file.iter_batches(count, columns=[stored]), None)
        return [] if batch is None else batch.column(0).to_pylist()


def _statistics(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    missing = [
        field.name
        for field in report.fields
        if field.codec is None and field.shape == () and not field.partition and field.statistics < 0.5
    ]
    for field in report.fields:
        if field.impossible:
            yield _problem(
                "impossible-statistics",
                field.name,
                f"The statistics of '{field.name}' cannot be true in {field.impossible:,} row groups.",
                "A minimum is above its maximum, or there are more nulls than rows, so filters read these row groups. "
                "parquetry verify names them.",
                "Write them again: parquetry rewrite.",
            )
    if missing and report.row_groups > 1:
        shown = ", ".join(missing[:_MOST_NAMES]) + (", ..." if len(missing) > _MOST_NAMES else "")
        yield _note(
            "no-statistics",
            None,
            f"Row groups have no bounds for {shown}.",
            "A filter on them reads every row group.",
            "Write them with statistics: parquetry rewrite.",
        )


def looks_like_times(field: FieldReport) -> bool:
    """Whether a field holds times, or numbers with a name such as ``stamp_ms``."""
    if field.shape != () or field.codec is not None or field.partition:
        return False
    named = not set(re.split("[_.]", field.name.lower())).isdisjoint(_TIME_NAMES)
    return field.dtype.startswith("datetime64") or (named and field.dtype in ("int64", "uint64", "float64"))


def _time_order(report: DatasetReport, dataset: StoredDataset) -> Iterator[Finding]:
    """Finds fields that look like timestamps and are not in the order that windows over them need."""
    if report.row_groups > 200_000:
        return
    groups = [field.name for field in report.fields if _may_group(field) and field.decoded_bytes <= 256 * report.rows]
    for field in report.fields:
        if not looks_like_times(field):
            continue
        back = _row_groups_back(dataset, field.name)
        order = time_order(timed_pieces(dataset, field.name, groups, back))
        if not len(back) and not (order.gains and (order.resets or order.group)):
            continue
        name, group = field.name, order.group
        where = f" where '{group}' changes" if group is not None and not order.gains else ""
        what = (
            f"'{name}' goes backward between {len(back):,} pairs of consecutive row groups in a file{where}."
            if len(back)
            else f"'{name}' goes backward {order.resets:,} times in {order.rows:,} rows."
            if order.resets
            else f"'{name}' never goes backward, but rows of different '{group}' alternate."
        )
        cost = "Windows use rows in stored order, and filters on it prune little."
        if order.gains:
            cost = (
                f"Of {order.rows:,} rows, {order.pairs:,} have a successor that windows can use"
                f"{'' if group is None else f', of the same {group!r}'}; once sorted, {order.sorted_pairs:,} have one."
            )
        by = f"--sort-by {shlex.quote(name)}"
        if group is None and order.gains:
            remedy = (
                "If you make windows over it, sort the rows; if a column says which recording they belong to, by that "
                f"column first: parquetry rewrite {by}."
            )
        elif group is None:
            remedy = (
                "If you make windows over it, add a column that says which recording a row belongs to, and pass it as "
                "group_by. Sorting by time alone would mix recordings."
            )
        elif order.gains:
            remedy = (
                f'If you make windows over it, pass group_by="{group}" and sort the rows by both: '
                f"parquetry rewrite --sort-by {shlex.quote(group)} {by}."
            )
        else:
            remedy = (
                f'If you make windows over it, pass group_by="{group}". The rows are in the right order for that; '
                "sorting by time alone would mix them."
            )
        yield _note("unsorted-times", name, what, cost, remedy)


def _row_groups_back(dataset: StoredDataset, name: str) -> np.ndarray:
    """The row groups of which the next one in the same file has earlier times."""
    known = column_statistics(dataset, name)
    if known.minimum is None or known.maximum is None:
        return np.zeros(0, np.int64)
    inside = dataset.row_groups.file[1:] == dataset.row_groups.file[:-1]
    return np.flatnonzero(as_numpy(pc.less(known.minimum[1:], known.maximum[:-1]).fill_null(False)) & inside)


def _may_group(field: FieldReport) -> bool:
    """Whether a column may tell recordings apart."""
    plain = field.shape == () and field.codec is None and not field.partition and not looks_like_times(field)
    varies = field.minimum is None or field.minimum != field.maximum
    return plain and varies and (field.dtype == "str" or field.dtype.startswith(("int", "uint")))


_CHECKS: tuple[Callable[[DatasetReport, StoredDataset], Iterator[Finding]], ...] = (
    _row_groups,
    _files,
    _schema,
    _compression,
    _images,
    _dictionaries,
    _statistics,
    _time_order,
)

_COSTS_TIME = frozenset(
    {
        "small-row-groups",
        "few-row-groups",
        "many-small-files",
        "compressed-twice",
        "slow-compression",
        "no-dictionary",
    }
)
"""Findings that are problems only in datasets that take a while to read."""
