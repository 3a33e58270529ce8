"""Folders of image files, with one subfolder per class, as a table.

It takes a folder and returns a `TableSource` whose only file is a manifest in the cache directory. The manifest lists
the images, which stay where they are. Equal folders share a manifest, and its name depends on the store and the file
versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, SchemaError
from ..base.urls import clean_cause
from ..dataset.table import Table, TableColumn, TableFile, TableSource
from ..schema.field import UnischemaField
from ..schema.images import CompressedImageCodec
from ..storage.file_cache import FileCache
from ..storage.file_versions import FileVersion, drawn_plan, look, versions_below
from ..storage.filesystem import resolve
from ..storage.stores import store_of
from ..storage.whole_files import cache_root

MANIFEST = [
    pa.field("path", pa.string()),
    pa.field("size_bytes", pa.int64()),
    pa.field("mtime_ns", pa.int64()),
    pa.field("tag", pa.string()),
    pa.field("inode", pa.list_(pa.uint64())),
]
"""The columns of a manifest besides the label. Paths are relative to the folder."""
_LOGGER = logging.getLogger(__name__)
_FORMATS = {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png", ".webp": "webp"}
_DIMS = ("H", "W", "C")
_ROW_GROUP_ROWS = 128
_MOST_BYTES = 4 << 30
_KEPT_S = 24 * 3600
_MOST_SHOWN = 10
_numbered: dict[str, tuple[str, int]] = {}  # class -> the folder that this process last gave labels, and its number
_VERSION = 2  # manifests of version 1 said less about local files, and their names did not depend on the store


def open_image_folder(
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None,
    image_shape: tuple[int | None, ...],
    convert: bool | None,
    filesystem: object,
    storage_options: Mapping[str, Any] | None,
) -> TableSource:
    """Opens the images below a folder, with the fields ``image``, ``label`` and ``path``.

    Raises:
        DatasetError: the folder does not exist, has no images, has images outside of class folders, or has subfolders
            that ``classes`` does not name.
        SchemaError: images cannot have this ``image_shape``.
    """
    url = os.fspath(path)
    what = f"image folder '{url}'"
    options = dict(storage_options) if storage_options else None
    base, root = resolve(url, filesystem=filesystem, storage_options=options)
    images = _images(what, base, root)
    names = _class_names(what, images, classes)
    if classes is None:
        _warn_of_other_numbers(what, names)
    _numbered.update({name: (what, number) for number, name in enumerate(names)})
    labels = [names.index(relative[0]) for relative, _ in images]
    field = _image_field({_format(relative[-1]) for relative, _ in images}, image_shape, convert)
    store = store_of(base)
    manifest, digest = _keep(what, images, labels, f"{store}\0{root}")
    tells = store and all(version.has_version_metadata for _, version in images)
    version = FileVersion(
        path=manifest,
        size_bytes=os.path.getsize(manifest),
        store=store_of(pafs.LocalFileSystem()),
        tag=f"content={digest}",
        plan="" if tells else drawn_plan(),
    )
    listed = json.dumps([[*relative, version.size_bytes] for relative, version in images])
    return TableSource(
        url=url,
        table=Table(
            kind="image_folder",
            root=manifest,
            identity=hashlib.blake2b(f"{names}\0{listed}".encode(), digest_size=16).hexdigest(),
            version="",
            columns=(
                TableColumn(name="image", arrow=pa.binary(), nullable=False, field=field, in_files=True),
                TableColumn(name="label", arrow=pa.int64(), nullable=False, names=(("label",),)),
                TableColumn(name="path", arrow=pa.string(), nullable=False, names=(("path",),)),
            ),
            files=(TableFile(version=version),),
            labels=(("label", tuple(names)),),
        ),
        filesystem=filesystem,
    )


def _image_field(formats: set[str], shape: tuple[int | None, ...], convert: bool | None) -> UnischemaField:
    """The image field. It has the codec of the files if they share a format that supports such images, else PNG.

    Every codec decodes all formats.
    """
    field = UnischemaField(
        "image", "uint8", shape, CompressedImageCodec("png", convert=convert), dims=_DIMS[: len(shape)]
    )
    with contextlib.suppress(SchemaError):
        return field.replace(codec=CompressedImageCodec(min(formats), convert=convert)) if len(formats) == 1 else field
    return field


def _format(name: str) -> str:
    return _FORMATS.get(posixpath.splitext(name)[1].lower(), "")


def _images(what: str, filesystem: pafs.FileSystem, root: str) -> list[tuple[list[str], FileVersion]]:
    """Every image with the parts of its path below the folder, sorted by these."""
    try:
        kind, _ = look(filesystem, root)
        files = versions_below(filesystem, root) if kind == pafs.FileType.Directory else []
    except OSError as error:
        raise DatasetError(f"{what}: cannot be reached: {error}") from clean_cause(error)
    if kind != pafs.FileType.Directory:
        raise DatasetError(f"{what}: expected a folder, got {'a file' if kind == pafs.FileType.File else 'nothing'}.")
    images, others = [], []
    for version in files:
        relative = version.path[len(root) :].lstrip("/").split("/")
        if any(part.startswith(".") for part in relative):
            continue
        if _format(relative[-1]):
            images.append((relative, version))
        else:
            others.append("/".join(relative))
    if not images:
        raise DatasetError(
            f"{what}: expected images ({', '.join(sorted(_FORMATS))}) in one folder per class, found none among "
            f"{len(files)} files."
        )
    if others:
        _LOGGER.warning("%s: skipped %d files that are not JPEG, PNG or WebP, such as %s", what, len(others), others[0])
    return sorted(images, key=lambda image: image[0])


def _class_names(
    what: str, images: Sequence[tuple[list[str], FileVersion]], classes: Sequence[str] | None
) -> list[str]:
    outside = next((relative[0] for relative, _ in images if len(relative) == 1), None)
    if outside is not None:
        raise DatasetError(
            f"{what}: expected one folder per class, found an image outside of them: '{outside}'. Move it into a "
            "folder named after its class."
        )
    folders = sorted({relative[0] for relative, _ in images})
    if classes is None:
        return folders
    if isinstance(classes, set | frozenset):  # its order differs between processes, so the labels would
        raise DatasetError(
            f"{what}: expected classes= as a list, whose order numbers them, got a set. Pass sorted(...)."
        )
    names = [classes] if isinstance(classes, str) else list(classes)
    unknown = [name for name in folders if name not in names]
    if unknown or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise DatasetError(
            f"{what}: expected classes= to name each of its folders once, {folders}, got {names}. "
            + (f"Add {unknown}." if unknown else "Name each folder once.")
        )
    return [str(name) for name in names]


def _warn_of_other_numbers(what: str, names: Sequence[str]) -> None:
    """Warns if this process gave a class another number in another folder, as when a split lacks some classes."""
    for number, name in enumerate(names):
        other, before = _numbered.get(name, (what, number))
        if before != number and other != what:
            _LOGGER.warning(
                "%s: numbers its own folders %s, so class '%s' is label %d here and label %d in %s. Give both the same "
                "numbers: from_image_folder(..., classes=parquetry.class_names(train)['label']).",
                what,
                list(names[:_MOST_SHOWN]) + ["..."] * (len(names) > _MOST_SHOWN),
                name,
                number,
                before,
                other,
            )
            break


def _keep(
    what: str, images: Sequence[tuple[list[str], FileVersion]], labels: Sequence[int], place: str
) -> tuple[str, str]:
    """Writes the manifest unless it exists. Returns its path and name. ``place`` names the store and the folder."""
    columns = {
        "path": ["/".join(relative) for relative, _ in images],
        "size_bytes": [version.size_bytes for _, version in images],
        "mtime_ns": [version.mtime_ns for _, version in images],
        "tag": [version.tag for _, version in images],
        "inode": [version.inode for _, version in images],
        "label": list(labels),
    }
    digest = hashlib.blake2b(json.dumps([_VERSION, place, columns]).encode(), digest_size=16).hexdigest()
    directory = cache_root() / "folders"
    cache = FileCache(directory, ".parquet", max_bytes=_MOST_BYTES, spare_s=_KEPT_S)
    path = cache.path(digest)
    table = pa.table(columns, schema=pa.schema([*MANIFEST, pa.field("label", pa.int64())]))
    try:
        if os.path.exists(path):
            with open(path, "rb") as file:  # marks it as used
                file.read(1)
        else:
            cache.keep(
                digest,
                table.nbytes,
                lambda hidden: pq.write_table(
                    table, hidden, row_group_size=_ROW_GROUP_ROWS, compression="zstd", write_page_checksum=True
                ),
            )
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            f"{what}: its manifest cannot be kept in {directory}: {error}. Free disk space there, or set "
            "PARQUETRY_CACHE_DIR."
        ) from clean_cause(error)
    return path, digest
