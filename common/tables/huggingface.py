"""Parquet folders in the Hugging Face layout: splits of files, features in the Arrow schema's metadata.

It takes a folder and a split, and returns a `TableSource`. Rows of different splits or configurations are never mixed
unless the caller asks for it. Files with different schemas are unified, as those of other datasets.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError, SchemaError, missing_package
from ..base.urls import clean_cause
from ..dataset.table import Table, TableColumn, TableFile, TableSource, sorted_files
from ..parquet.evolution import unify_schemas
from ..parquet.footers import remedy
from ..parquet.group_footers import stored_footers
from ..parquet.int96 import footer_schema
from ..schema.field import UnischemaField
from ..schema.images import CompressedImageCodec
from ..schema.infer import infer_field
from ..storage.files import FileListing, is_data_name, list_files
from ..storage.links import each_once
from ..storage.opening import read_whole
from .huggingface_splits import files_of

_METADATA_KEY = b"huggingface"
_README = "README.md"
_CHANNELS: dict[Any, tuple[int, ...]] = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}
_MOST_README_BYTES = 4 << 20

Labels = tuple[tuple[str, tuple[str, ...]], ...]


def open_huggingface(
    path: str | os.PathLike[str],
    split: str | None,
    *,
    config: str | None,
    image_shape: tuple[int | None, ...] | None,
    filesystem: object,
    storage_options: Mapping[str, Any] | None,
) -> TableSource:
    """Opens the files of a split, with the fields that their features describe.

    Raises:
        DatasetError: a folder, split or configuration does not exist, or was not given although there are several.
        SchemaError: images cannot have this ``image_shape``.
    """
    url = os.fspath(path)
    if filesystem is None:
        url = pin_commit(url, storage_options, what=f"Hugging Face folder '{url}'")
    what = f"Hugging Face folder '{url}'"
    options = dict(storage_options) if storage_options else None
    listing = list_files([url], filesystem=filesystem, storage_options=options, by_name=True)  # splits may share blobs
    files = {file.relative: file for file in listing.files}
    _check_parquet(what, [*files])
    paths = files_of(what, [*files], _readme(what, listing), config=config, split=split)
    chosen = each_once(listing.filesystem, [files[path] for path in paths])
    footers = [footer.head.empty for footer in stored_footers(listing.filesystem, chosen)]
    schemas = [(file.path, _schema_in(footer, file.shown_path)) for file, footer in zip(chosen, footers, strict=True)]
    columns, refused, labels = described(schemas, image_shape)
    made = Table(
        kind="huggingface",
        root=listing.roots[0] if chosen[0].path != listing.roots[0] else posixpath.dirname(chosen[0].path),
        identity="",
        version="",
        columns=columns,
        files=tuple(TableFile(version=file.version) for file in chosen),
        refused=refused,
        labels=labels,
    )
    return TableSource(url=url, table=sorted_files(made), filesystem=filesystem)


def pin_commit(url: str, storage_options: Mapping[str, Any] | None, revision: str | None = None, *, what: str) -> str:
    """Pins a hub URL to the current commit of its revision, so that every process reads the same files.

    Args:
        revision: a branch, tag or commit; ``None`` = that of the URL.

    Raises:
        DatasetError: the hub cannot be reached, or has no such dataset or revision.
    """
    if not url.startswith("hf://"):
        return url
    try:
        from huggingface_hub import HfApi, HfFileSystem
    except ImportError as error:
        raise DatasetError(f"{what}: {missing_package(error, 'huggingface_hub', 'huggingface')}") from clean_cause(
            error
        )
    options = dict(storage_options or {})
    try:
        location = HfFileSystem(**options).resolve_path(url, revision=revision)
        api = HfApi(token=options.get("token"), endpoint=options.get("endpoint"))
        commit = api.repo_info(location.repo_id, repo_type=location.repo_type, revision=location.revision).sha
    except (OSError, ValueError) as error:
        raise DatasetError(f"{what}: cannot be reached: {error}") from clean_cause(error)
    kind = "" if location.repo_type == "model" else f"{location.repo_type}s/"
    return f"hf://{kind}{location.repo_id}@{commit}/{location.path_in_repo}".rstrip("/")


def _check_parquet(what: str, paths: Sequence[str]) -> None:
    arrow = next((path for path in paths if path.endswith(".arrow")), None)
    if arrow is not None and not any(map(is_data_name, paths)):
        raise DatasetError(
            f"{what}: expected Parquet files, found Arrow files such as '{arrow}', as save_to_disk() writes them. "
            "Write Parquet with datasets.load_from_disk(path), and to_parquet() of each split."
        )


def _readme(what: str, listing: FileListing) -> str:
    """The text of the folder's README.md; empty if it has none, or if the URL names files."""
    root = listing.roots[0]
    if listing.patterns or root == listing.files[0].path:
        return ""
    try:
        content = read_whole(listing.filesystem, posixpath.join(root, _README), _MOST_README_BYTES)
        return (content or b"").decode()
    except ParquetryError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DatasetError(
            f"{what}: expected a readable {_README}, which may list its splits, got: {error}. "
            f"{remedy(error, 'Repair it, or name the files in the URL.')}"
        ) from clean_cause(error)


