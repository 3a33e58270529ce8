"""Functional forms: ``.read_parquet(...)`` turns a DataPipe of URLs into a `ParquetPipe`; `mix` combines datasets.

``IterableWrapper(urls).read_parquet(["image", "label"]).shuffle().batch(64)`` needs only an import of
`parquetry.torch_plugin`. DataPipes are imported when a pipe is made, so all else works with a torch that lacks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from parquetry.common import UnischemaField
from parquetry.common import mix as mix_pipelines
from parquetry.common.base.errors import PipelineError
from parquetry.common.plan.order.mixing import Stop, Weights

from .iterable import ParquetIterable
from .iterable_carrier import check_not_sharded, part_of_sources
from .map import ParquetMap

if TYPE_CHECKING:
    from .pipe import ParquetPipe


def read_parquet(
    source: Iterable[str | os.PathLike[str]], fields: Iterable[str | UnischemaField] | None = None, **options: Any
) -> ParquetPipe:
    """Returns one `ParquetPipe` over all URLs that ``source`` yields.

    Args:
        source: a DataPipe (``IterableWrapper``, ``FileLister``) or any iterable of URLs or paths; read once, here.
        fields: names or regexes of the fields to read; ``None`` = all.
        options: as for `ParquetPipe`.

    Raises:
        PipelineError: an element is not a URL or path.
    """
    urls = [source] if isinstance(source, str | os.PathLike) else list(source)
    for url in urls:
        if not isinstance(url, str | os.PathLike):
            raise PipelineError(
                f"read_parquet: expected URLs or paths, got {type(url).__name__}. Do not open the files."
            )
    from . import ParquetPipe

    return ParquetPipe(urls, fields, **options)


def mix(pipes: Sequence[Any], weights: Weights | None = None, seed: int | None = None, stop: Stop = "first") -> Any:
    """Mixes rows of several pipes in one deterministic, weighted order.

    Args:
        pipes: unbatched datasets, pipes, nodes or pipelines whose rows have equal fields.
        weights: how often each is drawn, relative to the others; ``None`` = equally. In a schedule ``[(0, [1, 1]),
            (10_000, [3, 1])]`` each entry gives the row of the mix from which its weights apply.
        seed: for the draws; ``None`` draws a seed that workers, resumed runs, and the ranks of a process group share.
            Shuffles of the pipes without a seed follow it.
        stop: ``"first"`` ends when a drawn pipe has no more rows, ``"all"`` when every pipe is used up.

    Returns:
        The type of the first pipe if that is a `ParquetIterable` or `ParquetMap`; a `ParquetPipe` otherwise.

    Raises:
        PipelineError: batched pipes, weights that do not fit, or pipes with different ``mesh=``.
    """
    mixed, part = mix_pipelines(pipes, weights, seed, stop), part_of_sources(pipes)
    if isinstance(pipes[0], ParquetMap):
        return ParquetMap.from_pipeline(mixed)
    if isinstance(pipes[0], ParquetIterable):
        result = type(pipes[0]).from_pipeline(mixed)
    else:
        from . import ParquetPipe

        result = ParquetPipe.from_pipeline(mixed)
    if part is not None:
        check_not_sharded(mixed)
        result._deal_along(part)
    return result


with suppress(ImportError):  # a torch without DataPipes
    from torch.utils.data import IterDataPipe

    if "read_parquet" not in IterDataPipe.functions:
        IterDataPipe.register_function("read_parquet", read_parquet)
