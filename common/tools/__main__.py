"""``python -m parquetry.common.tools convert|copy|generate-metadata|migrate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import ParquetryError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one tool. Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        print(_run(options))
    except (ParquetryError, ValueError) as error:
        print(f"{options.tool}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> str:
    from . import conditions, convert, copy, generate_metadata, migrate  # --help needs no imports

    if options.tool == "migrate":
        report = str(migrate(options.url, options.dry_run, keep_petastorm=options.keep_petastorm))
        return f"dry run, nothing was written. {report}" if options.dry_run else report
    if options.tool == "generate-metadata":
        schema = generate_metadata(options.url, overwrite=options.overwrite)
        return f"{options.url}: schema of {len(schema)} fields: {', '.join(schema.fields)}."
    written: dict[str, Any] = {
        "partition_by": options.partition_by,
        "row_group_rows": options.row_group_rows,
        "petastorm_compatible": options.petastorm_compatible,
        "overwrite": options.overwrite,
        "progress": not options.no_progress,
    }
    if options.tool == "convert":
        report_of_copy = convert(
            options.source if len(options.source) > 1 else options.source[0],
            options.target,
            options.fields,
            form=options.form,
            rename=dict(options.rename or ()),
            split=options.split,
            config=options.config,
            workers=options.workers,
            **written,
        )
    else:
        report_of_copy = copy(
            options.source,
            options.target,
            field_regex=options.field_regex,
            not_null_fields=options.not_null_fields or (),
            where=None if options.where is None else conditions(options.where),
            files=options.files,
            **written,
        )
    return f"{options.target}: {report_of_copy}"


def _renamed(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got '{text}'")
    return old, new


def _add_target(tool: argparse.ArgumentParser) -> None:
    """Adds the arguments of the tools that write a dataset."""
    tool.add_argument("target", help="an empty or new directory: a path or a URL")
    tool.add_argument("--partition-by", nargs="*", metavar="FIELD", help="fields to partition by, as directories")
    tool.add_argument(
        "--row-group-rows", type=int, metavar="N", help="rows per row group; default: 32 MiB or 65,536 rows"
    )
    tool.add_argument("--overwrite", action="store_true", help="replace an existing dataset at the target")
    tool.add_argument("--petastorm-compatible", action="store_true", help="also write Petastorm's metadata")
    tool.add_argument("--no-progress", action="store_true", help="show no progress bar")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parquetry.common.tools", description="Tools for whole datasets.")
    tools = parser.add_subparsers(dest="tool", required=True)

    migrate = tools.add_parser("migrate", help="convert Petastorm's pickled metadata to JSON, in place")
    migrate.add_argument("url", help="the directory of a Petastorm dataset: a path or a URL")
    migrate.add_argument("--dry-run", action="store_true", help="only report what would change")
    migrate.add_argument("--keep-petastorm", action="store_true", help="keep Petastorm's keys beside the new ones")

    generate = tools.add_parser("generate-metadata", help="write the schema of plain Parquet files")
    generate.add_argument("url", help="a directory of Parquet files: a path or a URL")
    generate.add_argument("--overwrite", action="store_true", help="replace an existing schema")

    convert = tools.add_parser(
        "convert", help="write image folders, TFRecords, WebDataset tars, Hugging Face folders or Parquet as a dataset"
    )
    convert.add_argument("source", nargs="+", help="folders or files; the last part may contain * and ?")
    convert.add_argument(
        "--form",
        choices=["parquet", "huggingface", "images", "tfrecord", "webdataset"],
        help="the format of the source; default: detected from file names",
    )
    convert.add_argument("--fields", nargs="+", metavar="FIELD", help="fields to convert; default: all")
    convert.add_argument(
        "--rename", nargs="+", type=_renamed, metavar="OLD=NEW", help="rename features; for TFRecord and WebDataset"
    )
    convert.add_argument("--split", help="the split of a Hugging Face folder, such as train")
    convert.add_argument("--config", help="the configuration of a Hugging Face folder")
    convert.add_argument("--workers", type=int, metavar="N", help="how many parts to write in parallel")
    _add_target(convert)

    copy = tools.add_parser("copy", help="copy some fields and rows of a dataset; run again to resume")
    copy.add_argument("source", help="the dataset: the path or URL of a directory or file")
    copy.add_argument("--field-regex", nargs="+", metavar="REGEX", help="fields to copy; default: all")
    copy.add_argument(
        "--not-null-fields", nargs="+", metavar="FIELD", help="only rows where none of these fields is null"
    )
    copy.add_argument("--where", metavar="JSON", help='only rows that match this, such as [["speed", ">", 3]]')
    copy.add_argument("--files", type=int, default=1, metavar="N", help="files per part of 512 MiB; default: 1")
    _add_target(copy)
    return parser


if __name__ == "__main__":
    sys.exit(main())
