"""Filters by expression, by tuples and by function, and shards that take the same number of steps on every rank."""

import tempfile

import numpy as np
import pyarrow.compute as pc

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset

schema = Unischema(
    "trips", [UnischemaField("id", np.int64), UnischemaField("city", str), UnischemaField("km", np.float64)]
)
rows = [{"id": n, "city": ("Oslo", "Bern", "Rome")[n // 40], "km": (n * 7 % 31) / 3} for n in range(120)]
url = tempfile.mkdtemp()
write_dataset(url, schema, rows, row_group_rows=20, partition_by=("city",))
trips = Pipeline(url)

print("an expression, DNF tuples, and a function keep", end=" ")
by_expression = trips.where((pc.field("city") == "Rome") & (pc.field("km") > 5))
by_tuples = trips.where([("city", "=", "Rome"), ("km", ">", 5)])
by_function = trips.where(lambda row: row["city"] == "Rome" and row["km"] > 5, fields=["city", "km"])
print([len(pipeline) for pipeline in (by_expression, by_tuples, by_function)], "rows")

print(by_expression.explain())

print("four ranks, filtered and shuffled: the same number of steps, each row once (one is repeated to pad)")
for rank in range(4):
    mine = trips.where(pc.field("km") > 6).shuffle(30, seed=7).shard(4, rank).batch(5)
    print(f"  rank {rank}: {len(mine)} steps, ids {np.concatenate([batch['id'] for batch in mine]).tolist()}")