# --- which fields ---


def _schema_in(footer: pq.FileMetaData, where: str) -> pa.Schema:
    try:
        return footer_schema(footer)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"file {where}: expected columns that Arrow has types for, got: {error}. Write it again without them."
        ) from clean_cause(error)


def described(
    schemas: Sequence[tuple[str, pa.Schema]], image_shape: tuple[int | None, ...] | None
) -> tuple[tuple[TableColumn, ...], tuple[tuple[str, str], ...], Labels]:
    """Returns the columns of the given files, with the fields that their features describe.

    It also returns which columns cannot be read, each with the reason, and the names of the class labels.

    Args:
        schemas: the path and the schema of each file.

    Raises:
        DatasetError: the features are not as the datasets package writes them, or those of two files differ.
        SchemaError: images cannot have this ``image_shape``.
    """
    features = _common_features(schemas)
    where = schemas[0][0]
    try:
        labels = tuple(
            (name, tuple(map(_text, feature["names"])))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        )
        distinct: dict[pa.Schema, tuple[str, pa.Schema]] = {}
        for path, schema in schemas:
            distinct.setdefault(schema.remove_metadata(), (path, schema))
        columns, refused = _columns(list(distinct.values()), features, image_shape)
        return tuple(columns), tuple(refused.items()), labels
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, ParquetryError):
            raise
        raise DatasetError(
            f"file {where}: expected features as the datasets package writes them, got: {error!r}. Write it again."
        ) from clean_cause(error)


def _common_features(schemas: Sequence[tuple[str, pa.Schema]]) -> dict[str, Any]:
    """The features of all files by name. Those that change what a column means must be the same in all."""
    features: dict[str, tuple[Any, str]] = {}
    distinct: dict[bytes | None, tuple[str, pa.Schema]] = {}
    for path, schema in schemas:
        distinct.setdefault((schema.metadata or {}).get(_METADATA_KEY), (path, schema))
    for path, schema in distinct.values():
        for name, feature in _features(schema, path).items():
            first, before = features.setdefault(name, (feature, path))
            if first != feature and any(_kind(each) in ("ClassLabel", "Image") for each in (first, feature)):
                raise DatasetError(
                    f"field '{name}': expected one feature in all files, got {str(first)[:200]} in {before} and "
                    f"{str(feature)[:200]} in {path}. Read the files one by one, or write one of them again."
                )
    return {name: feature for name, (feature, _) in features.items()}


def _kind(feature: object) -> object:
    return feature.get("_type") if isinstance(feature, dict) else None


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
    schemas: Sequence[tuple[str, pa.Schema]], features: Mapping[str, Any], image_shape: tuple[int | None, ...] | None
) -> tuple[list[TableColumn], dict[str, str]]:
    """The columns of files with different schemas, in order of first occurrence, and the reasons for refused ones."""
    unified, refused = unify_schemas(schemas)
    types = dict(unified)
    columns: dict[str, TableColumn] = {}
    for _, schema in schemas:
        for column in schema:
            feature = features.get(column.name)
            feature = feature if isinstance(feature, dict) else {}
            is_image = feature.get("_type") == "Image" and _holds_bytes(column.type)
            for leaf in [_image(column.name, feature, image_shape)] if is_image else _leaves(column):
                stored = f"{leaf.name}.bytes" if is_image else leaf.name
                if stored in refused:
                    refused[leaf.name] = refused[stored]
                elif stored in types and leaf.name not in columns:
                    columns[leaf.name] = leaf if is_image else _as_unified(leaf, types[stored], feature)
    return list(columns.values()), refused


def _as_unified(leaf: TableColumn, unified: pa.Field, feature: Mapping[str, Any]) -> TableColumn:
    leaf = replace(leaf, arrow=_plain(unified.type), nullable=unified.nullable)
    return replace(leaf, field=_shaped(leaf, feature)) if len(leaf.names) == 1 else leaf


def _image(name: str, feature: Mapping[str, Any], image_shape: tuple[int | None, ...] | None) -> TableColumn:
    mode = feature.get("mode")
    if image_shape is None:
        image_shape = (None, None, *_CHANNELS.get(mode, (3,)))
    return image_column(name, image_shape, convert=True if mode in _CHANNELS else None)


def image_column(
    name: str, shape: tuple[int | None, ...], *, convert: bool | None = None, nullable: bool = True
) -> TableColumn:
    """Returns the column of images that a struct of ``bytes`` and ``path`` holds.

    Args:
        shape: height, width, and channels, if there are any.
        convert: see `CompressedImageCodec`.
        nullable: whether images may be null.
    """
    # Every codec decodes all formats; PNG allows every pixel type.
    codec = CompressedImageCodec("png", convert=convert)
    dims = ("H", "W", "C")[: len(shape)]
    return TableColumn(
        name=name,
        arrow=pa.binary(),
        nullable=nullable,
        names=((name,), ("bytes",)),
        field=UnischemaField(name, np.uint8, shape, codec, nullable=nullable, dims=dims),
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """What an extension type stores, and the values of a dictionary."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _holds_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _leaves(column: pa.Field, above: TableColumn | None = None) -> Iterator[TableColumn]:
    kind = _plain(column.type)
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
