"""``python -m parquetry.common.tools convert|copy|generate-metadata|migrate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import ParquetryError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one tool; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        print(_run(options))
    except (ParquetryError, ValueError) as error:
        print(f"{options.tool}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> str:
    from . import conditions, convert, copy, generate_metadata, migrate  # --help needs none of them

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
    """The arguments of whatever writes a dataset."""
    tool.add_argument("target", help="a directory, local or a URL, that is empty or does not exist")
    tool.add_argument("--partition-by", nargs="*", metavar="FIELD", help="fields that become directories")
    tool.add_argument(
        "--row-group-rows", type=int, metavar="N", help="rows in each row group; 32 MiB or 65,536 rows if not given"
    )
    tool.add_argument("--overwrite", action="store_true", help="replace a dataset that is at the target")
    tool.add_argument("--petastorm-compatible", action="store_true", help="write Petastorm's metadata too")
    tool.add_argument("--no-progress", action="store_true", help="show no progress bar")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parquetry.common.tools", description="Tools over whole datasets.")
    tools = parser.add_subparsers(dest="tool", required=True)

    migrate = tools.add_parser("migrate", help="turn Petastorm's pickled metadata into JSON, in place")
    migrate.add_argument("url", help="the dataset that Petastorm wrote: a directory, local or a URL")
    migrate.add_argument("--dry-run", action="store_true", help="only say what would be done")
    migrate.add_argument("--keep-petastorm", action="store_true", help="leave Petastorm's keys beside the new ones")

    generate = tools.add_parser("generate-metadata", help="write the schema of plain Parquet files")
    generate.add_argument("url", help="a directory of Parquet files, local or a URL")
    generate.add_argument("--overwrite", action="store_true", help="replace a schema that is there")

    convert = tools.add_parser(
        "convert", help="write image folders, TFRecords, WebDataset tars, Hugging Face folders or Parquet as a dataset"
    )
    convert.add_argument("source", nargs="+", help="a folder, a file, or several; the last part may hold * and ?")
    convert.add_argument(
        "--form",
        choices=["parquet", "huggingface", "images", "tfrecord", "webdataset"],
        help="what the source holds; what the names of its files say if not given",
    )
    convert.add_argument("--fields", nargs="+", metavar="FIELD", help="fields to convert; all if not given")
    convert.add_argument(
        "--rename", nargs="+", type=_renamed, metavar="OLD=NEW", help="features as fields; for TFRecord and WebDataset"
    )
    convert.add_argument("--split", help="which split of a Hugging Face folder, such as train")
    convert.add_argument("--config", help="which configuration of a Hugging Face folder")
    convert.add_argument("--workers", type=int, metavar="N", help="how many parts are written at a time")
    _add_target(convert)

    copy = tools.add_parser("copy", help="copy some fields and rows of a dataset; run again to go on")
    copy.add_argument("source", help="the dataset: a directory or a file, local or a URL")
    copy.add_argument("--field-regex", nargs="+", metavar="REGEX", help="fields to copy; all if not given")
    copy.add_argument("--not-null-fields", nargs="+", metavar="FIELD", help="only rows where none of these is null")
    copy.add_argument("--where", metavar="JSON", help='only rows for which this holds, such as [["speed", ">", 3]]')
    copy.add_argument(
        "--files", type=int, default=1, metavar="N", help="how many files each part of 512 MiB becomes; 1 if not given"
    )
    _add_target(copy)
    return parser


if __name__ == "__main__":
    sys.exit(main())
