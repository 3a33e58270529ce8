"""`generate_petastorm_metadata`, and its command line: adds a schema to existing Parquet files.

It uses `parquetry.common.apps.tools.generate_metadata`, which needs no Spark and writes JSON instead of a pickle.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pydoc import locate

from ....apps.tools.stored_schema import generate_metadata
from ....base.errors import SchemaError
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
        spark: unused; may be ``None``.
        unischema_class: the dotted name of a `Unischema` to import; ``None`` for the schema that the dataset has.
        use_summary_metadata, hdfs_driver: unused.

    Raises:
        SchemaError: the name does not refer to a `Unischema`, or no name was given and the dataset has no schema.
    """
    schema = get_schema_from_dataset_url(dataset_url) if unischema_class is None else locate(unischema_class)
    if not isinstance(schema, Unischema):
        raise SchemaError(f"unischema_class: expected the dotted name of a Unischema, got {unischema_class!r}.")
    generate_metadata(dataset_url, schema, overwrite=True)  # type: ignore[arg-type]  # Petastorm's form is accepted too


def _main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="petastorm_generate_metadata", description="Writes the schema of a dataset.")
    parser.add_argument("--dataset_url", required=True)
    parser.add_argument("--unischema_class", help="dotted name; default: the dataset's own schema")
    parser.add_argument("--use-summary-metadata", action="store_true", help="not used")
    parser.add_argument("--master", help="not used: no Spark is needed")
    parser.add_argument("--spark-driver-memory", help="not used")
    parser.add_argument("--hdfs-driver", default="libhdfs3", help="not used")
    options = parser.parse_args(arguments)
    generate_petastorm_metadata(None, options.dataset_url, options.unischema_class)


def main() -> None:
    """Runs the command line."""
    _main(sys.argv[1:])


if __name__ == "__main__":
    main()
