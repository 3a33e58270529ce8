"""`Sources`: pipelines over what is no folder of plain Parquet: tables, data frames, and folders of others.

One mix-in for `Pipeline` and for every class that carries one; a class says in ``_over`` how it is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..layout.table import Table
from ..schema.field import UnischemaField
from ..tracebacks import public_methods_shorten

if TYPE_CHECKING:
    from typing_extensions import Self

Fields: TypeAlias = str | UnischemaField | Iterable[str | UnischemaField] | None


class Sources:
    """Constructors that every class with verbs has."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        public_methods_shorten(cls)

    @classmethod
    def _over(
        cls,
        url: str,
        table: Table | None,
        fields: Fields,
        options: Mapping[str, Any],
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """The rows of a URL, with what a table says about them; ``options`` are other arguments of the class."""
        raise NotImplementedError

    @classmethod
    def from_delta(
        cls,
        uri: str | os.PathLike[str],
        version: Any = None,
        fields: Fields = None,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """Rows of a Delta table (extra ``delta``): its file list, partition values, deletion vectors, column mapping.

        Args:
            version: a number, or a time (``datetime`` or ISO text); ``None`` = the newest version now. The pipeline
                keeps the version that it found.
            filesystem: where to read files instead of the table's own storage.
            storage_options: options for deltalake.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: no such table or version, or a feature that cannot be honoured.
        """
        from ..layout.tables.delta import open_delta

        source = open_delta(uri, version, filesystem=filesystem, storage_options=storage_options)
        return cls._over(source.url, source.table, fields, options, filesystem=source.filesystem)

    @classmethod
    def from_iceberg(
        cls,
        table: object,
        snapshot_id: int | None = None,
        fields: Fields = None,
        *,
        catalog_options: Mapping[str, Any] | None = None,
        filesystem: object = None,
        **options: Any,
    ) -> Self:
        """Rows of an Iceberg table (extra ``iceberg``): its files, deletes of every kind, columns by field id.

        Args:
            table: a ``pyiceberg`` table, or ``"catalog.namespace.table"``.
            snapshot_id: ``None`` = the current snapshot now. The pipeline keeps the snapshot that it found.
            catalog_options: properties for the catalog of a name.
            filesystem: where to read files instead of the table's own storage.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: no such table or snapshot, or a feature that cannot be honoured.
        """
        from ..layout.tables.iceberg import open_iceberg

        source = open_iceberg(table, snapshot_id, catalog_options=catalog_options, filesystem=filesystem)
        return cls._over(source.url, source.table, fields, options, filesystem=source.filesystem)

    @classmethod
    def from_huggingface_parquet(
        cls,
        path: str | os.PathLike[str],
        split: str | None = None,
        fields: Fields = None,
        *,
        config: str | None = None,
        image_shape: Sequence[int | None] = (None, None, 3),
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Rows of a folder of Parquet files as Hugging Face lays it out; images decode.

        Args:
            path: a local folder, or a URL such as ``hf://datasets/user/name``.
            split: such as ``"train"``, ``"train+test"`` or ``"all"``; may be left out where there is only one.
            config: the folder of the configuration, where there are several.
            image_shape: of the fields with the feature ``Image``.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: a folder, split or configuration that is not there, or is not the only one.
        """
        from ..layout.tables.huggingface import open_huggingface

        source = open_huggingface(
            path,
            split,
            config=config,
            image_shape=tuple(image_shape),
            filesystem=filesystem,
            storage_options=storage_options,
        )
        return cls._over(
            source.url,
            source.table,
            fields,
            options,
            filesystem=source.filesystem,
            storage_options=storage_options,
        )

    @classmethod
    def from_image_folder(
        cls,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        classes: Sequence[str] | None = None,
        image_shape: Sequence[int | None] = (None, None, 3),
        convert: bool | None = None,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Rows of a folder of JPEG, PNG and WebP files with a folder for each class, read where they are.

        Fields: ``image`` (uint8), ``label`` (int64), and ``path`` (text, below the folder), in the order of paths.
        `tables.class_names` gives the names behind the labels. The files are listed once, here, in a small manifest in
        the cache directory; one that is replaced later is an error that names it.

        Args:
            path: a local folder, or a URL. Images may lie in folders below that of their class; names that begin with
                ``.`` are left out.
            classes: names of the classes, in the order of their labels; ``None`` = the folders, sorted. Give those of
                the training set where another one may lack some.
            image_shape: of the field ``image``.
            convert: whether images of other channels are converted; see `CompressedImageCodec`.
            filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
            storage_options: options for an fsspec filesystem.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: a folder that is not there, without images, or with images outside of class folders.
            SchemaError: an ``image_shape`` that images cannot have.
        """
        from ..layout.tables.image_folder import open_image_folder

        source = open_image_folder(
            path,
            classes=classes,
            image_shape=tuple(image_shape),
            convert=convert,
            filesystem=filesystem,
            storage_options=storage_options,
        )
        return cls._over(
            source.url,
            source.table,
            fields,
            options,
            filesystem=filesystem,
            storage_options=storage_options,
        )

    @classmethod
    def from_pandas(cls, frame: object, fields: Fields = None, **options: Any) -> Self:
        """Rows of a pandas data frame (extra ``frames``), without its index.

        The frame is written once, under a name made of its content, to the cache directory, where other processes find
        it; equal frames have equal fingerprints.
        """
        from ..layout.tables.frames import keep_pandas

        return cls._over(keep_pandas(frame), None, fields, options)

    @classmethod
    def from_polars(cls, frame: object, fields: Fields = None, **options: Any) -> Self:
        """Rows of a polars ``DataFrame`` or ``LazyFrame`` (extra ``frames``); see `from_pandas`."""
        from ..layout.tables.frames import keep_polars

        return cls._over(keep_polars(frame), None, fields, options)
