"""Lists every contender, its environment, and the workloads it supports.

`CONTENDERS` maps names to contenders. This module imports none of them, so a missing one costs nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = "limit"
_PEERS = ("bench", "bench-dali", "bench-mosaic", "bench-petastorm", "bench-tables", "tf217")
ENVIRONMENTS = (".venv", *(f".venv-{name}" for name in _PEERS))
_IMAGES = ("a", "b", "b-large")
_TABLES = ("d", "d-pack", "d-weigh", "d-wide")
_EVERY_RATE = (*_IMAGES, "c-ndarray", "c-tensor", *_TABLES, "e", "f", "f-shuffled", "g", "j", "k", "k-bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to read the data.

    Attributes:
        name: name on the command line and in JSON.
        title: name in tables.
        module: module under `benchmarks.contenders`.
        variant: which of the module's variants to run.
        environment: the virtual environment it runs in.
        workloads: keys of the workloads it supports.
        ours: whether it is part of parquetry.
    """

    name: str
    title: str
    module: str
    variant: str = ""
    environment: str = ".venv"
    workloads: tuple[str, ...]
    ours: bool = False

    @property
    def python(self) -> Path:
        """Returns the Python interpreter: the current one, or that of another environment."""
        if self.environment == ENVIRONMENTS[0]:
            return Path(sys.executable)
        return ROOT / self.environment / "bin" / "python"


def _ours(name: str, title: str, module: str, variant: str, more: tuple[str, ...] = ("h",)) -> Contender:
    workloads = (*_EVERY_RATE, *more)
    return Contender(name=name, title=title, module=module, variant=variant, workloads=workloads, ours=True)


