"""Which reader of Arrow streams this TensorFlow has, or why it has none.

tensorflow-io 0.37.1, its last release, is compiled for TensorFlow 2.16. With 2.17 it can be imported, but the classes
of tf.data that it derives from have another layout there, so that the process crashes when the first iterator of any
of its datasets is made; there the same stream is read through pyarrow in Python. Later versions do not load it at all.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import numpy as np
import pyarrow as pa
import tensorflow as tf

from parquetry.common import Pipeline
from parquetry.common.errors import PipelineError

from .build import load_ops

Reader = Literal["tensorflow-io", "pyarrow"]
Transport = Literal["native", "arrow"]
_TENSORFLOW_IO = "0.37.1"
_NEWEST_PYARROW = 20


def check_transport(transport: str, pipeline: Pipeline) -> None:
    """Refuses a transport that this environment, or this pipeline, cannot have.

    Raises:
        PipelineError: see `arrow_reader`; an address with the native op, which reads files.
        RuntimeError: the native op is not compiled, and cannot be.
    """
    if transport not in ("native", "arrow"):
        raise PipelineError(f"ParquetDataset: expected transport='native' or 'arrow', got {transport!r}.")
    if transport == "arrow":
        arrow_reader()
        if pipeline.address is not None and pipeline.address.shared:
            raise PipelineError(
                "ParquetDataset: expected an address whose epochs are this dataset's own, got shared=True, which only "
                "Pipeline, ParquetPipe and ParquetNode can read. Use shard(num_shards, index)."
            )
        return
    if pipeline.address is not None:
        raise PipelineError(
            f"ParquetDataset: expected transport='arrow' with address={pipeline.address.url!r}, got the native op, "
            "which reads files by itself. Give transport='arrow', or a URL."
        )
    load_ops()


def arrow_reader() -> Reader:
    """The reader for this environment.

    Raises:
        PipelineError: versions that do not work together; says which do, and that the native op needs none of them.
    """
    return choose_reader(
        tensorflow=tf.__version__,
        tensorflow_io=_installed("tensorflow-io"),
        numpy=np.__version__,
        pyarrow=pa.__version__,
    )


def choose_reader(*, tensorflow: str, tensorflow_io: str | None, numpy: str, pyarrow: str) -> Reader:
    """The reader for these versions; ``tensorflow_io`` is ``None`` where it is not installed."""
    fits = tensorflow.startswith(("2.16.", "2.17.")) and numpy.startswith("1.")
    if not fits or int(pyarrow.split(".")[0]) > _NEWEST_PYARROW or tensorflow_io != _TENSORFLOW_IO:
        have = f"tensorflow {tensorflow}, numpy {numpy}, pyarrow {pyarrow}, tensorflow-io {tensorflow_io or 'missing'}"
        raise PipelineError(
            "transport='arrow': expected TensorFlow 2.16 or 2.17 with numpy below 2, pyarrow 18 to "
            f"{_NEWEST_PYARROW} and tensorflow-io {_TENSORFLOW_IO} (pip install 'parquetry[tensorflow-io]'), got "
            f"{have}. Leave transport= out: the native op works with TensorFlow 2.16 and newer and needs none of this."
        )
    return "tensorflow-io" if tensorflow.startswith("2.16.") else "pyarrow"


def _installed(package: str) -> str | None:
    try:
        return version(package) if find_spec("tensorflow_io") is not None else None
    except PackageNotFoundError:
        return None
