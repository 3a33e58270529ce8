"""The whole app: commands and their help, errors, exit status, and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from page_shell import run_parquetry as run
from processes import PATIENCE_S
from typer.testing import CliRunner

from parquetry.common.apps.command import output
from parquetry.common.apps.command.app import app
from parquetry.common.base.errors import CodecUnavailableError, DatasetError, FieldNotFoundError, PipelineError

REAL = str(Path(__file__).parents[3] / "data" / "petastorm" / "0.12.1")


def commands(group: typer.Typer = app, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Returns the names of all commands."""
    for each in group.registered_commands:
        assert each.callback is not None
        yield (*before, each.name or each.callback.__name__.replace("_", "-"))
    for part in group.registered_groups:
        assert part.typer_instance is not None
        yield from commands(part.typer_instance, (*before, str(part.name)))


def test_the_version_is_reported() -> None:
    assert run("--version").output.startswith("parquetry ")


@pytest.mark.parametrize("names", list(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(names: tuple[str, ...]) -> None:
    result = run(*names, "--help")
    assert result.exit_code == 0, result.output
    assert f"$ parquetry {' '.join(names)}" in result.output
    assert "--json" in result.output


def test_every_command_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[4] / "docs" / "command.md").read_text(encoding="utf-8")
    assert [names for names in commands() if f"\nparquetry {' '.join(names)}" not in text] == []


def test_an_error_is_one_line_and_decides_the_exit_status(tmp_path: Path) -> None:
    result = run("explain", str(tmp_path / "nothing"))
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("parquetry explain: dataset ")
    assert run("explain", REAL, "shufle(3)").exit_code == 2
    assert run("explain", REAL, 'select("bogus")').exit_code == 2
    assert run("explain", REAL, "--storage-option", "key").exit_code == 2
    assert run("explain").exit_code == 2
    assert "Traceback" in run("explain", REAL, "shufle(3)", "--debug").stderr


def test_an_error_is_json_where_json_was_asked_for(tmp_path: Path) -> None:
    result = run("explain", str(tmp_path / "nothing"), "--json")
    assert json.loads(result.stdout)["error"]["kind"] == "DatasetError"
    assert json.loads(result.stdout)["error"]["exit_code"] == result.exit_code == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PipelineError("a"), 2),
        (FieldNotFoundError("a"), 2),
        (DatasetError("a"), 3),
        (FileNotFoundError("a"), 3),
        (CodecUnavailableError("a"), 4),
        (ModuleNotFoundError("a"), 4),
        (KeyError("a"), 70),
    ],
)
def test_each_kind_of_error_has_its_exit_status(error: Exception, code: int) -> None:
    assert output.exit_code_of(error) == code
    assert code in output.EXIT_CODES


def test_ctrl_c_ends_a_command_quietly() -> None:
    own = typer.Typer()

    def wait() -> output.Shown:
        """Waits."""
        raise KeyboardInterrupt

    output.command(own, "parquetry wait")(wait)
    result = CliRunner().invoke(own, [])
    assert (result.exit_code, result.stderr) == (130, "")


def test_an_error_that_nobody_foresaw_says_how_to_see_more() -> None:
    own = typer.Typer()

    def fail() -> output.Shown:
        """Fails."""
        raise KeyError("speed")

    output.command(own, "parquetry fail")(fail)
    result = CliRunner().invoke(own, [])
    assert result.exit_code == 70
    assert result.stderr == "parquetry fail: unexpected KeyError: 'speed'. Run it again with --debug to see where.\n"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("odd")
    pq.write_table(pa.table({"naïve": ["語"] * 3}), path / "rows.parquet")
    return str(path)


def ends_with(command: str, **environment: str) -> tuple[int, str]:
    """Runs shell text in which $P is the command; returns the exit status and what was printed."""
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("$P", f"{sys.executable} -m parquetry")],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.slow
def test_output_that_cannot_be_written_is_not_a_finding(odd: str) -> None:
    status, said = ends_with(f"$P head {odd}", PYTHONIOENCODING="ascii")
    assert (status, "na\\xefve" in said) == (0, True)
    status, said = ends_with(f"$P describe {odd} --values > /dev/full")
    assert (status, said) == (3, "parquetry describe: [Errno 28] No space left on device\n")
    assert ends_with(f"$P describe {odd} | head -1")[0] == 0
    assert ends_with(f"$P describe {odd} --values >&-") == (0, "")
