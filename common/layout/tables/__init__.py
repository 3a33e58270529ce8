"""Tables and data frames of other libraries as pipelines; see `Pipeline.from_delta` and its siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...pipeline.pipeline import Pipeline

__all__ = ["class_names"]


def class_names(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """For each integer field that stands for classes, their names: ``names[row["label"]]``.

    Known for what `Pipeline.from_huggingface_parquet` made; empty for other pipelines.
    """
    return {} if pipeline.table is None else dict(pipeline.table.labels)
