"""Every block of code on every page runs as it is printed, in the order of its page.

A page is one test, in a folder of its own with the files of `page_files.py`. Code that a block needs but a reader does
not, such as a toy model, is in an HTML comment beside it: ``<!-- invisible-code-block: python``. A block that cannot
run here has a comment with the reason above it: ``<!-- skip: next "needs a cluster" -->``.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from unittest import SkipTest

import page_shell
import pytest
from faces import TORCH_WARNINGS
from page_files import write_all

document = pytest.importorskip("sybil.document", reason="in the extra 'dev' alone")
markdown = pytest.importorskip("sybil.parsers.markdown")

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if re.search(r"^ *```(python|bash)$", path.read_text(encoding="utf-8"), re.MULTILINE)
)
PARSERS = (
    markdown.PythonCodeBlockParser(),
    markdown.CodeBlockParser(language="bash", evaluator=page_shell.run),
    markdown.SkipParser(),
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(warning) for warning in TORCH_WARNINGS)]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all pages, written once."""
    directory = tmp_path_factory.mktemp("pages")
    write_all(directory)
    return directory


@pytest.fixture
def _beside_the_files(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may write where it likes, and reads the environment of a job of one rank."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "5")


@pytest.mark.usefixtures("_beside_the_files")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_as_printed(page: str) -> None:
    parsed = document.Document.parse(str(ROOT / page), *PARSERS)
    try:
        for example in parsed.examples():
            try:
                example.evaluate()
            except SkipTest:
                continue  # the reason stands on the page
            except Exception as error:
                raise AssertionError(f"{page}: the block at line {example.line} failed") from error
    finally:
        parsed.namespace.clear()
