"""Functional forms: ``.read_parquet(...)`` makes a `ParquetPipe` of any DataPipe of URLs, `mix` makes one of several.

``IterableWrapper(urls).read_parquet(["image", "label"]).shuffle().batch(64)``; importing `parquetry.torch_plugin` is
enough.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.data import IterDataPipe

from parquetry.common import UnischemaField
from parquetry.common import mix as mix_pipelines
from parquetry.common.errors import PipelineError
from parquetry.common.order.mixing import Stop

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


def mix(
    pipes: Sequence[Any], weights: Sequence[float] | None = None, seed: int | None = None, stop: Stop = "first"
) -> ParquetPipe:
    """Rows of several pipes in one deterministic, weighted order.

    Args:
        pipes: unbatched pipes, nodes or pipelines whose rows have equal fields.
        weights: how often each is drawn, relative to the others; ``None`` = equally.
        seed: of the draws; ``None`` draws one that workers, resumed runs, and the ranks of a process group share;
            shuffles of the pipes that were given no seed follow it.
        stop: ``"first"`` ends where a drawn pipe has no more rows, ``"all"`` when every one is used up.

    Raises:
        PipelineError: batched pipes, weights that do not fit.
    """
    return ParquetPipe.from_pipeline(mix_pipelines(pipes, weights, seed, stop))


IterDataPipe.register_function("read_parquet", read_parquet)
