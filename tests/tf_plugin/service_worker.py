"""A tf.data service worker: ``service_worker.py DISPATCHER PORT``. Prints a line when it is ready."""

from __future__ import annotations

import sys

import tensorflow as tf

from parquetry.tf_plugin import load_ops

service = tf.data.experimental.service
load_ops()
config = service.WorkerConfig(sys.argv[1], port=int(sys.argv[2]), heartbeat_interval_ms=100)
server = service.WorkerServer(config)
print("serving", flush=True)
server.join()
