"""Runs the shell blocks of a page: ``parquetry`` in this process; install, build and benchmark commands must exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from parquetry.common.apps.command.app import app
from parquetry.common.server import server_process

if TYPE_CHECKING:
    from click.testing import Result
    from sybil import Example

ROOT = Path(__file__).resolve().parents[1]
FINDS_PROBLEMS = {"lint", "verify", "doctor"}
"""Commands that exit with 1 if something is wrong with the data or this machine."""
SHORTER = {"bench": ["--seconds", "0.05"], "doctor": ["--help"]}
"""Quick arguments for commands with full tests elsewhere: one measures for seconds, one imports both frameworks."""


def run_parquetry(*arguments: object) -> Result:
    """Returns the result of a command of ``parquetry``, run in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="parquetry")


def run(example: Example) -> None:
    """Runs each line of a shell block in the working directory."""
    for line in example.parsed.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)  # a variable for the command
        if words:
            _run_line(words)


def _run_line(words: list[str]) -> None:
    program, *arguments = words
    if program == "parquetry":
        _check_parquetry(arguments)
    elif program == "pip":
        for extra in re.findall(r"[\w-]+(?=[],])", " ".join(arguments)):
            assert re.search(rf"^{extra} = \[", _text("pyproject.toml"), re.MULTILINE), f"no extra {extra}"
    elif program == "make":
        for target in arguments:
            assert "=" in target or re.search(rf"^{target}:", _text("Makefile"), re.MULTILINE), f"no target {target}"
    elif program.endswith("python") and arguments[0] == "-c":
        _run_code(arguments[1:])
    elif program.endswith("python") and arguments[0] == "-m":
        assert _module_path(arguments[1]).exists() or find_spec(arguments[1]), f"no module {arguments[1]}"
    elif program.endswith("python"):
        assert (ROOT / arguments[0]).is_file(), f"no file {arguments[0]}"
    else:
        raise AssertionError(f"expected a program that this test knows, got {words}")


def _check_parquetry(arguments: list[str]) -> None:
    arguments = [*arguments, *SHORTER.get(arguments[0], ())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process.Stop, "wait", lambda _: None)  # a server starts, reports its address, and stops
        result = run_parquetry(*arguments)
    assert result.exit_code in ({0, 1} if arguments[0] in FINDS_PROBLEMS else {0}), (
        f"parquetry {shlex.join(arguments)} ended with {result.exit_code}:\n{result.output[-2000:]}"
    )


def _run_code(arguments: list[str]) -> None:
    code, *redirection = arguments
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "python -c", "exec"), {})
    if redirection:
        sign, name = redirection
        assert sign == ">"
        Path(name).write_text(printed.getvalue(), encoding="utf-8")


def _module_path(name: str) -> Path:
    return (ROOT / name.replace(".", "/")).with_suffix(".py")


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
