"""`generate_petastorm_metadata`, and its command line: a schema for Parquet files that are there already.

The work is that of `parquetry.common.tools.generate_metadata`: it needs no Spark, and writes JSON instead of a pickle.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pydoc import locate

from ...errors import SchemaError
from ...tools.generating import generate_metadata
from ..unischema import Unischema
from .dataset_metadata import get_schema_from_dataset_url


def generate_petastorm_metadata(
    spark: object,
    dataset_url: str,
    unischema_class: str | None = None,
    use_summary_metadata: bool = False,
    hdfs_driver: str = "libhdfs3",
) -> None:
    """Writes the schema of a dataset.

    Args:
        spark: not used; ``None`` will do.
        unischema_class: the dotted name of a `Unischema`, which is imported; ``None`` = the schema that is there.
        use_summary_metadata, hdfs_driver: not used.

    Raises:
        SchemaError: the name is not one of a `Unischema`; none was given, and the dataset has no schema.
    """
    schema = get_schema_from_dataset_url(dataset_url) if unischema_class is None else locate(unischema_class)
    if not isinstance(schema, Unischema):
        raise SchemaError(f"unischema_class: expected the dotted name of a Unischema, got {unischema_class!r}.")
    generate_metadata(dataset_url, schema, overwrite=True)  # type: ignore[arg-type]  # Petastorm's form is taken too


def _main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="petastorm_generate_metadata", description="Writes the schema of a dataset.")
    parser.add_argument("--dataset_url", required=True)
    parser.add_argument("--unischema_class", help="dotted name; the schema that is there if not given")
    parser.add_argument("--use-summary-metadata", action="store_true", help="not used")
    parser.add_argument("--master", help="not used: no Spark is needed")
    parser.add_argument("--spark-driver-memory", help="not used")
    parser.add_argument("--hdfs-driver", default="libhdfs3", help="not used")
    given = parser.parse_args(arguments)
    generate_petastorm_metadata(None, given.dataset_url, given.unischema_class)


def main() -> None:
    """Runs the command line."""
    _main(sys.argv[1:])


if __name__ == "__main__":
    main()
