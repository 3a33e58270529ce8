"""`stats` describes the values of a dataset, and `keep` and `kept` store the result beside it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import pyarrow.fs as pafs

from ...base.errors import DatasetError
from ...pipeline.pipeline import Pipeline
from ...pipeline.statistics import Statistics
from ...storage.whole_files import whole_file
from .inspecting import Source, pipeline_of
from .values import to_json

KEPT_NAME = "_statistics.json"
KEPT_SAMPLE_NAME = "_statistics_of_sample.json"
_VERSION = 1


def stats(
    source: Source,
    *,
    rows: int | None = None,
    seed: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Statistics:
    """Computes statistics of every field in the output of a URL or a pipeline; see `Pipeline.describe`.

    >>> stats("data/train").field("image").channels  # doctest: +SKIP
    ((123.7, 58.4), (116.3, 57.1), (103.5, 57.4))
    """
    return pipeline_of(source, storage_options).describe(rows, seed)


def keep(source: Source, found: Statistics, *, storage_options: Mapping[str, Any] | None = None) -> str:
    """Writes statistics beside a dataset, replacing older ones. Returns the path.

    Statistics of all rows go to ``_statistics.json``, and those of a sample to ``_statistics_of_sample.json``.

    Raises:
        DatasetError: the dataset is not one directory, or the file cannot be written.
    """
    pipeline = pipeline_of(source, storage_options)
    filesystem, path = _place(pipeline, KEPT_NAME if found.exact else KEPT_SAMPLE_NAME)
    value = {"version": _VERSION, "of": _name(pipeline), "chain": list(map(str, pipeline.stages)), **to_json(found)}
    try:
        with whole_file(path, filesystem) as hidden, filesystem.open_output_stream(hidden) as stream:
            stream.write(json.dumps(value, indent=1).encode())
    except OSError as error:
        raise DatasetError(f"statistics {path}: cannot be written: {error}") from error
    return path


def kept(source: Source, *, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Returns the statistics of all rows that `keep` wrote for this pipeline over these files, as JSON.

    Returns ``None`` if there are none.

    Raises:
        DatasetError: the dataset cannot be reached.
    """
    pipeline = pipeline_of(source, storage_options)
    try:
        filesystem, path = _place(pipeline, KEPT_NAME)
        with filesystem.open_input_stream(path) as stream:
            value = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    fits = isinstance(value, dict) and value.get("version") == _VERSION and value.get("of") == _name(pipeline)
    return value if fits and value.get("exact") else None


def _place(pipeline: Pipeline, name: str) -> tuple[pafs.FileSystem, str]:
    dataset = pipeline.dataset
    if dataset.table is not None:
        raise DatasetError(f"statistics of {', '.join(pipeline.urls)}: expected a directory of files, got a table.")
    return dataset.filesystem, posixpath.join(dataset.directory("statistics"), name)


def _name(pipeline: Pipeline) -> str:
    """Returns a hash that identifies the files and stages of the statistics."""
    text = json.dumps([pipeline.dataset.version, [stage.to_json() for stage in pipeline.stages]], sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()
