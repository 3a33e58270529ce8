"""The programs of the first hour run on their small data, and are as short as the comparison says."""

from __future__ import annotations

import io
import os
import re
import runpy
import shutil
import sys
import tokenize
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run_python, seed_frameworks

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "first_hour"
SAYS = {
    "click_log_keras": r"9\d% of the clicks|100% of the clicks",
    "click_log_torch": r"9\d% of the clicks|100% of the clicks",
    "dataset_engineer": r"300 rows, 100 of them with a mood",
    "drives": r"180 frames, 156 clips\nloss 0\.",
    "image_folder": r"100% of the other pictures",
    "petastorm_port": r"10 steps in each epoch, loss 0\.",
    "recommender": r"epoch 5: loss 0\.",
    "text": r"15 steps in each epoch, loss [01]\.",
}
NO_WORDS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small-data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path(str(PROGRAMS / "data.py"), run_name="__main__")
    return folder


@pytest.fixture
def in_small_data(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(small_data, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the libraries that they use warn of their own code
@pytest.mark.parametrize("name", SAYS)
def test_a_program_runs(name: str, in_small_data: None, capfd: pytest.CaptureFixture[str]) -> None:
    needs = "tensorflow" if "keras" in name else "torch"
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    seed_frameworks()
    runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    assert re.search(SAYS[name], capfd.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_the_same_program_with_hugging_face_datasets_runs(name: str, in_small_data: None) -> None:
    pytest.importorskip("datasets")
    run = run_python(PROGRAMS / "others" / f"{name}.py")
    assert run.returncode == 0, run.stderr[-4000:]
    assert re.search(SAYS[name], run.stdout)


# Ends without Python's finalization, in which a thread of gloo sometimes aborts the process (pytorch issue 190489).
RANK = """
import os, runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_two_ranks_stop_and_three_continue(in_small_data: None) -> None:
    pytest.importorskip("torch")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    said = []
    for ranks, arguments in ((2, ["5"]), (3, [])):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--no-python", f"--nproc-per-node={ranks}"]
        rank = [sys.executable, "-c", RANK, PROGRAMS / "ranks.py", *arguments]
        run = run_python(*torchrun, *rank, env=environment)
        assert run.returncode == 0, run.stderr[-4000:]
        said.append(run.stdout)
    assert said == ["2 ranks took 5 steps and saw 200 rows\n", "3 ranks took 7 steps and saw 400 rows\n"]


def test_the_comparison_counts_the_lines_of_both() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| \[(\d+)\]\(\S+/first_hour/(\w+)\.py\) \| \[(\d+)\]\(\S+/others/(\w+)\.py\) \|$", page, re.M
    )
    counts = [(lines_of(path), path.stem, lines_of(PROGRAMS / "others" / path.name), path.stem) for path in ours()]
    assert sorted((int(own), name, int(other), same) for own, name, other, same in rows) == sorted(counts)
    assert all(own < other for own, _, other, _ in counts)


def ours() -> list[Path]:
    return [path for path in PROGRAMS.glob("*.py") if path.name != "data.py"]


def lines_of(program: Path) -> int:
    """How many lines hold code: no blank ones, no comments, and no docstring at the head."""
    code = io.StringIO(program.read_text(encoding="utf-8")).readline
    tokens = [token for token in tokenize.generate_tokens(code) if token.type not in NO_WORDS]
    return len({line for token in tokens[1:] for line in range(token.start[0], token.end[0] + 1)})
