"""Output shared by all commands: tables for people, one JSON value for programs, errors, and the exit status.

`command` registers a function with typer. The function returns a `Shown`, which holds a value and its text form. The
wrapper adds ``--json`` and ``--debug``, prints errors as one line, and sets the exit status.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from ...base.errors import FieldNotFoundError, ParquetryError, PipelineError
from ...base.process.dataclass import dataclass
from ...base.text_table import TextTable

FINE, FOUND_PROBLEMS, WRONG_USE, DATA_ERROR, NOT_INSTALLED, UNEXPECTED, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130
EXIT_CODES = {
    FINE: "everything is fine",
    FOUND_PROBLEMS: "the command ran, and found problems in the data (lint, verify, doctor)",
    WRONG_USE: "wrong options or arguments, a chain that does not parse, a field that does not exist",
    DATA_ERROR: "the dataset is missing, damaged, or cannot be read or written",
    NOT_INSTALLED: "an optional library is missing",
    UNEXPECTED: "an unexpected error; --debug shows where",
    INTERRUPTED: "Ctrl-C",
}
_PIPED_WIDTH = 160

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="NAME=VALUE", help="An option for the file system; may be repeated."),
]
Url = Annotated[
    str, typer.Argument(metavar="URL", help="A directory, a Parquet file, or a pattern in quotes: a path or a URL.")
]


@dataclass(frozen=True)
class Shown:
    """The result of a command: the ``value`` for ``--json``, the ``parts`` to print as text, and the exit status."""

    value: object
    parts: tuple[RenderableType, ...]
    exit_code: int = FINE


class Command(str):
    """A line that may be pasted into a shell: the terminal breaks it where it is too long, and not we."""


class Code(Command):
    """The lines of a program, which may go to a file as they are."""


SHOWN_BEFORE = Shown(None, ())
"""Returned by commands that have already printed all their output."""


def command(
    app: typer.Typer, *examples: str, name: str | None = None
) -> Callable[[Callable[..., Shown]], Callable[..., Shown]]:
    """Registers a function as a command. ``examples`` are shown at the end of its ``--help``."""

    def register(function: Callable[..., Shown]) -> Callable[..., Shown]:
        called = function.__name__.replace("_", "-" if name is None else " ")

        @wraps(function)
        def run(*, as_json: bool, debug: bool, **options: object) -> None:
            try:
                shown = function(**options)
            except (typer.Exit, typer.Abort):
                raise
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
            except Exception as error:
                _fail(called, error, as_json=as_json, debug=debug)
            try:
                _print(shown, as_json=as_json)
                sys.stdout.flush()
            except BrokenPipeError:  # the reader, such as `head`, has seen enough
                _end_output()
            except OSError as error:
                _end_output()
                _fail(called, error, as_json=as_json, debug=debug)
            if shown.exit_code:
                raise typer.Exit(shown.exit_code)

        signature = inspect.signature(function, eval_str=True)
        added = [
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
            inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug),
        ]
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
        run.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in [*parameters, *added]}
        shown_examples = "\n\n".join(f"$ {escape(example)}" for example in examples)
        app.command(name, epilog=f"[bold]Example[/bold]\n\n{shown_examples}", no_args_is_help=False)(run)
        return function

    return register


def _print(shown: Shown, *, as_json: bool) -> None:
    if shown is SHOWN_BEFORE:
        return
    if as_json:
        from ..reports.values import to_json  # imported late: --help and completion should not load numpy

        print(json.dumps(to_json(shown.value), indent=2))
        return
    console = new_console()
    for part in shown.parts:
        console.print(part, soft_wrap=isinstance(part, Command))


def _end_output() -> None:
    """Discards unwritten output, which Python would otherwise try to write at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def new_console() -> Console:
    """A console on standard output. It is wide if that is not a terminal, so that piped lines are not wrapped."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _Console(width=_PIPED_WIDTH if piped else None, soft_wrap=False, highlight=False, markup=False)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:  # rich would exit with status 1
        raise BrokenPipeError


def _fail(name: str, error: Exception, *, as_json: bool, debug: bool) -> NoReturn:
    """Prints the error as one line (with ``debug``, the traceback), and exits."""
    from ...base.urls import clean_cause, without_secrets

    code = exit_code_of(error)
    message = without_secrets(" ".join(str(error).split())).removeprefix(f"{name}: ") or type(error).__name__
    if code == UNEXPECTED:
        message = f"unexpected {type(error).__name__}: {message}. Run it again with --debug to see where."
    if debug:
        traceback.print_exception(clean_cause(error))
    if as_json:
        print(json.dumps({"error": {"kind": type(error).__name__, "message": message, "exit_code": code}}, indent=2))
    elif not debug or code == UNEXPECTED:
        print(f"parquetry {name}: {message}", file=sys.stderr)
    raise typer.Exit(code)


def exit_code_of(error: Exception) -> int:
    """Returns the exit status for an error; see `EXIT_CODES`."""
    if isinstance(error, ImportError) or isinstance(error.__cause__, ImportError):
        return NOT_INSTALLED
    if isinstance(error, PipelineError | FieldNotFoundError):
        return WRONG_USE
    return DATA_ERROR if isinstance(error, ParquetryError | OSError) else UNEXPECTED


def storage_options_of(given: list[str] | None) -> dict[str, str] | None:
    """Parses ``NAME=VALUE`` options into a dict. Returns ``None`` if there are none.

    Raises:
        PipelineError: an option has no name or no equals sign.
    """
    options = dict(pair_of(text, "--storage-option") for text in given or ())
    return options or None


def pair_of(text: str, option: str) -> tuple[str, str]:
    """Splits ``NAME=VALUE`` into two strings.

    Raises:
        PipelineError: there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise PipelineError(f"{option}: expected NAME=VALUE, got '{text}'.")
    return name, value


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Creates a table without borders. The columns named in ``right`` are right-aligned."""
    result = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    for name in columns:
        result.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return result


def rich_table(shown: TextTable) -> Table:
    """Returns a table of text as rich prints it: as wide as the terminal."""
    result = table(*shown.names, right=tuple(shown.right))
    for line in shown.lines:
        result.add_row(*line)
    return result


def facts(values: Mapping[str, object]) -> Table:
    """Creates a table with one name and value per line. Values of ``None`` are skipped."""
    result = Table(box=None, pad_edge=False, show_header=False)
    result.add_column(style="bold")
    result.add_column(overflow="fold")
    for name, value in values.items():
        if value is not None:
            result.add_row(name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    return result


__all__ = [
    "EXIT_CODES",
    "FOUND_PROBLEMS",
    "SHOWN_BEFORE",
    "Code",
    "Command",
    "Shown",
    "StorageOptions",
    "Url",
    "command",
    "exit_code_of",
    "facts",
    "new_console",
    "pair_of",
    "rich_table",
    "storage_options_of",
    "table",
]
