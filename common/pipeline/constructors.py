"""`Constructors`: a pipeline over data other than plain Parquet folders: tables, data frames, images, and Hugging Face.

A mix-in for `Pipeline` and every class that wraps one. Each class implements ``_over`` to construct itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..base.process.forks import pc
from ..base.tracebacks import public_methods_shorten
from ..schema.field import UnischemaField
from ..stages.base import Stage
from ..stages.ngram import Ngram
from ..stages.rename import Rename
from ..stages.where import Where
from .sources import Files, Snapshot, Source

if TYPE_CHECKING:
    from typing import Self

Fields: TypeAlias = str | UnischemaField | Iterable[str | UnischemaField] | None


class Constructors:
    """Constructors shared by every class with verbs."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        public_methods_shorten(cls)

    @classmethod
    def _over(cls, source: Source, fields: Fields, options: Mapping[str, Any], stages: Sequence[Stage] = ()) -> Self:
        """Creates an instance over a source; ``options`` are other arguments of the class, ``stages`` its verbs."""
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
        """Reads the rows of a Delta table (needs the extra ``delta``).

            >>> Pipeline.from_delta("s3://lake/frames", version=12).where(pc.field("speed") > 3)  # doctest: +SKIP

        Respects the table's file list, partition values, deletion vectors and column mapping.

        Args:
            version: a number, or a time (``datetime``, date or ISO text, in UTC if it has no zone), which means the
                last version that is not newer; ``None`` = the latest version. The version is resolved now, and the
                pipeline keeps it.
            filesystem: where to read files instead of the table's own storage.
            storage_options: options for deltalake.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: the table or version does not exist, the time is before the oldest version, or the table uses
                an unsupported feature.
        """
        from ..tables.delta import open_delta

        opened = open_delta(uri, version, filesystem=filesystem, storage_options=storage_options)
        return cls._over(Snapshot.of(opened.url, opened.filesystem, table=opened.table), fields, options)

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
        """Reads the rows of an Iceberg table (needs the extra ``iceberg``).

            >>> Pipeline.from_iceberg("prod.sales.orders", snapshot_id=8234)  # doctest: +SKIP

        Respects the snapshot's file list and all kinds of deletes, and matches columns by field id.

        Args:
            table: a ``pyiceberg`` table, or ``"catalog.namespace.table"``.
            snapshot_id: ``None`` = the current snapshot. It is resolved now, and the pipeline keeps it.
            catalog_options: properties for the catalog, if ``table`` is a name.
            filesystem: where to read files instead of the table's own storage.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: the table or snapshot does not exist, or the table uses an unsupported feature.
        """
        from ..tables.iceberg import open_iceberg

        opened = open_iceberg(table, snapshot_id, catalog_options=catalog_options, filesystem=filesystem)
        return cls._over(Snapshot.of(opened.url, opened.filesystem, table=opened.table), fields, options)

    @classmethod
    def from_huggingface_parquet(
        cls,
        path: str | os.PathLike[str],
        split: str | None = None,
        fields: Fields = None,
        *,
        config: str | None = None,
        image_shape: Sequence[int | None] | None = None,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Reads a folder of Parquet files in the Hugging Face layout, and decodes its images.

            >>> Pipeline.from_huggingface_parquet("hf://datasets/user/faces", split="train")  # doctest: +SKIP

        Args:
            path: a local folder, or a URL such as ``hf://datasets/user/name``.
            split: such as ``"train"``, ``"train+test"`` or ``"all"``; may be omitted if there is only one.
            config: the configuration, if there are several: one that the README.md lists, or a folder.
            image_shape: the shape of fields with the feature ``Image``. By default, the channels are those of its mode,
                such as ``Image(mode="L")``, or RGB.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: the folder, split or configuration does not exist, or you must name one because there are
                several.
        """
        from ..tables.huggingface import open_huggingface

        opened = open_huggingface(
            path,
            split,
            config=config,
            image_shape=None if image_shape is None else tuple(image_shape),
            filesystem=filesystem,
            storage_options=storage_options,
        )
        source = Snapshot.of(opened.url, opened.filesystem, storage_options, table=opened.table)
        return cls._over(source, fields, options)

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
        """Reads JPEG, PNG and WebP files in place from a folder with one subfolder per class.

            >>> Pipeline.from_image_folder("pictures/train").resize("image", 224).batch(64)  # doctest: +SKIP

        The fields are ``image`` (uint8), ``label`` (int64), and ``path`` (text, relative to the folder); rows are
        ordered by path. `tables.class_names` returns the names of the labels. The files are listed once, in this call,
        and the list is stored as a small manifest in the cache directory. If a file is replaced later, reading it
        raises an error that names it.

        Args:
            path: a local folder, or a URL. Images may be in subfolders of their class folder; names that begin with
                ``.`` are ignored.
            classes: names of the classes, in label order; ``None`` = the sorted folder names. For other splits, pass
                the classes of the training set: a split may lack some classes, which shifts the labels of those after
                them. A warning says so where this process numbered a class differently before.
            image_shape: the shape of the field ``image``.
            convert: whether to convert images with a different number of channels; see `CompressedImageCodec`.
            filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
            storage_options: options for an fsspec filesystem.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: the folder does not exist, has no images, or has images outside of class folders.
            SchemaError: ``image_shape`` is not a valid shape for images.
        """
        from ..tables.image_folder import open_image_folder

        opened = open_image_folder(
            path,
            classes=classes,
            image_shape=tuple(image_shape),
            convert=convert,
            filesystem=filesystem,
            storage_options=storage_options,
        )
        source = Snapshot.of(opened.url, filesystem, storage_options, table=opened.table)
        return cls._over(source, fields, options)

    @classmethod
    def from_lerobot(
        cls,
        path: str | os.PathLike[str],
        fields: Fields = None,
        *,
        episodes: Iterable[int] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        cameras: str | Iterable[str] | None = None,
        revision: str | None = None,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Reads the frames of a LeRobot dataset (v3.0 or v2.1) in place. Videos need the extra ``video``.

            >>> windows = {"action": [n / 30 for n in range(16)], "observation.images.top": [-0.1, 0]}
            >>> Pipeline.from_lerobot("hf://datasets/lerobot/pusht", delta_timestamps=windows)  # doctest: +SKIP

        An element is one frame with the keys of ``LeRobotDataset``: the columns of the Parquet files, ``task`` as text,
        and each camera as uint8 ``[H, W, C]``. The statistics are in ``pipeline.dataset.stats``.

        Args:
            path: the folder with ``meta`` and ``data`` in it, or a URL such as ``hf://datasets/user/name``.
            episodes: the numbers of the episodes to read; ``None`` = all. Only their files are opened.
            delta_timestamps: for each field in it, the times of the frames to stack, in seconds from the current one:
                ``[T, ...]``. A camera with one time has no time axis. Beyond the ends of the episode, its first or last
                frame is repeated, and ``<field>_is_pad``, bool ``[T]``, is true.
            cameras: the cameras to read; ``None`` = all, ``[]`` = none.
            revision: a branch, tag or commit of an ``hf://`` URL; ``None`` = that of the URL. The commit is resolved
                now, and the pipeline keeps it.
            filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
            storage_options: options for an fsspec filesystem.
            options: other arguments of the class, such as ``workers``.

        Raises:
            DatasetError: there is no such dataset, version, episode, camera or field, a time is not that of a frame, or
                files are missing.
        """
        from ..tables.lerobot import open_lerobot

        opened = open_lerobot(
            path,
            episodes=episodes,
            cameras=cameras,
            revision=revision,
            filesystem=filesystem,
            storage_options=storage_options,
        )
        stages: list[Stage] = []
        if opened.episodes is not None:
            stages.append(Where.of(pc.field("episode_index").isin(opened.episodes)))
        if delta_timestamps is not None:
            offsets = opened.offsets(delta_timestamps)
            single = tuple(name for name, listed in offsets.items() if name in opened.videos and len(listed) == 1)
            stages.append(
                Ngram(
                    group_by=("episode_index",),
                    field_offsets=(*offsets.items(), (".*", 0)),
                    edges="clamp",
                    single=single,
                )
            )
            stages.append(Rename.of({f"{name}__is_pad": f"{name}_is_pad" for name in offsets}))
        source = Snapshot.of(opened.source.url, filesystem, storage_options, table=opened.source.table)
        return cls._over(source, fields, options, stages)

    @classmethod
    def from_pandas(cls, frame: object, fields: Fields = None, **options: Any) -> Self:
        """Reads the rows of a pandas data frame, without its index (needs the extra ``frames``).

            >>> frame = pandas.DataFrame({"x": [1, 2, 3]})
            >>> [int(row["x"]) for row in Pipeline.from_pandas(frame)]
            [1, 2, 3]

        The frame is written once to the cache directory, under a name derived from its content, so that other
        processes find it. Equal frames have equal fingerprints.
        """
        from ..tables.frames import keep_pandas

        return cls._over(Files.of(keep_pandas(frame)), fields, options)

    @classmethod
    def from_polars(cls, frame: object, fields: Fields = None, **options: Any) -> Self:
        """Reads the rows of a polars ``DataFrame`` or ``LazyFrame`` (needs the extra ``frames``); see `from_pandas`.

        >>> frame = polars.LazyFrame({"x": [1, 2, 3]}).filter(polars.col("x") > 1)
        >>> [int(row["x"]) for row in Pipeline.from_polars(frame)]
        [2, 3]
        """
        from ..tables.frames import keep_polars

        return cls._over(Files.of(keep_polars(frame)), fields, options)
