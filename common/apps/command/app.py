"""The ``parquetry`` app: all commands, and ``--version``."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from . import check, describing, show, write
from .output import EXIT_CODES

app = typer.Typer(
    name="parquetry",
    help="Look at Parquet datasets for training, check them, change them, and measure how fast they are read.",
    epilog="Exit status: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (show, describing, check, write):
    group.register(app)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"parquetry {version('parquetry')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look at Parquet datasets for training, check them, change them, and measure how fast they are read."""


def main() -> None:
    """Runs ``parquetry`` with the command-line arguments of this process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale may lack a column's letters
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars are only useful in a terminal
    app(prog_name="parquetry")
