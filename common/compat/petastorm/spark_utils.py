"""`dataset_as_rdd`: a dataset as an RDD of named tuples, read and decoded on Spark executors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..spark.reading import ReadPlan, ReadTask
from ..spark.session import context_of
from .etl.dataset_metadata import get_schema, open_dataset
from .unischema import Unischema
from .values import row_tuples, stored_rows


def dataset_as_rdd(
    dataset_url: str,
    spark_session: object,
    schema_fields: Sequence[Any] | None = None,
    hdfs_driver: str | None = None,
    *,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Returns an RDD of the rows that `make_reader` returns, in stored order.

    Args:
        schema_fields: regexes or fields; ``None`` for all fields.
        hdfs_driver: unused.

    Raises:
        PetastormMetadataError: the dataset declares no schema.
    """
    context = context_of(spark_session, "dataset_as_rdd")
    dataset = open_dataset(dataset_url, storage_options=storage_options, filesystem=filesystem)
    schema = get_schema(dataset)
    view = schema if schema_fields is None else schema.create_schema_view(schema_fields)
    plan = ReadPlan(dataset, [dataset.schema[name] for name in view.fields], context.defaultParallelism)
    return plan.rdd(context, partial(_rows, view))


def _rows(view: Unischema, payload: bytes) -> Iterator[Any]:
    task: ReadTask = pickle.loads(payload)
    fields = [task.part.schema[name] for name in view.fields]
    make = view._get_namedtuple()
    for row_group in range(len(task.part.row_groups)):
        table = stored_rows(task.part, fields, row_group, task.rows.of(row_group))
        yield from (make(*values) for values in row_tuples(fields, table))
