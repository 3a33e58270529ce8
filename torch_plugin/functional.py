"""Functional form: any DataPipe of URLs turns into a `ParquetPipe` by ``.read_parquet(...)``.

``IterableWrapper(urls).read_parquet(["image", "label"]).shuffle().batch(64)``; importing `parquetry.torch_plugin` is
enough.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from torch.utils.data import IterDataPipe

from parquetry.common import UnischemaField
from parquetry.common.errors import PipelineError

from .pipe import ParquetPipe


def read_parquet(
    source: Iterable[str | os.PathLike[str]], fields: Iterable[str | UnischemaField] | None = None, **options: Any
) -> ParquetPipe:
    """One `ParquetPipe` over all URLs that ``source`` gives.

    Args:
        source: a DataPipe (``IterableWrapper``, ``FileLister``), or any iterable, of URLs or paths; read once, here.
        fields: names or regexes of the fields wanted; ``None`` = all.
        options: as for `ParquetPipe`.

    Raises:
        PipelineError: an element that is no URL or path.
    """
    urls = [source] if isinstance(source, str | os.PathLike) else list(source)
    for url in urls:
        if not isinstance(url, str | os.PathLike):
            raise PipelineError(
                f"read_parquet: expected URLs or paths, got {type(url).__name__}. Do not open the files."
            )
    return ParquetPipe(urls, fields, **options)


IterDataPipe.register_function("read_parquet", read_parquet)
