"""What the site shows where it needs other text than GitHub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="in the extra 'docs' alone")
markdown = pytest.importorskip("markdown", reason="in the extra 'docs' alone")

DOCS = Path(__file__).resolve().parents[2] / "docs"


def shown(page: Path) -> str:
    """Returns a page as the site shows it, without its theme."""
    described = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    assert described is not None
    assert described.loader is not None
    module: Any = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    file = SimpleNamespace(file=SimpleNamespace(src_uri=str(page.relative_to(DOCS))))
    text = module.on_page_markdown(page.read_text(encoding="utf-8"), file, SimpleNamespace(repo_url="https://x"), None)
    html: str = markdown.markdown(text, extensions=["tables"])
    return html


def test_code_in_tables_has_no_backslash_before_a_pipe() -> None:
    pages = [page for page in sorted(DOCS.rglob("*.md")) if r"\|" in page.read_text(encoding="utf-8")]
    html = {page.name: shown(page) for page in pages}
    assert "<code>select(r&quot;(?!(a|b)$).*&quot;)</code>" in html["verbs.md"].replace('"', "&quot;")
    assert [name for name, text in html.items() if r"\|" in text] == []
