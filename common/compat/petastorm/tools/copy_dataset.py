"""`copy_dataset`, and its command line: ``python -m parquetry.common.compat.petastorm.tools.copy_dataset SOURCE
TARGET``.

It uses `parquetry.common.apps.tools.copy`, which needs no Spark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pyarrow.fs as pafs

from ....apps.tools.copying import copy
from ....base.errors import DatasetError, FieldNotFoundError
from ....storage.filesystem import resolve


def copy_dataset(
    spark: object,
    source_url: str,
    target_url: str,
    field_regex: Sequence[str] | None,
    not_null_fields: Sequence[str] | None,
    overwrite_output: bool,
    partitions_count: int | None,
    row_group_size_mb: float | None,
    hdfs_driver: str = "libhdfs3",
) -> None:
    """Copies some fields of a dataset, for the rows in which none of ``not_null_fields`` is null.

    Args:
        spark: unused; may be ``None``.
        source_url: URL of the dataset to copy.
        target_url: URL of the copy.
        field_regex: regexes that match whole names; ``None`` or an empty list for all fields.
        not_null_fields: fields that must not be null.
        overwrite_output: whether to replace an existing target instead of raising.
        partitions_count: number of files to write; ``None`` for one.
        row_group_size_mb: size of the row groups in MiB; ``None`` for parquetry's default.
        hdfs_driver: unused.

    Raises:
        FieldNotFoundError: a regex matches no field.
        DatasetError: the target exists (also Spark's ``AnalysisException`` if the program has imported pyspark).
    """
    try:
        copy(
            source_url,
            target_url,
            field_regex=field_regex or None,
            not_null_fields=not_null_fields or (),
            row_group_bytes=None if row_group_size_mb is None else int(row_group_size_mb * (1 << 20)),
            files=partitions_count or 1,
            overwrite=overwrite_output,
            petastorm_compatible=True,
            progress=False,
        )
    except FieldNotFoundError as error:
        raise FieldNotFoundError(f"Regular expressions {field_regex!r} do not match any fields: {error}") from error
    except DatasetError as error:
        if overwrite_output or _is_empty(target_url):
            raise
        raise _as_analysis_error(f"copy_dataset: the target {target_url!r} already exists: {error}") from error


def _is_empty(url: str) -> bool:
    filesystem, path = resolve(url)
    kind = filesystem.get_file_info(path).type
    return kind != pafs.FileType.File and not filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))


def _as_analysis_error(text: str) -> DatasetError:
    """Returns an error that programs which catch Spark's catch, too."""
    spark = sys.modules.get("pyspark.sql.utils")
    if spark is None:
        return DatasetError(text)
    return type("AnalysisError", (DatasetError, spark.AnalysisException), {})(text)  # type: ignore[no-any-return]


def args_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(description="Copies some fields and rows of a dataset.")
    parser.add_argument("source_url")
    parser.add_argument("target_url")
    parser.add_argument("--overwrite-output", action="store_true", help="replace an existing target")
    parser.add_argument("--field-regex", nargs="+", help="fields to copy; default: all")
    parser.add_argument("--not-null-fields", nargs="+", help="copy only rows in which none of these is null")
    parser.add_argument("--partition-count", type=int, help="number of files to write")
    parser.add_argument("--row-group-size-mb", type=float)
    parser.add_argument("--hdfs-driver", default="libhdfs3", help="not used")
    parser.add_argument("--master", help="not used: no Spark is needed")
    parser.add_argument("--spark-session-config", nargs="+", help="not used")
    return parser


def _main(arguments: Sequence[str]) -> None:
    options = args_parser().parse_args(arguments)
    copy_dataset(
        None,
        options.source_url,
        options.target_url,
        options.field_regex,
        options.not_null_fields,
        options.overwrite_output,
        options.partition_count,
        options.row_group_size_mb,
    )


def main() -> None:
    """Runs the command line."""
    _main(sys.argv[1:])


if __name__ == "__main__":
    main()
