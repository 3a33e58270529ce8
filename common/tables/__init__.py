"""What a pipeline over a table of another library tells beside its rows; `layout.tables` reads the tables."""

from __future__ import annotations

from ..pipeline import Pipeline

__all__ = ["class_names"]


def class_names(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """For each integer field that stands for classes, their names: ``names[row["label"]]``.

    Known for what `Pipeline.from_huggingface_parquet` made; empty for other pipelines.
    """
    return {} if pipeline.table is None else dict(pipeline.table.labels)
