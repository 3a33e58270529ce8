"""`copy`: some fields and rows of a dataset as a new one, in other files, row groups and partitions.

Stored values are copied as they are: no image is decoded and compressed again. The work is cut into stripes of row
groups, so that a copy that was interrupted goes on where it stopped (see `copy_job`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from ..engine.fetch import Fetcher
from ..layout.dataset import StoredDataset
from ..layout.filesystem import resolve
from ..pipeline import Pipeline
from ..schema.field import Unischema, UnischemaField
from ..selection.rows import RowSet
from ..selection.select import Selection
from ..selection.statistics import decoded_bytes
from ..write.file_format import arrow_schema
from ..write.petastorm import petastorm_schema
from ..write.writer import DatasetWriter
from .copy_job import CopyJob
from .stored_schema import stored_schema, to_stored

STRIPE_BYTES = 512 << 20
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What `copy` did.

    Attributes:
        rows: rows in the target.
        files: data files in the target.
        schema: of the target.
        resumed_stripes: stripes that an interrupted copy had finished before.
    """

    rows: int
    files: int
    schema: Unischema
    resumed_stripes: int

    def __str__(self) -> str:
        again = f"; went on after {self.resumed_stripes} finished stripes" if self.resumed_stripes else ""
        return f"{self.rows:,} rows of {len(self.schema)} fields in {self.files} files{again}."


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    field_regex: str | Sequence[str] | None = None,
    not_null_fields: str | Sequence[str] = (),
    where: Any = None,
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
    """Copies a dataset, or a part of it. Called again after an interruption, it goes on with what is missing.

    Args:
        field_regex: names or regexes (matched in full) of the fields to copy; ``None`` = all.
        not_null_fields: only rows in which none of these fields is null.
        where: only rows for which this holds: a ``pyarrow.compute.Expression`` or DNF tuples.
        partition_by: fields that become directories; ``None`` = those of the source that are copied.
        row_group_rows, row_group_bytes, files, petastorm_compatible: see `DatasetWriter`; ``files`` for each stripe.
        overwrite: replaces a dataset that is at the target, when the copy is complete.
        progress: shows a progress bar.
        source_options, target_options: arguments for fsspec.
        stripe_bytes: about how many uncompressed bytes are copied before the next point to go on from.

    Raises:
        DatasetError: a dataset is at the target, or another copy was begun there; the file system refused.
        FieldNotFoundError, SchemaError, PipelineError: arguments that do not fit the source.
    """
    pipeline = Pipeline(source, storage_options=source_options)
    pipeline = pipeline if where is None else pipeline.where(where)
    pipeline = pipeline.nulls("drop", *(_as_list(not_null_fields) or [])) if not_null_fields else pipeline
    dataset = pipeline.dataset
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
    rows = _selection(pipeline).rows
    filesystem, root = resolve(target, storage_options=target_options)
    job = CopyJob(
        filesystem,
        root,
        _fingerprint(dataset, pipeline, schema, {**layout, "stripe_bytes": stripe_bytes}),
        overwrite=overwrite,
    )
    stripes = _stripes(dataset, rows, [field.name for field in fields], stripe_bytes)
    resumed = 0
    with tqdm(total=rows.total, desc="copying", unit="row", disable=not progress) as bar:
        for number, units in enumerate(stripes):
            if job.has(number):
                resumed += 1
                bar.update(int(rows.counts[units].sum()))
                continue
            with DatasetWriter(job.place(number), schema, filesystem=filesystem, **layout) as writer:  # type: ignore[arg-type]  # one dict for several types
                for table in _tables(dataset, fields, rows, units):
                    writer.write_stored(to_stored(schema, table))
                    bar.update(table.num_rows)
    stored = arrow_schema(schema, without=keys)
    made = job.complete(len(stripes), schema, stored, petastorm_compatible=petastorm_compatible)
    return CopyReport(rows=rows.total, files=made, schema=schema, resumed_stripes=resumed)


def _as_list(names: str | Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)


def _selection(pipeline: Pipeline) -> Selection:
    return pipeline.plan().selection  # type: ignore[attr-defined]  # a plan of one dataset


def _fingerprint(dataset: StoredDataset, pipeline: Pipeline, schema: Unischema, layout: Mapping[str, Any]) -> str:
    stages = [stage.to_json() for stage in pipeline.stages]
    text = json.dumps([dataset.version, stages, schema.to_json(), dict(layout)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _stripes(dataset: StoredDataset, rows: RowSet, names: Sequence[str], size_bytes: int) -> list[np.ndarray]:
    """The row groups with wanted rows in stretches of about this size; one empty stripe if there are none."""
    units = np.flatnonzero(rows.counts > 0)
    if not len(units):
        return [units]
    sizes = [decoded_bytes(dataset, int(unit), names) for unit in units]
    stripe = np.cumsum([0, *sizes[:-1]]) // max(size_bytes, 1)
    return np.split(units, np.flatnonzero(np.diff(stripe)) + 1)


def _tables(
    dataset: StoredDataset, fields: Sequence[UnischemaField], rows: RowSet, units: np.ndarray
) -> Iterator[pa.Table]:
    fetcher = Fetcher(dataset, fields)
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="parquetry-copy") as pool:
        yield from pool.map(lambda unit: fetcher.stored(unit).take(pa.array(rows.of(unit))), units.tolist())
