"""Chooses the Arrow stream reader for the installed TensorFlow, or explains why there is none.

tensorflow-io 0.37.1, its last release, is compiled for TensorFlow 2.16. You can import it with
2.17, but the tf.data classes it derives from have a different layout there, and the process
crashes when any of its datasets creates its first iterator. So with 2.17, parquetry reads the same
stream in Python, through pyarrow. Later TensorFlow versions do not load tensorflow-io at all.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import numpy as np
import pyarrow as pa
import tensorflow as tf

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError

from .build import load_ops

Reader = Literal["tensorflow-io", "pyarrow"]
Transport = Literal["native", "arrow"]
_TENSORFLOW_IO = "0.37.1"
_NEWEST_PYARROW = 20


def check_transport(transport: str, pipeline: Pipeline) -> None:
    """Checks that this environment and this pipeline support a transport.

    Raises:
        PipelineError: ``transport`` is unknown, no reader fits (see `arrow_reader`), the address is
            shared, or an address is combined with the native op, which reads files.
        RuntimeError: the native op is not compiled and cannot be compiled here.
    """
    if transport not in ("native", "arrow"):
        raise PipelineError(f"ParquetDataset: expected transport='native' or 'arrow', got {transport!r}.")
    if transport == "arrow":
        arrow_reader()
        if pipeline.address is not None and pipeline.address.shared:
            raise PipelineError(
                "ParquetDataset: expected an address that is not shared, got shared=True. Only "
                "Pipeline and the PyTorch datasets can read shared epochs. "
                "Use shard(num_shards, index)."
            )
        return
    if pipeline.address is not None:
        raise PipelineError(
            f"ParquetDataset: expected transport='arrow' with address={pipeline.address.url!r}, "
            "got the native op, which reads files directly. "
            "Pass transport='arrow', or a URL instead of an address."
        )
    load_ops()


def arrow_reader() -> Reader:
    """Returns the reader for this environment.

    Raises:
        PipelineError: the installed versions do not work together. The message lists versions that
            do, and says that the native op needs none of them.
    """
    return choose_reader(
        tensorflow=tf.__version__,
        tensorflow_io=_installed("tensorflow-io"),
        numpy=np.__version__,
        pyarrow=pa.__version__,
    )


def choose_reader(*, tensorflow: str, tensorflow_io: str | None, numpy: str, pyarrow: str) -> Reader:
    """Returns the reader for these versions.

    Pass ``tensorflow_io=None`` if it is not installed.
    """
    fits = tensorflow.startswith(("2.16.", "2.17.")) and numpy.startswith("1.")
    if not fits or int(pyarrow.split(".")[0]) > _NEWEST_PYARROW or tensorflow_io != _TENSORFLOW_IO:
        have = f"tensorflow {tensorflow}, numpy {numpy}, pyarrow {pyarrow}, tensorflow-io {tensorflow_io or 'missing'}"
        raise PipelineError(
            "transport='arrow': expected TensorFlow 2.16 or 2.17 with numpy below 2, pyarrow 18 to "
            f"{_NEWEST_PYARROW} and tensorflow-io {_TENSORFLOW_IO} "
            f"(pip install 'parquetry[tensorflow-io]'), got {have}. Omit transport=: "
            "the native op works with TensorFlow 2.16 and newer and needs none of this."
        )
    return "tensorflow-io" if tensorflow.startswith("2.16.") else "pyarrow"


def _installed(package: str) -> str | None:
    try:
        return version(package) if find_spec("tensorflow_io") is not None else None
    except PackageNotFoundError:
        return None
