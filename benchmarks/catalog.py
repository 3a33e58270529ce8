"""Lists every contender, its environment, and the workloads it supports.

`CONTENDERS` maps names to contenders. This module imports none of them, so a missing one costs nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = "limit"
_PEERS = ("bench", "bench-dali", "bench-lerobot", "bench-mosaic", "bench-petastorm", "bench-tables", "oldest")
ENVIRONMENTS = (".venv", *(f".venv-{name}" for name in _PEERS))
_IMAGES = ("a", "b", "b-filter", "b-large")
_TABLES = ("d", "d-pack", "d-weigh", "d-wide")
_EVERY_RATE = (*_IMAGES, "c-ndarray", "c-tensor", *_TABLES, "e", "f", "f-shuffled", "g", "j", "k", "k-bucket")
_LONG_PASSES = tuple(key for key in _EVERY_RATE if key != "g")  # a pass of g is shorter than one graph call
_PETASTORM_TORCH = ("a", "b", "b-filter", "c-ndarray", "d", "g")
_ROBOTS = ("l", "l-long")
_SMALL_BATCHES = (*_TABLES, "e", "k", "k-bucket")


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


def _ours(name: str, title: str, module: str, variant: str, workloads: tuple[str, ...]) -> Contender:
    return Contender(name=name, title=title, module=module, variant=variant, workloads=workloads, ours=True)


def _peer(name: str, title: str, place: str, workloads: str) -> Contender:
    """Returns a contender of others; ``place`` is its environment, module and variant."""
    environment, module, variant = (*place.split(), "")[:3]
    return Contender(
        name=name,
        title=title,
        module=module,
        variant=variant,
        environment=environment,
        workloads=tuple(workloads.split()),
    )


_ALL = [
    Contender(name=LIMIT, title="the machine's limit", module="limit", workloads=(*_EVERY_RATE, *_ROBOTS, "h", "i")),
    _ours("threads", "Pipeline, threads", "ours_numpy", "threads", (*_EVERY_RATE, *_ROBOTS, "h", "i")),
    _ours("sidecar", "Pipeline, sidecar", "ours_numpy", "sidecar", (*_EVERY_RATE, *_ROBOTS, "h")),
    _ours("tf-eager", "ParquetDataset, eager", "ours_tf", "eager", (*_EVERY_RATE, "h")),
    _ours("tf-graph", "ParquetDataset, graph", "ours_tf", "graph", _LONG_PASSES),
    _ours("tf-graph-64", "ParquetDataset, graph, 64 batches a call", "ours_tf", "graph-64", _SMALL_BATCHES),
    _ours("iterable", "ParquetIterable", "ours_torch", "iterable", (*_EVERY_RATE, *_ROBOTS, "h")),
    _ours("iterable-loader", "ParquetIterable, loader workers", "ours_torch", "loader", (*_EVERY_RATE, *_ROBOTS)),
    _ours("shim-torch", "parquetry.petastorm, torch loader", "petastorm_peer", "torch", _PETASTORM_TORCH),
    _ours("node", "ParquetNode", "ours_torch", "node", (*_EVERY_RATE, "h")),
    _peer("tfrecord", "TFRecord, eager", ".venv tfrecord eager", "a b b-large c-ndarray d d-pack d-wide e f g h"),
    _peer("tfrecord-graph", "TFRecord, graph", ".venv tfrecord graph", "a d d-pack d-wide e"),
    _peer("torch-files", "torch DataLoader on files", ".venv-bench torch_files", "a b b-large c-ndarray f h"),
    _peer(
        "torch-parquet",
        "hand-written IterableDataset on Parquet",
        ".venv-bench torch_parquet",
        "a b b-large c-ndarray c-tensor d d-pack d-wide e g h",
    ),
    _peer(
        "petastorm-reader",
        "Petastorm, reader threads",
        ".venv-bench-petastorm petastorm_peer reader",
        "a c-ndarray d f g h",
    ),
    _peer(
        "petastorm-torch",
        "Petastorm, torch loader",
        ".venv-bench-petastorm petastorm_peer torch",
        " ".join(_PETASTORM_TORCH),
    ),
    _peer("petastorm-tf", "Petastorm, tf.data", ".venv-bench-petastorm petastorm_peer tf", "a c-ndarray d g"),
    _peer(
        "petastorm-tf-rebatch", "Petastorm, tf.data, rebatch", ".venv-bench-petastorm petastorm_peer tf-rebatch", "d"
    ),
    _peer(
        "huggingface",
        "Hugging Face, streaming",
        ".venv-bench huggingface",
        "a b b-large c-ndarray c-tensor d d-wide e g h k",
    ),
    _peer("webdataset", "WebDataset", ".venv-bench webdataset_peer", "a b b-large c-ndarray g h j"),
    _peer("litdata-parquet", "LitData, Parquet", ".venv-bench litdata_peer parquet", "a d e"),
    _peer("litdata", "LitData, optimized", ".venv-bench litdata_peer optimized", "a b c-ndarray d-pack h"),
    _peer("litdata-tokens", "LitData, TokensLoader", ".venv-bench litdata_peer tokens", "k"),
    _peer("mosaic", "Mosaic Streaming", ".venv-bench-mosaic mosaic_peer", "a b c-ndarray d-pack e h"),
    _peer("grain", "Grain", ".venv-bench grain_peer", "a b b-large c-ndarray h k"),
    _peer("spdl", "SPDL", ".venv-bench spdl_peer", "a b b-large c-ndarray d d-wide h"),
    _peer("dali", "NVIDIA DALI, processor", ".venv-bench-dali dali_peer", "a b b-large"),
    _peer("lerobot", "LeRobotDataset", ".venv-bench-lerobot lerobot_peer", "l l-long"),
    _peer("ray", "Ray Data", ".venv-bench-tables ray_peer", "a d d-wide e"),
    _peer("daft", "Daft", ".venv-bench-tables daft_peer", "a d d-wide e"),
    _peer("lance", "Lance, batches in random order", ".venv-bench-tables lance_peer batches", "a d d-wide e"),
    _peer("lance-take", "Lance, rows in random order", ".venv-bench-tables lance_peer take", "a d e"),
    _peer("tfio", "tensorflow-io, from_parquet", ".venv-oldest tfio_peer", "d"),
]
CONTENDERS = {contender.name: contender for contender in _ALL}
