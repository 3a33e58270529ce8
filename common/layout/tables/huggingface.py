"""Parquet folders in the Hugging Face layout: splits by file name, features in the Arrow schema's metadata.

It takes a folder and a split, and returns a `TableSource`. Rows of different splits or configurations are never mixed
unless the caller asks for it. Layout: https://huggingface.co/docs/hub/datasets-file-names-and-splits.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...errors import DatasetError, ParquetryError, SchemaError, missing_package
from ...schema.field import UnischemaField
from ...schema.images import CompressedImageCodec
from ...schema.infer import infer_field
from ...urls import clean_cause
from ..file_versions import opened
from ..files import DataFile, list_files
from ..nested import stored_schema
from ..retries import with_retries
from ..table import Table, TableColumn, TableFile, TableSource, sorted_files

_SHARD = re.compile(r"(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}")
_ALIASES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_ALL = "all"
_METADATA_KEY = b"huggingface"


def open_huggingface(
    path: str | os.PathLike[str],
    split: str | None,
    *,
    config: str | None,
    image_shape: tuple[int | None, ...],
    filesystem: object,
    storage_options: Mapping[str, Any] | None,
) -> TableSource:
    """Opens the files of a split, with the fields that their features describe.

    Raises:
        DatasetError: a folder, split or configuration does not exist, or was not given although there are several.
        SchemaError: images cannot have this ``image_shape``.
    """
    url = _pinned(os.fspath(path), storage_options) if filesystem is None else os.fspath(path)
    what = f"Hugging Face folder '{url}'"
    listing = list_files(
        [url], filesystem=filesystem, storage_options=dict(storage_options) if storage_options else None
    )
    chosen = _of_config(what, _of_split(what, listing.files, split), config)
    schema = _schema_of(chosen[0], listing.filesystem)
    columns, labels = described(schema, image_shape, chosen[0].path)
    made = Table(
        kind="huggingface",
        root=listing.roots[0] if chosen[0].path != listing.roots[0] else posixpath.dirname(chosen[0].path),
        identity="",
        version="",
        columns=columns,
        files=tuple(TableFile(version=file.version) for file in chosen),
        labels=labels,
    )
    return TableSource(url=url, table=sorted_files(made), filesystem=filesystem)


def _pinned(url: str, storage_options: Mapping[str, Any] | None) -> str:
    """Pins a hub URL to the current commit of its revision, so that every process reads the same files."""
    if not url.startswith("hf://"):
        return url
    try:
        from huggingface_hub import HfApi, HfFileSystem
    except ImportError as error:
        raise DatasetError(
            f"Hugging Face folder '{url}': {missing_package(error, 'huggingface_hub', 'huggingface')}"
        ) from clean_cause(error)
    options = dict(storage_options or {})
    try:
        found = HfFileSystem(**options).resolve_path(url)
        api = HfApi(token=options.get("token"), endpoint=options.get("endpoint"))
        commit = api.repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision).sha
    except (OSError, ValueError) as error:
        raise DatasetError(f"Hugging Face folder '{url}': cannot be reached: {error}") from clean_cause(error)
    kind = "" if found.repo_type == "model" else f"{found.repo_type}s/"
    return f"hf://{kind}{found.repo_id}@{commit}/{found.path_in_repo}".rstrip("/")


# --- which files ---


def split_of(relative: str) -> str:
    """The split of a file, by its path below the folder; ``train`` if the path does not say."""
    *folders, name = relative.split("/")
    stem = posixpath.splitext(name)[0]
    shard = _SHARD.fullmatch(stem)
    if shard is not None:
        return _ALIASES.get(shard["split"], shard["split"])
    for part in (stem, *reversed(folders)):
        for word in re.split(r"[^A-Za-z0-9]+", part):
            if word.lower() in _ALIASES:
                return _ALIASES[word.lower()]
    return "train"


def _of_split(what: str, files: Iterable[DataFile], split: str | None) -> list[DataFile]:
    by_split: dict[str, list[DataFile]] = {}
    for file in files:
        by_split.setdefault(split_of(file.relative), []).append(file)
    if split is None and len(by_split) > 1:
        raise DatasetError(f"{what}: expected split= one of {sorted(by_split)} (or 'all'), because there are several.")
    if split is None or split == _ALL:
        return [file for files in by_split.values() for file in files]
    chosen = []
    for name in split.split("+"):
        name = name.strip()
        found = by_split.get(name) or by_split.get(_ALIASES.get(name, name))
        if found is None:
            raise DatasetError(f"{what}: expected split= one of {sorted(by_split)}, got '{name}'.")
        if found[0] in chosen:
            raise DatasetError(f"{what}: expected each split once, got '{name}' twice in split='{split}'.")
        chosen += found
    return chosen


def _of_config(what: str, files: list[DataFile], config: str | None) -> list[DataFile]:
    """The files of one configuration, which is a folder. ``data`` and folders named after splits do not count."""
    by_config: dict[str, list[DataFile]] = {}
    for file in files:
        by_config.setdefault(_config_of(file.relative), []).append(file)
    if config is None and len(by_config) == 1:
        return files
    if config not in by_config:
        raise DatasetError(
            f"{what}: expected config= one of {sorted(by_config)}, got {config!r}. Files of different configurations "
            "may hold different rows."
        )
    return by_config[config]


def _config_of(relative: str) -> str:
    folders = [part for part in relative.split("/")[:-1] if "=" not in part]
    own = [part for part in folders if part != "data" and part.lower() not in _ALIASES]
    return "/".join(own) or "default"


# --- which fields ---


def _schema_of(file: DataFile, filesystem: pafs.FileSystem) -> pa.Schema:
    def read() -> pa.Schema:
        with opened(filesystem, file.version) as source:
            return stored_schema(pq.read_schema(source))

    try:
        return with_retries(filesystem, read, f"file {file.shown_path}")
    except DatasetError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"file {file.shown_path}: expected a readable Parquet file, got: {error}.") from clean_cause(
            error
        )


def described(
    schema: pa.Schema, image_shape: tuple[int | None, ...], where: str
) -> tuple[tuple[TableColumn, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Returns the columns of a file, with the fields that its features describe, and the names of its class labels.

    Raises:
        DatasetError: the features are not as the datasets package writes them.
        SchemaError: images cannot have this ``image_shape``.
    """
    features = _features(schema, where)
    try:
        labels = tuple(
            (name, tuple(map(_text, feature["names"])))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        )
        return tuple(_columns(schema, features, image_shape)), labels
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, ParquetryError):
            raise
        raise DatasetError(
            f"file {where}: expected features as the datasets package writes them, got: {error!r}. Write it again."
        ) from clean_cause(error)


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a class named {str(name)[:80]}")
    return name


