"""What a pipeline over a table of another library tells beside its rows; `layout.tables` reads the tables."""

from __future__ import annotations

from typing import Any

from ..pipeline import Pipeline
from ..pipeline.sources import Sources

__all__ = ["class_names"]


def class_names(pipeline: Pipeline | Sources) -> dict[str, tuple[str, ...]]:
    """For each integer field that stands for classes, their names: ``names[row["label"]]``.

    Args:
        pipeline: or a dataset, pipe or node that carries one.

    Known for what `from_huggingface_parquet` and `from_image_folder` made, and for datasets that `convert` and `copy`
    made of them; empty for others.
    """
    made: Any = getattr(pipeline, "pipeline", pipeline)
    return {} if made.mixture is not None or made.address is not None else dict(made.dataset.labels)
