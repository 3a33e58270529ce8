"""Prefetches to the second of two virtual processors for test_devices.py, and prints what it saw as JSON.

Run as ``python device_program.py URL``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf

from parquetry.tf_plugin import ParquetDataset

STEPS = 3


def place(tensor: Any) -> str:
    """Returns the device of a tensor, without its job."""
    return str(tf.DeviceSpec.from_string(tensor.device).replace(job=None, replica=None, task=None).to_string())


def main(url: str) -> None:
    """Prints the batches of two epochs, their devices, a resumed epoch, and an error in the middle of one."""
    processors = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processors[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    rows = ParquetDataset(url, ["id", "name"], workers=1).shuffle(10, seed=7).batch(6)
    prefetched = rows.prefetch_to_device(tf.config.list_logical_devices()[1], 2)
    seen: dict[str, Any] = {
        "expected": [batch["id"].numpy().tolist() for batch in ParquetDataset.from_pipeline(rows.pipeline)],
        "epochs": [[batch["id"].numpy().tolist() for batch in prefetched] for _ in range(2)],
    }
    batch = next(iter(prefetched))
    seen["places"] = sorted({place(value) for value in batch.values()})
    seen["names"] = [value.decode() for value in batch["name"].numpy()]
    whole = ParquetDataset.from_pipeline(rows.pipeline)
    iterator = iter(whole.prefetch_to_device("CPU:1"))
    taken = [next(iterator)["id"].numpy().tolist() for _ in range(STEPS)]
    state = whole.state_dict(STEPS)
    resumed = ParquetDataset.from_pipeline(rows.pipeline).load_state_dict(state)
    seen["resumed"] = taken + [batch["id"].numpy().tolist() for batch in resumed.prefetch_to_device("CPU:1")]
    failing = ParquetDataset(url, ["id"], workers=1).transform(fail_at_20).prefetch_to_device("/cpu:1")
    found: list[Any] = []
    try:
        found.extend(row["id"].numpy().item() for row in failing)
    except tf.errors.OpError as error:
        seen["error"] = error.message
    seen["before"] = found
    print(json.dumps(seen))


def fail_at_20(row: dict[str, Any]) -> dict[str, Any]:
    """Fails in the middle of the dataset."""
    if row["id"] == 20:
        raise ValueError("row 20 fails")
    return row


if __name__ == "__main__":
    main(*sys.argv[1:])
