"""`DatasetPart`: the row groups of a dataset that go to one executor.

It takes the driver's `StoredDataset` and row-group numbers, and is a smaller `StoredDataset` that
can be pickled, so the executor does not list or plan again. Its files and row groups are numbered
from 0. The driver handles rows that a table has deleted: it sends the executor the rows to read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...dataset.dataset import StoredDataset
from ...dataset.row_groups import RowGroups
from ...storage.files import FileListing


class DatasetPart(StoredDataset):
    """The part of ``dataset`` with the given ``row_groups`` (ascending)."""

    def __init__(self, dataset: StoredDataset, row_groups: np.ndarray) -> None:
        groups = dataset.row_groups
        files, file = np.unique(groups.file[row_groups], return_inverse=True)
        self._listing = FileListing(
            filesystem=dataset.filesystem,
            roots=dataset.roots,
            files=tuple(dataset.files[number] for number in files.tolist()),
            metadata_files=(),
        )
        self._located = {}
        self.verify = dataset.verify
        self.max_value_bytes = dataset.max_value_bytes
        self.table = dataset.table
        if self.table is not None:
            self.table = replace(self.table, files=tuple(self.table.files[number] for number in files.tolist()))
        partitions = {name: values.take(pa.array(files)) for name, values in dataset.partitions.items()}
        self.__dict__.update(
            index=None,
            deleted={},
            row_groups=RowGroups(
                file=file.astype(np.int64), group=groups.group[row_groups], rows=groups.rows[row_groups]
            ),
            _described=(dataset.schema, {}, partitions),
            types=dataset.types,
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "footers"}
