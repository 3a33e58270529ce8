"""Ray Data: a cluster's workers compute features from filtered rows and write them to Parquet."""

import tempfile
from typing import Any

import pyarrow.compute as pc
import ray
from tiles import write_tiles

from parquetry import ParquetrySource, Pipeline


def add_brightness(batch: dict[str, Any]) -> dict[str, Any]:
    """Replaces the images of a batch with their means."""
    return {"label": batch["label"], "brightness": batch["image"].mean(axis=(1, 2, 3))}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = Pipeline(write_tiles(tempfile.mkdtemp())).where(pc.field("label") == 1)
    found = ray.data.read_datasource(ParquetrySource(rows)).map_batches(add_brightness)
    folder = tempfile.mkdtemp()
    found.write_parquet(folder)
    written = Pipeline(folder).batch(1000)
    print(f"{len(rows)} rows in, {sum(len(batch['brightness']) for batch in written)} out")
    ray.shutdown()
