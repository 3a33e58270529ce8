"""Pages are short where people start, and their code fits a narrow window."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases import every_case

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "cookbook").glob("*.md"), *(DOCS / "reference").glob("*.md")]
COLUMNS = 64
WORDS = 1_500
_BLOCK = re.compile(r"^( *)```(?:python|bash)\n(.*?)\n\1```", re.MULTILINE | re.DOTALL)


@every_case("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_at_most_64_columns_wide(page: Path) -> None:
    lines = (
        line.removeprefix(indent)
        for indent, code in _BLOCK.findall(page.read_text(encoding="utf-8"))
        for line in code.splitlines()
    )
    assert [line for line in lines if len(line) > COLUMNS] == [], (
        "`ruff format docs` wraps code, but no texts or commands"
    )


def test_no_page_in_start_has_more_than_1500_words() -> None:
    yaml = pytest.importorskip("yaml")
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    start = next(each["Start"] for each in yaml.safe_load(text)["nav"] if "Start" in each)
    pages = re.findall(r"[\w/-]+\.md", str(start))
    assert "pytorch-state.md" in pages
    words = {page: len((DOCS / page).read_text(encoding="utf-8").split()) for page in pages}
    assert {page: count for page, count in words.items() if count > WORDS} == {}


def test_the_readme_is_read_in_a_few_minutes() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(prose.split()) < 900
