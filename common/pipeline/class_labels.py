"""Information about other libraries' tables besides their rows. `tables` reads the tables themselves."""

from __future__ import annotations

from typing import Any

__all__ = ["class_names"]


def class_names(pipeline: object) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each integer field that holds class numbers: ``names[row["label"]]``.

    Args:
        pipeline: a pipeline, or a dataset, pipe or node that has one.

    `from_huggingface_parquet`, `from_image_folder`, and datasets that `convert` or `copy` made from them have class
    names. For others, the result is empty.
    """
    made: Any = getattr(pipeline, "pipeline", pipeline)
    return dict(made.dataset.labels) if made.source.single else {}
