"""`RowGroupLoader`: loads one job, which is some rows or windows of a row group.

The result of a `LoadJob` is a list of tuples (rows), a list of tuples of tuples (windows), or a dict of arrays (for a
batched reader). The loader can be sent to worker processes and holds no open files. A job has the same result wherever
and whenever it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import ParquetryError
from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...dataset.row_groups import describe_row_group
from ...engine.read.disk_cache import DiskCache
from ...engine.run.row_group_loop import RowGroupJob
from ...parquet.nested import take_rows
from ...plan.order.permutations import permutation
from ...plan.selection.statistics import decoded_bytes
from ...schema.field import UnischemaField
from .dataset import PetastormDataset, with_schema_fields
from .filtering import keep_rows, predicate_fields
from .frames import nulls_as_nan
from .ngram import NGram
from .predicates import PredicateBase
from .transform import TransformSpec
from .transforming import transform_row, transform_table
from .unischema import Unischema
from .values import row_tuples, stored_rows

_ROW_ORDER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob(RowGroupJob):
    """The rows or windows to load for one result.

    Attributes:
        epoch: number of the epoch, from 0.
        part_number: number of the part of the row group.
        rows: the rows to load, ascending; ``None`` if ``windows`` is set.
        windows: int64 ``[windows, T, 2]``, the row group and row of each step.
    """

    epoch: int
    part_number: int
    rows: np.ndarray | None = None
    windows: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class RowGroupLoader:
    """Loads jobs; thread-safe.

    Attributes:
        fields: the stored fields to read.
        schema: schema of the resulting rows.
        predicate: decides which rows to keep; ``None`` if they are already chosen.
        cache: directory and size limit of the local cache.
        seed: seed of the row order within a row group; ``None`` for stored order.
    """

    dataset: PetastormDataset
    fields: tuple[UnischemaField, ...]
    schema: Unischema
    transform: TransformSpec | None
    predicate: PredicateBase | None
    ngram: NGram | None
    cache: tuple[str, int | None] | None
    seed: int | None
    batched: bool

    def load(self, job: LoadJob) -> Any:
        """Loads the rows, windows or columns of a job; an empty list if no rows remain.

        Raises:
            ParquetryError: data cannot be read or decoded; the text names the file and row group.
        """
        try:
            if job.windows is not None:
                return self._windows(self._ordered(job, job.windows))
            assert job.rows is not None
            table = self._chosen(job, job.rows)
            if not table.num_rows:
                return []
            return self._columns(table) if self.batched else self._rows(table)
        except ParquetryError as error:
            place, text = describe_row_group(self.dataset, job.row_group), with_schema_fields(str(error))
            if place in text and text == str(error):
                raise
            raise type(error)(text if place in text else f"{place}: {text}") from error

    def mask(self, predicate: PredicateBase, row_group: int, rows: np.ndarray) -> np.ndarray:
        """Returns which of the given rows a predicate keeps."""
        fields = predicate_fields(predicate, self.dataset.schema)
        return keep_rows(predicate, fields, self._stored(fields, row_group, rows), batched=self.batched)

    def result_bytes(self, job: LoadJob) -> int:
        """Estimates the size of a job's result in bytes."""
        rows = len(job.rows) if job.rows is not None else int(np.prod(np.asarray(job.windows).shape[:2]))
        total = max(int(self.dataset.row_groups.rows[job.row_group]), 1)
        names = [field.name for field in self.fields]
        stored = decoded_bytes(self.dataset, job.row_group, names) * rows // total
        return stored if self.batched else max(stored, self._dense_row_bytes * rows)

    @cached_property
    def _dense_row_bytes(self) -> int:
        return sum(
            math.prod(axis or 0 for axis in field.shape) * np.dtype(field.dtype).itemsize
            for field in self.fields
            if field.storage.coded and isinstance(field.dtype, np.dtype)
        )

    @cached_property
    def _disk_cache(self) -> DiskCache | None:
        return None if self.cache is None else DiskCache(*self.cache)

    def _stored(self, fields: Sequence[UnischemaField], row_group: int, rows: np.ndarray) -> pa.Table:
        return stored_rows(self.dataset, fields, row_group, rows, self._disk_cache)

    def _chosen(self, job: LoadJob, rows: np.ndarray) -> pa.Table:
        """Reads the rows that the predicate keeps, in the order of the job; reads the other columns only if there are
        such rows.
        """
        if self.predicate is None:
            return self._stored(self.fields, job.row_group, self._ordered(job, rows))
        asked = predicate_fields(self.predicate, self.dataset.schema)
        known = self._stored(asked, job.row_group, rows)
        kept = self._ordered(job, np.flatnonzero(keep_rows(self.predicate, asked, known, batched=self.batched)))
        columns = dict(zip(known.column_names, take_rows(known, pa.array(kept)).columns, strict=True))
        others = [field for field in self.fields if field.name not in columns]
        if others and len(kept):
            rest = self._stored(others, job.row_group, rows[kept])
            columns.update(zip(rest.column_names, rest.columns, strict=True))
        return pa.table({field.name: columns[field.name] for field in self.fields if field.name in columns})

    def _ordered(self, job: LoadJob, items: np.ndarray) -> np.ndarray:
        """Returns the rows or windows of a job in the order in which they are returned."""
        if self.seed is None or len(items) < 2:
            return items
        place = job.row_group, job.part_number
        ordered: np.ndarray = items[permutation(len(items), self.seed, job.epoch, _ROW_ORDER, *place)]
        return ordered

    def _rows(self, table: pa.Table) -> list[tuple[Any, ...]]:
        """Returns the rows after the transform, with the values in the order of the schema."""
        if self.transform is None or self.transform.func is None:
            return list(row_tuples([self.dataset.schema[name] for name in self.schema.fields], table))
        names = [field.name for field in self.fields]
        return [
            transform_row(self.transform, self.schema, dict(zip(names, row, strict=True)))
            for row in row_tuples(self.fields, table)
        ]

    def _columns(self, table: pa.Table) -> dict[str, np.ndarray] | list[Any]:
        columns = transform_table(self.transform, self.schema, table)
        for name in columns.keys() & self.dataset.partitions.keys():
            values = columns[name]
            if isinstance(values, np.ma.MaskedArray):  # a null partition, which has no other values
                columns[name] = nulls_as_nan(values)
        return columns if all(len(column) for column in columns.values()) else []

    def _windows(self, windows: np.ndarray) -> list[tuple[Any, ...]]:
        assert self.ngram is not None
        steps, inverse = np.unique(windows.reshape(-1, 2), axis=0, return_inverse=True)
        rows: list[tuple[Any, ...]] = []
        for row_group in np.unique(steps[:, 0]).tolist():
            rows += self._rows(self._stored(self.fields, row_group, steps[steps[:, 0] == row_group, 1]))
        names = list(self.schema.fields)
        parts = [self.ngram.get_schema_at_timestep(self.schema, offset).fields for offset in self.ngram.offsets]
        columns = [[names.index(name) for name in part] for part in parts]
        places: list[list[int]] = inverse.reshape(windows.shape[:2]).tolist()  # type: ignore[assignment]  # two axes
        return [
            tuple(tuple([rows[place][n] for n in chosen]) for place, chosen in zip(steps_of, columns, strict=True))
            for steps_of in places
        ]
