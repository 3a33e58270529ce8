"""A trainer's children import the installed package, never the trainer's working directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from builders import Built, built_once
from processes import run_python

from parquetry.common.base.errors import SidecarError
from parquetry.common.transport.processes import python_command
from parquetry.common.transport.sidecar.idle_pool import IDLE

SHADOWS = ("logging", "json", "pickle", "socket", "numpy", "pyarrow", "runpy", "parquetry", "cloudpickle", "argparse")

TRAINER = """
import sys
from parquetry.common import Pipeline
from parquetry.common.server.own_server import OwnServer
from parquetry.common.compat.petastorm.reader import make_batch_reader


def helped(row):
    import helper  # beside this script
    return {"id": helper.same(row["id"])}


if __name__ == "__main__":
    url = sys.argv[1]
    pipeline = Pipeline(url, "id", executor="sidecar", workers=1).transform(helped)
    print(len(list(pipeline)))
    server = OwnServer(pipeline)
    print(sum(1 for _ in Pipeline(address=server.address)))
    server.end()
    with make_batch_reader("file://" + url, reader_pool_type="process", workers_count=1, schema_fields=["id"]) as reader:
        print(sum(len(batch.id) for batch in reader))
"""
built = built_once([[20, 13]], names=("id", "label"))


@pytest.mark.slow
def test_the_working_directory_shadows_nothing_and_the_scripts_own_modules_are_found(
    built: Built, tmp_path: Path
) -> None:
    here, scripts = tmp_path / "here", tmp_path / "scripts"
    here.mkdir()
    scripts.mkdir()
    for name in SHADOWS:
        (here / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
    (scripts / "helper.py").write_text("def same(value):\n    return value\n")
    (scripts / "train.py").write_text(TRAINER)
    done = run_python(scripts / "train.py", built.url, cwd=here)
    assert (done.stdout.split(), done.stderr) == (["33"] * 3, "")


def test_a_program_that_does_not_know_its_python_is_told_how_to_name_one(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = sys.executable
    IDLE.close()  # a sidecar that another test left would open the request
    monkeypatch.delenv("PARQUETRY_PYTHON", raising=False)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(SidecarError, match="Set the environment variable PARQUETRY_PYTHON"):
        next(iter(built.pipeline("id", "label", executor="sidecar")))
    monkeypatch.setenv("PARQUETRY_PYTHON", python)
    assert python_command("json.tool")[0] == python


def test_a_child_runs_the_module_with_its_arguments_and_is_as_isolated_as_its_parent(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')\n")
    program = (
        "import subprocess, sys; sys.path.pop(0) if sys.path[0] == '' else None\n"
        "from parquetry.common.transport.processes import python_command\n"
        "command = python_command('json.tool', '--compact')\n"
        "print(subprocess.run(command, input='[1, 2]', text=True, capture_output=True).stdout, command[1:-4])\n"
    )
    for flags, kept in (([], []), (["-I"], ["-I", "-E", "-s"])):
        done = run_python(*flags, "-c", program, cwd=tmp_path)
        assert done.stdout.split("\n")[0] == "[1,2]", done.stderr
        assert done.stdout.split("\n")[1].strip() == str(kept)


def test_the_command_line_names_the_module() -> None:
    assert python_command("some.module", "--fd", "3")[-3:] == ["some.module", "--fd", "3"]