def _features(schema: pa.Schema, where: str) -> dict[str, Any]:
    text = (schema.metadata or {}).get(_METADATA_KEY)
    if text is None:
        return {}
    try:
        return dict(json.loads(text).get("info", {}).get("features") or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(
            f"file {where}: expected JSON under '{_METADATA_KEY.decode()}' in its metadata, got: {error}."
        ) from clean_cause(error)


def _columns(
    schema: pa.Schema, features: Mapping[str, Any], image_shape: tuple[int | None, ...]
) -> Iterator[TableColumn]:
    for column in schema:
        feature = features.get(column.name)
        feature = feature if isinstance(feature, dict) else {}
        if feature.get("_type") == "Image" and _holds_bytes(column.type):
            dims = ("H", "W", "C")[: len(image_shape)]
            codec = CompressedImageCodec("png")  # every codec decodes all formats; PNG allows every pixel type
            yield TableColumn(
                name=column.name,
                arrow=pa.binary(),
                names=((column.name,), ("bytes",)),
                field=UnischemaField(column.name, np.uint8, image_shape, codec, nullable=True, dims=dims),
            )
            continue
        for leaf in _leaves(column):
            yield replace(leaf, field=_shaped(leaf, feature)) if leaf.name == column.name else leaf


def _holds_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _leaves(column: pa.Field, above: TableColumn | None = None) -> Iterator[TableColumn]:
    kind = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    here = TableColumn(
        name=column.name if above is None else f"{above.name}.{column.name}",
        arrow=kind,
        nullable=column.nullable or (above is not None and above.nullable),
        names=(*(() if above is None else above.names), (column.name,)),
    )
    if pa.types.is_struct(kind) and kind.num_fields:
        for member in kind:
            yield from _leaves(member, here)
    elif pa.types.is_map(kind):
        yield replace(here, name=f"{here.name}.key", arrow=pa.list_(kind.key_type))
        yield replace(here, name=f"{here.name}.value", arrow=pa.list_(kind.item_type))
    else:
        yield here


def _shaped(column: TableColumn, feature: Mapping[str, Any]) -> UnischemaField | None:
    """The field of a feature with a known shape (``Array2D``, a fixed-length sequence); ``None`` for other features."""
    shape: tuple[int | None, ...]
    if re.fullmatch(r"Array[2-5]D", str(feature.get("_type"))):
        shape = tuple(feature["shape"])
    elif feature.get("_type") in ("Sequence", "List", "LargeList") and (feature.get("length") or -1) > 0:
        shape = (feature["length"],)
    else:
        return None
    if not all(axis is None or (type(axis) is int and 0 <= axis < 1 << 31) for axis in shape):
        raise ValueError(f"a shape of {str(shape)[:80]}")
    try:
        field = infer_field(column.name, pa.field(column.name, column.arrow, column.nullable))
    except SchemaError:
        return None  # refused with a reason when it is selected
    return field.replace(shape=shape) if len(field.shape) == len(shape) else None
