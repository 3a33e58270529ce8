"""``python -m parquetry.common.tools``."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run_python

from parquetry.common import Pipeline, tools
from parquetry.common.tools.__main__ import _parser, main

REAL = Path(__file__).parents[2] / "data" / "petastorm" / "0.12.1"


def test_copy_takes_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "target"
    arguments = ["copy", str(REAL), str(target), "--field-regex", "id", "label", "--where", '["id", ">=", 20]']
    arguments += ["--not-null-fields", "label", "speed", "--partition-by", "--row-group-rows", "10", "--no-progress"]
    assert main(arguments) == 0
    wanted = [i for i in range(20, 60) if i % 7 and i % 5]
    assert [row["id"] for row in Pipeline(target)] == wanted
    assert f"{len(wanted)} rows of 2 fields in 1 files" in capsys.readouterr().out
    assert main(arguments) == 1
    assert "expected an empty target" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--files", "2", "--petastorm-compatible"]) == 0


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ('["id", "<", 2]', [0, 1]),
        ('[["id", "<", 2], ["id", ">", 0]]', [1]),
        ('[[["id", "<", 1]], [["id", ">", 58]]]', [0, 59]),
        ('[["drive", "in", ["d2"]], ["id", "<", 42]]', [40, 41]),
    ],
)
def test_conditions_are_json(tmp_path: Path, where: str, expected: list[int]) -> None:
    target = str(tmp_path / "target")
    assert main(["copy", str(REAL), target, "--field-regex", "id", "--where", where, "--no-progress"]) == 0
    assert [row["id"] for row in Pipeline(target)] == expected


def test_a_condition_that_is_not_json_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", str(REAL), str(tmp_path / "target"), "--where", "id > 3"]) == 1
    assert "copy: " in capsys.readouterr().err


def test_migrate_and_generate_metadata_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(REAL, tmp_path / "old")
    assert main(["migrate", str(tmp_path / "old"), "--dry-run"]) == 0
    assert "dry run, nothing was written" in capsys.readouterr().out
    assert main(["migrate", str(tmp_path / "old")]) == 0
    assert "schema 'Drive' of 13 fields as JSON" in capsys.readouterr().out
    (tmp_path / "plain").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "plain" / "part.parquet")
    assert main(["generate-metadata", str(tmp_path / "plain")]) == 0
    assert "schema of 1 fields: id" in capsys.readouterr().out
    assert main(["generate-metadata", str(tmp_path / "plain")]) == 1


def test_the_module_runs() -> None:
    result = run_python("-m", "parquetry.common.tools", "--help", check=True)
    assert "migrate" in result.stdout
    assert "generate-metadata" in result.stdout


def test_the_public_names_are_there() -> None:
    assert tools.__all__ == sorted(tools.__all__)
    assert all(callable(getattr(tools, name)) for name in tools.__all__)
    with pytest.raises(AttributeError, match="bogus"):
        _ = tools.bogus  # type: ignore[attr-defined]


@pytest.mark.parametrize("tool", ["migrate", "generate-metadata", "convert", "copy"])
def test_every_argument_of_every_tool_says_what_it_is(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tools_of,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    parser = tools_of.choices[tool]
    assert [action.dest for action in parser._actions if not action.help] == []
    with pytest.raises(SystemExit):
        main([tool, "--help"])
    assert "show no progress bar" in capsys.readouterr().out or tool in ("migrate", "generate-metadata")
