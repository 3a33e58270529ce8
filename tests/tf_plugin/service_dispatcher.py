"""A tf.data service dispatcher: ``service_dispatcher.py DIRECTORY WORKER...``. Prints its address when it is ready."""

from __future__ import annotations

import sys

import tensorflow as tf

from parquetry.tf_plugin import load_ops

service = tf.data.experimental.service
load_ops()  # it runs the op itself, to deal rows under DYNAMIC
config = service.DispatcherConfig(work_dir=sys.argv[1], fault_tolerant_mode=True, worker_addresses=sys.argv[2:])
server = service.DispatchServer(config)
print(server.target, flush=True)
server.join()