_ALL = [
    Contender(name=LIMIT, title="the machine's limit", module="limit", workloads=(*_EVERY_RATE, "h", "i")),
    _ours("threads", "Pipeline, threads", "ours_numpy", "threads", ("h", "i")),
    _ours("sidecar", "Pipeline, sidecar", "ours_numpy", "sidecar"),
    _ours("tf-eager", "ParquetDataset, eager", "ours_tf", "eager"),
    Contender(
        name="tf-graph",
        title="ParquetDataset, graph",
        module="ours_tf",
        variant="graph",
        workloads=tuple(key for key in _EVERY_RATE if key != "g"),  # a pass is shorter than one graph call
        ours=True,
    ),
    Contender(
        name="tf-graph-64",
        title="ParquetDataset, graph, 64 batches a call",
        module="ours_tf",
        variant="graph-64",
        workloads=("d", "d-pack", "d-weigh", "d-wide", "e", "k", "k-bucket"),  # small batches
        ours=True,
    ),
    _ours("pipe", "ParquetPipe", "ours_torch", "pipe"),
    _ours("pipe-loader", "ParquetPipe, loader workers", "ours_torch", "loader", ()),
    _ours("node", "ParquetNode", "ours_torch", "node"),
    Contender(
        name="tfrecord",
        title="TFRecord, eager",
        module="tfrecord",
        variant="eager",
        workloads=("a", "b", "b-large", "c-ndarray", "d", "d-pack", "d-wide", "e", "f", "g", "h"),
    ),
    Contender(
        name="tfrecord-graph",
        title="TFRecord, graph",
        module="tfrecord",
        variant="graph",
        workloads=("a", "d", "d-pack", "d-wide", "e"),
    ),
    Contender(
        name="torch-files",
        title="torch DataLoader on files",
        module="torch_files",
        environment=".venv-bench",
        workloads=("a", "b", "b-large", "c-ndarray", "f", "h"),
    ),
    Contender(
        name="torch-parquet",
        title="hand-written IterableDataset on Parquet",
        module="torch_parquet",
        environment=".venv-bench",
        workloads=("a", "b", "b-large", "c-ndarray", "c-tensor", "d", "d-pack", "d-wide", "e", "g", "h"),
    ),
    Contender(
        name="petastorm-reader",
        title="Petastorm, reader threads",
        module="petastorm_peer",
        variant="reader",
        environment=".venv-bench-petastorm",
        workloads=("a", "c-ndarray", "d", "f", "g", "h"),
    ),
    Contender(
        name="petastorm-torch",
        title="Petastorm, torch loader",
        module="petastorm_peer",
        variant="torch",
        environment=".venv-bench-petastorm",
        workloads=("a", "b", "c-ndarray", "d", "g"),
    ),
    Contender(
        name="petastorm-tf",
        title="Petastorm, tf.data",
        module="petastorm_peer",
        variant="tf",
        environment=".venv-bench-petastorm",
        workloads=("a", "c-ndarray", "d", "g"),
    ),
    Contender(
        name="petastorm-tf-rebatch",
        title="Petastorm, tf.data, rebatch",
        module="petastorm_peer",
        variant="tf-rebatch",
        environment=".venv-bench-petastorm",
        workloads=("d",),
    ),
    Contender(
        name="huggingface",
        title="Hugging Face, streaming",
        module="huggingface",
        environment=".venv-bench",
        workloads=("a", "b", "b-large", "c-ndarray", "c-tensor", "d", "d-wide", "e", "g", "h", "k"),
    ),
    Contender(
        name="webdataset",
        title="WebDataset",
        module="webdataset_peer",
        environment=".venv-bench",
        workloads=("a", "b", "b-large", "c-ndarray", "g", "h", "j"),
    ),
    Contender(
        name="litdata-parquet",
        title="LitData, Parquet",
        module="litdata_peer",
        variant="parquet",
        environment=".venv-bench",
        workloads=("a", "d", "e"),
    ),
    Contender(
        name="litdata",
        title="LitData, optimized",
        module="litdata_peer",
        variant="optimized",
        environment=".venv-bench",
        workloads=("a", "b", "c-ndarray", "d-pack", "h"),
    ),
    Contender(
        name="litdata-tokens",
        title="LitData, TokensLoader",
        module="litdata_peer",
        variant="tokens",
        environment=".venv-bench",
        workloads=("k",),
    ),
    Contender(
        name="mosaic",
        title="Mosaic Streaming",
        module="mosaic_peer",
        environment=".venv-bench-mosaic",
        workloads=("a", "b", "c-ndarray", "d-pack", "e", "h"),
    ),
    Contender(
        name="grain",
        title="Grain",
        module="grain_peer",
        environment=".venv-bench",
        workloads=("a", "b", "b-large", "c-ndarray", "h", "k"),
    ),
    Contender(
        name="spdl",
        title="SPDL",
        module="spdl_peer",
        environment=".venv-bench",
        workloads=("a", "b", "b-large", "c-ndarray", "d", "d-wide", "h"),
    ),
    Contender(
        name="dali",
        title="NVIDIA DALI, processor",
        module="dali_peer",
        environment=".venv-bench-dali",
        workloads=("a", "b", "b-large"),
    ),
    Contender(
        name="ray",
        title="Ray Data",
        module="ray_peer",
        environment=".venv-bench-tables",
        workloads=("a", "d", "d-wide", "e"),
    ),
    Contender(
        name="daft",
        title="Daft",
        module="daft_peer",
        environment=".venv-bench-tables",
        workloads=("a", "d", "d-wide", "e"),
    ),
    Contender(
        name="lance",
        title="Lance, batches in random order",
        module="lance_peer",
        variant="batches",
        environment=".venv-bench-tables",
        workloads=("a", "d", "d-wide", "e"),
    ),
    Contender(
        name="lance-take",
        title="Lance, rows in random order",
        module="lance_peer",
        variant="take",
        environment=".venv-bench-tables",
        workloads=("a", "d", "e"),
    ),
    Contender(
        name="tfio",
        title="tensorflow-io, from_parquet",
        module="tfio_peer",
        environment=".venv-tf217",
        workloads=("d",),
    ),
]
CONTENDERS = {contender.name: contender for contender in _ALL}
