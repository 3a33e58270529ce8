"""A dataset that grows: written with a schema, appended to, widened by a field, verified, and read as one."""

import subprocess
import sys

import numpy as np

from parquetry import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset


def rows_of(day, **more):
    return ({"day": day, "scan": np.full((8, 8), n, np.float32), **more} for n in range(100))


fields = [UnischemaField("day", str), UnischemaField("scan", np.float32, (8, 8), NdarrayCodec())]
schema = Unischema("scans", fields)
for day in ("monday", "tuesday"):
    write_dataset("scans", schema, rows_of(day), partition_by="day", mode="append")

wider = Unischema("scans", [*fields, UnischemaField("mood", str, nullable=True)])
write_dataset("scans", wider, rows_of("friday", mood="good"), partition_by="day", mode="append")
subprocess.run([sys.executable, "-m", "parquetry", "verify", "scans"], check=True)

scans = Pipeline("scans")
print(len(scans), "rows,", len(scans.nulls("drop", "mood")), "of them with a mood")
